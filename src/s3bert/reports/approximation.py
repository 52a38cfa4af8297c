"""How far approximate attentions are from softmax attention inside a model: tables and a plot, after Skyformer's Figure 1.

A run is what `s3bert approximation` keeps in its `all_results.json`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from s3bert.files import table
from s3bert.plots import save, subplots


def approximation_sections(runs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A section for each run, by name."""
    return [
        part for name, run in runs.items() for part in (f"## {name}", run["description"], *approximation_tables(run))
    ]


def approximation_headline(runs: Mapping[str, Mapping[str, Any]]) -> tuple[str, str]:
    """The longest length and largest size of the first run, and each approximation's error there with trained weights."""
    errors = next(iter(runs.values()))["errors"]["trained"]
    last = {name: max(points, key=lambda point: (point["length"], point["size"])) for name, points in errors.items()}
    found = [f"{name} {point['mean']:.3g}" for name, point in last.items()]
    point = next(iter(last.values()))
    return f"trained BERT, {point['length']:,} tokens, size {point['size']}", f"relative error: {', '.join(found)}"


def approximation_tables(run: Mapping[str, Any]) -> list[str]:
    """For the trained weights and for the first values a Markdown table: a row for each approximation and length, a column for each
    size."""
    parts = []
    for weights, errors in run["errors"].items():
        sizes = sorted({point["size"] for points in errors.values() for point in points})
        rows = []
        for name, points in errors.items():
            for length in sorted({point["length"] for point in points}):
                found = {point["size"]: point for point in points if point["length"] == length}
                cells = [
                    f"{found[size]['mean']:.3g} ± {found[size]['std']:.2g}" if size in found else "" for size in sizes
                ]
                rows.append([name, str(length), *cells])
        parts += [f"{weights.capitalize()}:", table(["", "tokens", *map(str, sizes)], rows)]
    return parts


def plot_approximation(file: Path, runs: Mapping[str, Mapping[str, Any]]) -> None:
    """Error against size: a row of panels for each run's weights, a panel a length, a line an approximation; bars are standard deviations."""
    rows = [(name, weights, errors) for name, run in runs.items() for weights, errors in run["errors"].items()]
    lengths = sorted({point["length"] for _, _, errors in rows for points in errors.values() for point in points})
    size = (4 * len(lengths) + 2, 3.4 * len(rows))
    figure, panels = subplots(len(rows), len(lengths), figsize=size, sharex=True, sharey="row", squeeze=False)
    for row, (name, weights, errors) in zip(panels, rows, strict=True):
        for axes, length in zip(row, lengths, strict=True):
            for approximation, points in errors.items():
                line = [point for point in points if point["length"] == length]
                values = ([point[key] for point in line] for key in ("size", "mean", "std"))
                axes.errorbar(*values, marker="o", markersize=3, linewidth=1, capsize=2, label=approximation)
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.set(title=f"{name}, {weights}, {length} tokens")
            axes.grid(alpha=0.3)
        lowest = min(point["mean"] for points in errors.values() for point in points)
        row[0].set(ylabel="relative spectral-norm error", ylim=(lowest / 2, None))  # some bars reach below 0
        row[-1].legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize="small")
    for axes in panels[-1]:
        axes.set(xlabel="landmarks, features or rows")
    save(figure, file, dpi=110)
