"""The rank of attention matrices without their band: tables and a plot, after FMMformer's Figure 3.

A run is what `s3bert attention-rank` keeps in its `all_results.json`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from s3bert.files import table
from s3bert.plots import save, subplots


def rank_sections(runs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A section for each run, by name."""
    return [part for name, run in runs.items() for part in (f"## {name}", run["description"], *rank_tables(run))]


def rank_headline(runs: Mapping[str, Mapping[str, Any]]) -> tuple[str, str]:
    """Of the first run's trained model, the median ranks by bandwidth above the largest threshold."""
    run = next(iter(runs.values()))
    points = run["ranks"]["trained"]
    highest = max(point["threshold"] for point in points)
    found = [
        f"{np.median(point['ranks']):g} without a band of {point['bandwidth']}"
        for point in points
        if point["threshold"] == highest
    ]
    return (
        f"trained {run['model_type']}, {run['length']:,} tokens",
        f"median rank above {highest:g}: {', '.join(found)}",
    )


def rank_tables(run: Mapping[str, Any]) -> list[str]:
    """For the trained weights and for the first values a Markdown table: a row for each bandwidth, a column for each threshold."""
    parts = []
    for weights, points in run["ranks"].items():
        thresholds = list(dict.fromkeys(point["threshold"] for point in points))
        rows = []
        for bandwidth in dict.fromkeys(point["bandwidth"] for point in points):
            found = {point["threshold"]: point for point in points if point["bandwidth"] == bandwidth}
            most = found[thresholds[0]]["most"]
            rows.append(
                [str(bandwidth), str(most), *(_quartiles(found[threshold]["ranks"]) for threshold in thresholds)]
            )
        head = ["bandwidth", "largest there can be", *(f"above {threshold:g}" for threshold in thresholds)]
        parts += [f"{weights.capitalize()}, median rank (quartiles):", table(head, rows)]
    return parts


def _quartiles(ranks: Sequence[int]) -> str:
    lower, median, upper = np.percentile(ranks, (25, 50, 75))
    return f"{median:.0f} ({lower:.0f}-{upper:.0f})"


def plot_ranks(file: Path, runs: Mapping[str, Mapping[str, Any]]) -> None:
    """Histograms of the rank: a row of panels for each run's weights, a panel a threshold, a colour a bandwidth."""
    rows = [(name, weights, run, points) for name, run in runs.items() for weights, points in run["ranks"].items()]
    columns = max(len({point["threshold"] for point in points}) for *_, points in rows)
    figure, panels = subplots(len(rows), columns, figsize=(5 * columns + 1, 3 * len(rows)), squeeze=False)
    for row, (name, weights, run, points) in zip(panels, rows, strict=True):
        thresholds = dict.fromkeys(point["threshold"] for point in points)
        bins = np.linspace(0, run["length"], 41)
        for axes, threshold in zip(row, thresholds):
            for point in points:
                if point["threshold"] == threshold:
                    label = f"without a band of {point['bandwidth']}" if point["bandwidth"] else "whole"
                    axes.hist(point["ranks"], bins, histtype="stepfilled", alpha=0.5, label=label)
            axes.set(title=f"{name}, {weights}", xlabel=f"singular values above {threshold:g}", xlim=(0, run["length"]))
            axes.grid(alpha=0.3)
        row[0].set(ylabel="attention matrices")
        row[len(thresholds) - 1].legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize="small")
        for axes in row[len(thresholds) :]:
            axes.remove()
    save(figure, file, dpi=110)
