"""What things trained alike gave, Long Range Arena's mixers for one: a table of accuracies, and learning curves (the S3Attention
paper's Figure 3). A variant is one of the things compared."""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from s3bert.arguments import named_settings
from s3bert.files import table, write_text
from s3bert.plots import save, subplots

from .published import published_accuracy, tasks_in_order


def write_report(
    folder: Path,
    title: str,
    description: str,
    results: Mapping[str, Mapping[str, Any]],
    facts: Mapping[str, Any],
    against: str | None = None,
    published: Mapping[str, str] | None = None,
    published_measures: Mapping[str, Mapping[str, float]] | None = None,
) -> None:
    """Writes `results.md`, `curves.png` and, with the facts, `all_results.json`.

    Args:
        description: what was trained on what, in a sentence.
        results, against, published, published_measures: as `lra_table` takes them.
    """
    rows = lra_table(results, against, published, published_measures)
    write_text(folder / "results.md", f"# {title}\n\n{description}\n\n{rows}\n")
    plot_learning_curves(folder / "curves.png", results, title)
    content = {"title": title, "description": description, **facts, "variants": results}
    write_text(folder / "all_results.json", json.dumps(content, indent=1) + "\n")


def lra_overview(runs: Mapping[str, Mapping[str, Any]]) -> str:
    """A Markdown table of variants by tasks: measured accuracies with their spread over seeds, and below those of a mixer the papers' for
    the settings measured.

    Args:
        runs: by name, the `all_results.json` of runs that compare mixers. Where several trained the same variant on the same task, each
            has a row of its own with the run's name.
    """
    trained = Counter((label, content["task"]) for content in runs.values() for label in content["variants"])
    measured: dict[str, dict[str, dict[str, str]]] = {}  # by mixer, row and task
    papers: dict[str, dict[str, list[str]]] = {}  # by mixer and task
    for run, content in runs.items():
        task = content["task"]
        for label, result in content["variants"].items():
            mixer, settings = named_settings(label)
            row = f"{label} ({run})" if trained[label, task] > 1 else label
            measured.setdefault(mixer, {}).setdefault(row, {})[task] = measured_accuracy(result)
            figures = papers.setdefault(mixer, {}).setdefault(task, [])
            if (figure := published_accuracy(task, mixer, settings)) not in ("", *figures):
                figures.append(figure)
    tasks = tasks_in_order(content["task"] for content in runs.values())
    rows = []
    for mixer, found in measured.items():
        rows += [[row, *(cells.get(task, "") for task in tasks)] for row, cells in found.items()]
        if any(papers[mixer].values()):
            rows.append([f"{mixer}, the papers'", *(", ".join(papers[mixer].get(task, [])) for task in tasks)])
    return table(["", *tasks], rows)


def lra_table(
    results: Mapping[str, Mapping[str, Any]],
    against: str | None = None,
    published: Mapping[str, str] | None = None,
    published_measures: Mapping[str, Mapping[str, float]] | None = None,
) -> str:
    """A Markdown table of all variants and settings: accuracies times 100, mean and standard deviation over seeds.

    Args:
        results: by variant, as `grid.grid_results` gives them; trials' metrics hold `test_accuracy`.
        against: the variant from which the others' test accuracies are subtracted, setting by setting, in a column of its own.
        published: by variant, what a paper gives, for a column of its own: an accuracy, or a change where `against` is given.
        published_measures: by variant and measure, what a paper gives for incoherence.
    """
    head = ["", "setting", "test accuracy"]
    head += [f"against {against}"] if against else []
    head += ["published"] if published else []
    head += ["each seed", "validation accuracy"]
    if any("self_pretrained" in result for result in results.values()):
        head.append("test accuracy after self-pretraining")
    trials = [trial for result in results.values() for setting in result["settings"] for trial in setting["trials"]]
    probes = ("incoherence", "instability")
    measures = sorted({name for trial in trials for name in trial["metrics"] if name.startswith(probes)})
    rows = []
    wholes = results[against]["settings"] if against in results else []
    base = {whole["name"]: mean(tests) for whole in wholes if (tests := _percentages(whole, "test_accuracy"))}
    for name, result in results.items():
        after = {entry["name"]: entry for entry in result.get("self_pretrained", {}).get("settings", [])}
        for setting in result["settings"]:
            tests = _percentages(setting, "test_accuracy")
            row = [name, setting["name"], _spread(tests)]
            if against:
                comparable = tests and name != against and setting["name"] in base
                row.append(f"{mean(tests) - base[setting['name']]:+.2f}" if comparable else "")
            if published:
                row.append(published.get(name, ""))
            row += [", ".join(f"{value:.2f}" for value in tests), _spread(_percentages(setting, "accuracy"))]
            if "self_pretrained" in result:
                row.append(_spread(_percentages(after[setting["name"]], "test_accuracy")))
            for measure in measures:
                values = [trial["metrics"][measure] for trial in setting["trials"] if measure in trial["metrics"]]
                figure = (published_measures or {}).get(name, {}).get(measure)
                beside = "" if figure is None else f", published {figure}"
                row.append(f"{mean(values):.3g}{beside}" if values else "")
            rows.append(row)
    return table([*head, *(name.replace("_", " ") for name in measures)], rows)


def measured_accuracy(result: Mapping[str, Any]) -> str:
    """A variant's accuracy on the test split times 100, mean and standard deviation over the seeds of its best setting."""
    return _spread(_percentages(result["settings"][0], "test_accuracy"))


def _percentages(setting: Mapping[str, Any], metric: str) -> list[float]:
    """A metric times 100 of each seed that has ended well."""
    return [100 * trial["metrics"][metric] for trial in setting["trials"] if trial["metrics"]]


def _spread(values: list[float]) -> str:
    if not values:
        return "failed"
    return f"{mean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


def plot_learning_curves(file: Path, results: Mapping[str, Mapping[str, Any]], title: str) -> None:
    """Draws validation accuracy and loss against optimiser steps: a colour a variant, a thin line a seed of its best setting."""
    figure, panels = subplots(1, 2, figsize=(11, 4.5))
    for axes, (key, label, scale) in zip(
        panels,
        (("eval_accuracy", "validation accuracy (%)", 100), ("eval_loss", "validation loss (nats)", 1)),
        strict=True,
    ):
        for number, (name, result) in enumerate(results.items()):
            for place, trial in enumerate(result["settings"][0]["trials"]):
                points = [(record["step"], scale * record[key]) for record in trial["history"] if key in record]
                if points:
                    size = 2 if len(points) > 1 else 5
                    style = {"color": f"C{number}", "linewidth": 1, "marker": "o", "markersize": size}
                    if number > 9:  # there are ten colours
                        style |= {"linestyle": "--", "fillstyle": "none"}
                    axes.plot(*zip(*points, strict=True), label=name if place == 0 else None, **style)
        axes.set(xlabel="optimiser steps", ylabel=label, xlim=(0, None))
        axes.grid(alpha=0.3)
    columns = max(1, 130 // (10 + max(map(len, results))))  # as many as the figure's width has letters for
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=columns, fontsize="small")
    figure.suptitle(title)
    save(figure, file)
