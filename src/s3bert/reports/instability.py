"""How far a training step moves the encoder's states, beside softmax attention (Skyformer's Table 3, appendix F)."""

from collections.abc import Mapping, Sequence
from typing import Any

from s3bert.files import mean_and_deviation, table


Results = Mapping[str, Any]
COLUMNS = ["instability", "as a ratio to softmax's"]


def scores_and_ratios(setting: Mapping[str, Any], results: Results) -> tuple[list[float], list[float]]:
    """A setting's instability scores and their ratios to softmax attention's, seed by seed; no ratios where softmax was not trained.

    Args:
        results: a run's variants by label, all trained alike.
    """
    softmax = [
        other
        for result in results.values()
        if result["mixer"] == "softmax" and not result["mixer_settings"]
        for other in result["settings"]
        if other["name"] == setting["name"]
    ]
    yardstick = {trial["seed"]: trial["metrics"].get("instability") for other in softmax for trial in other["trials"]}
    scores = {trial["seed"]: trial["metrics"].get("instability") for trial in setting["trials"]}
    scores = {seed: score for seed, score in scores.items() if score}
    return list(scores.values()), [score / yardstick[seed] for seed, score in scores.items() if yardstick.get(seed)]


def instability_cells(setting: Mapping[str, Any], results: Results) -> list[str]:
    """A setting's cells under `COLUMNS`: mean and standard deviation over seeds."""
    return [mean_and_deviation(values, ".3g", ".2g") for values in scores_and_ratios(setting, results)]


def instability_table(results: Results) -> str:
    """A Markdown table of a run that was trained for the instability alone: its accuracies say nothing."""
    rows = [
        [name, setting["name"], *instability_cells(setting, results)]
        for name, result in results.items()
        for setting in result["settings"]
    ]
    return table(["", "setting", *COLUMNS], rows)


def instability_headline(results: Results) -> str:
    """S3's ratio to softmax attention, for an index; "" without either."""
    s3 = [(name, result) for name, result in results.items() if result["mixer"] == "s3"]
    ratios = [(name, instability_cells(result["settings"][0], results)[1]) for name, result in s3]
    return "; ".join(f"instability of {name} {ratio} of softmax's" for name, ratio in ratios if ratio)


def plot_instability(panels: Sequence[Any], title: str, results: Results) -> None:
    """Draws each seed's score and ratio, a row a mixer, into two panels."""
    for axes, place, label in zip(panels, (0, 1), COLUMNS, strict=True):
        for row, result in enumerate(results.values()):
            values = scores_and_ratios(result["settings"][0], results)[place]
            axes.plot(values, [row] * len(values), "o", color=f"C{row % 10}", alpha=0.7)
        axes.set(xlabel=label, xscale="log", title=title, yticks=range(len(results)), ylim=(len(results) - 0.5, -0.5))
        axes.set_yticklabels(results)
        axes.grid(alpha=0.3)
