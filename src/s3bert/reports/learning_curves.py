"""The plot of a finetuning: losses and a metric against steps."""

from pathlib import Path
from typing import Any

from s3bert.plots import save, subplots


def plot_learning_curves(file: Path, runs: dict[str, list[dict[str, Any]]], metric: str) -> None:
    """Draws training (thin) and held-out losses (dots) beside a held-out metric, against optimiser steps, one colour a run.

    Args:
        file: the PNG. runs: records as `read_log` gives them, by the name to show. metric: its name without `eval_`.
    """
    figure, (losses, scores) = subplots(1, 2, figsize=(11, 4.5))
    for i, (name, records) in enumerate(runs.items()):
        colour = f"C{i % 10}"
        for axes, key, style in (
            (losses, "loss", {"linewidth": 0.8, "alpha": 0.6}),
            (losses, "eval_loss", {"marker": "o", "markersize": 3}),
            (scores, f"eval_{metric}", {"marker": "o", "markersize": 3, "label": name}),
        ):
            points = [(record["step"], record[key]) for record in records if key in record]
            if points:
                axes.plot(*zip(*points, strict=True), color=colour, **style)
    losses.set(xlabel="optimiser steps", ylabel="loss (nats): training thin, held out dotted")
    scores.set(xlabel="optimiser steps", ylabel=f"{metric}, held out")
    if len(runs) <= 10:
        scores.legend()
    for axes in (losses, scores):
        axes.grid(alpha=0.3)
    save(figure, file)
