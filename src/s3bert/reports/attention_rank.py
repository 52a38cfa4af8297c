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
        f"{point['bandwidth']}: {np.median(point['ranks']):.0f}" for point in points if point["threshold"] == highest
    ]
    setting = f"trained {run['model_type']}, {run['length']:,} tokens"
    return setting, f"median rank above {highest:g} by bandwidth: {', '.join(found)}"


def rank_tables(run: Mapping[str, Any]) -> list[str]:
    """For the trained weights and for the first values a Markdown table: a row for each bandwidth, a column for each threshold."""
    parts = []
    for weights, points in run["ranks"].items():
        thresholds, rows = _thresholds(points), []
        for bandwidth in dict.fromkeys(point["bandwidth"] for point in points):
            found = {point["threshold"]: point for point in points if point["bandwidth"] == bandwidth}
            most = found[thresholds[0]]["most"]
            rows.append(
                [str(bandwidth), str(most), *(_quartiles(found[threshold]["ranks"]) for threshold in thresholds)]
            )
        head = ["bandwidth", "largest there can be", *(f"above {threshold:g}" for threshold in thresholds)]
        parts += [f"{weights.capitalize()}, median rank (quartiles):", table(head, rows)]
    return parts


def _thresholds(points: Sequence[Mapping[str, Any]]) -> list[float]:
    return list(dict.fromkeys(point["threshold"] for point in points))


def _quartiles(ranks: Sequence[int]) -> str:
    lower, median, upper = np.percentile(ranks, (25, 50, 75))
    return f"{median:.0f} ({lower:.0f}-{upper:.0f})"


def plot_ranks(file: Path, runs: Mapping[str, Mapping[str, Any]]) -> None:
    """Rank against bandwidth: a row of panels for each run, a panel a threshold. Boxes are quartiles, whiskers reach to the least and the
    most, and a dash is the largest rank there can be."""
    columns = max(len(_thresholds(points)) for run in runs.values() for points in run["ranks"].values())
    figure, panels = subplots(len(runs), columns, figsize=(4 * columns + 2, 3.4 * len(runs)), squeeze=False)
    for row, (name, run) in zip(panels, runs.items(), strict=True):
        thresholds = _thresholds(run["ranks"]["trained"])
        for axes, threshold in zip(row, thresholds):
            boxes = {}
            for number, (weights, points) in enumerate(run["ranks"].items()):
                found = [point for point in points if point["threshold"] == threshold]
                color = {"color": f"C{number}"}
                drawn = axes.boxplot(
                    [point["ranks"] for point in found],
                    positions=np.arange(len(found)) + 0.36 * number,
                    widths=0.3,
                    whis=(0, 100),
                    patch_artist=True,
                    boxprops={"facecolor": f"C{number}", "edgecolor": f"C{number}", "alpha": 0.5},
                    medianprops=color | {"linewidth": 2},
                    whiskerprops=color,
                    capprops=color,
                )
                boxes[weights] = drawn["boxes"][0]
            places = np.arange(len(found)) + 0.18 * number
            largest = axes.hlines([point["most"] for point in found], places - 0.4, places + 0.4, "black", "--")
            boxes["largest there can be"] = largest
            axes.set_xticks(places, [str(point["bandwidth"]) for point in found])
            axes.set(
                title=name,
                xlabel="bandwidth",
                ylabel=f"singular values above {threshold:g}",
                ylim=(0, 1.05 * run["length"]),
            )
            axes.grid(alpha=0.3, axis="y")
        axes.legend(boxes.values(), boxes, loc="center left", bbox_to_anchor=(1, 0.5), fontsize="small")
        for axes in row[len(thresholds) :]:
            axes.remove()
    save(figure, file, dpi=110)
