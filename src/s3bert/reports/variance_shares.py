"""How much S3's pooled vector hangs on the landmark tokens, new or trained: tables and a plot.

A run is what `s3bert analyse-lra` keeps in its `all_results.json`: `measures` by model, of each seed, as `analysis.variance_shares` gives them.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from s3bert.files import mean_and_deviation, table
from s3bert.plots import save, subplots, wrapped


Run = Mapping[str, Any]
_SHARES = {"landmark_share": "landmark tokens", "other_share": "as many others"}


def variance_sections(runs: Mapping[str, Run]) -> list[str]:
    """A section for each run, by name."""
    return [part for name, run in runs.items() for part in (f"## {name}", *variance_tables(run))]


def variance_headline(runs: Mapping[str, Run]) -> tuple[str, str]:
    """The setting, and the share of the first model of the first run that hangs on its landmark tokens."""
    run = next(iter(runs.values()))
    label, seeds = next(iter(run["measures"].items()))
    return run["description"].rstrip(
        "."
    ), f"{label}: {_spread(seeds, 'landmark_share')} of the variance on the landmark tokens"


def variance_tables(run: Run) -> list[str]:
    """What was measured on, and Markdown tables of whole models and of their layers."""
    names = ["landmark_tokens", *_SHARES, "pooled_rank"]
    models = [[label, *(_spread(seeds, name) for name in names)] for label, seeds in run["measures"].items()]
    parts = [run["description"], table(["", *(name.replace("_", " ") for name in names)], models)]
    layers = [
        (label, seeds, number) for label, seeds in run["measures"].items() for number in range(len(seeds[0]["layers"]))
    ]
    names = list(dict.fromkeys(name for _, seeds, number in layers for name in seeds[0]["layers"][number]))
    rows = []
    for label, seeds, number in layers:
        measures = [seed["layers"][number] for seed in seeds]
        rows.append([label, str(number + 1), *(_spread(measures, name) for name in names)])
    return [*parts, table(["", "layer", *(name.replace("_", " ") for name in names)], rows)]


def plot_variance(file: Path, runs: Mapping[str, Run]) -> None:
    """Shares of the pooled vector's variance, a panel a run: a group of bars a model, a dot a seed."""
    figure, panels = subplots(
        len(runs), 1, figsize=(9, 0.5 + 0.6 * sum(len(run["measures"]) + 1 for run in runs.values())), squeeze=False
    )
    for (axes,), (name, run) in zip(panels, runs.items(), strict=True):
        for number, (share, label) in enumerate(_SHARES.items()):
            for place, seeds in enumerate(run["measures"].values()):
                values = [seed[share] for seed in seeds if share in seed]
                height = place + 0.4 * number - 0.2
                if values:
                    axes.barh(
                        height, mean(values), 0.38, color=f"C{number}", alpha=0.6, label=label if place == 0 else None
                    )
                    axes.plot(values, [height] * len(values), "k.", markersize=4)
        labels = [wrapped(label, 40) for label in run["measures"]]
        axes.set_yticks(range(len(labels)), labels, fontsize="small")
        axes.set(title=name, xlim=(0, 1.05), xlabel="share of the pooled vector's variance")
        axes.invert_yaxis()
        axes.grid(alpha=0.3, axis="x")
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize="small")
    save(figure, file, dpi=110)


def _spread(measures: Sequence[Mapping[str, float]], name: str) -> str:
    """Mean and deviation over seeds; "" for what is not there."""
    values = [each[name] for each in measures if name in each]
    return mean_and_deviation(values, ".3g", ".1g")
