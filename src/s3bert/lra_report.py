"""What Long Range Arena runs gave: a table of accuracies, and learning curves (the S3Attention paper's Figure 3)."""

from collections.abc import Mapping
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import matplotlib


matplotlib.use("Agg")
import matplotlib.pyplot as plt

from .files import replacing


def lra_table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """A Markdown table of all arms and settings: accuracies times 100, mean and standard deviation over seeds.

    Args:
        results: by arm, as `grid.grid_results` gives them; cells' metrics hold `test_accuracy`.
    """
    lines = ["| | setting | test accuracy | seeds | validation accuracy |", "|---|---|---|---|---|"]
    for name, result in results.items():
        for setting in result["settings"]:
            cells = [cell["metrics"] for cell in setting["cells"] if cell["metrics"]]
            tests, validations = ([100 * metrics[key] for metrics in cells] for key in ("test_accuracy", "accuracy"))
            each = ", ".join(f"{value:.2f}" for value in tests)
            lines.append(f"| {name} | {setting['name']} | {_spread(tests)} | {each} | {_spread(validations)} |")
    return "\n".join(lines)


def _spread(values: list[float]) -> str:
    if not values:
        return "failed"
    return f"{mean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


def plot_learning_curves(file: Path, results: Mapping[str, Mapping[str, Any]], title: str) -> None:
    """Draws validation accuracy and loss against optimiser steps: a colour an arm, a thin line a seed of its best setting."""
    figure, panels = plt.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
    for axes, (key, label, scale) in zip(
        panels,
        (("eval_accuracy", "validation accuracy (%)", 100), ("eval_loss", "validation loss (nats)", 1)),
        strict=True,
    ):
        for number, (name, result) in enumerate(results.items()):
            for place, cell in enumerate(result["settings"][0]["cells"]):
                points = [(record["step"], scale * record[key]) for record in cell["history"] if key in record]
                if points:
                    axes.plot(*zip(*points, strict=True), color=f"C{number}", linewidth=1, marker="o", markersize=2,
                              label=name if place == 0 else None)  # fmt: skip
        axes.set(xlabel="optimiser steps", ylabel=label)
        axes.grid(alpha=0.3)
    panels[1].legend(fontsize="small")
    figure.suptitle(title)
    with replacing(file) as aside:
        figure.savefig(aside, dpi=150, format="png")
    plt.close(figure)
