"""How far approximate attentions are from the matrix they stand for: a table and a plot, after Skyformer's Figure 1.

A run is what `s3bert approximation` keeps in its `all_results.json`.
"""

from collections.abc import Mapping
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from s3bert.files import table
from s3bert.plots import save, subplots


def approximation_sections(runs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A section for each run, by name."""
    return [
        part for name, run in runs.items() for part in (f"## {name}", run["description"], error_table(run["errors"]))
    ]


def approximation_headline(runs: Mapping[str, Mapping[str, Any]]) -> tuple[str, str]:
    """The longest length and largest sketch of the first run, and each approximation's error there."""
    errors = next(iter(runs.values()))["errors"]
    last = {name: max(points, key=lambda point: (point["length"], point["size"])) for name, points in errors.items()}
    found = [f"{name} {mean(point['errors']):.3g}" for name, point in last.items()]
    point = next(iter(last.values()))
    return f"{point['length']:,} tokens, sketch size {point['size']}", f"relative error: {', '.join(found)}"


def error_table(errors: Mapping[str, list[dict]]) -> str:
    """A Markdown table: a row for each approximation and length, a column for each size."""
    sizes = sorted({point["size"] for points in errors.values() for point in points})
    rows = []
    for name, points in errors.items():
        for length in sorted({point["length"] for point in points}):
            found = {point["size"]: point["errors"] for point in points if point["length"] == length}
            values = [f"{mean(found[size]):.3g}" if size in found else "" for size in sizes]
            rows.append([name, str(length), *values])
    return table(["", "tokens", *map(str, sizes)], rows)


def plot_approximation(file: Path, runs: Mapping[str, Mapping[str, Any]]) -> None:
    """Error against size: a row of panels a run, a panel an approximation, a line a length; bars are standard deviations over draws."""
    columns = max(len(run["errors"]) for run in runs.values())
    size = (3.6 * columns + 1, 4 * len(runs))
    figure, rows = subplots(len(runs), columns, figsize=size, sharey=True, squeeze=False)
    for panels, run in zip(rows, runs.values(), strict=True):
        for axes, (name, points) in zip(panels, run["errors"].items()):
            for length in sorted({point["length"] for point in points}):
                line = [point for point in points if point["length"] == length]
                bars = [stdev(point["errors"]) if len(point["errors"]) > 1 else 0.0 for point in line]
                axes.errorbar(
                    [point["size"] for point in line], [mean(point["errors"]) for point in line], bars, marker="o",
                    markersize=3, label=f"{length} tokens",
                )  # fmt: skip
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.set(xlabel="sketch size", title=name)
            axes.grid(alpha=0.3)
            axes.legend(fontsize="small")
        panels[0].set(ylabel="relative spectral-norm error")
    save(figure, file, dpi=110)
