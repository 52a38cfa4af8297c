"""The plot of pretraining losses."""

from pathlib import Path
from typing import Any

from s3bert.plots import save, subplots


def plot_losses(
    file: Path, runs: dict[str, list[dict[str, Any]]], unigram_entropy: float | None = None, title: str = ""
) -> None:
    """Draws training (thin) and held-out losses (dots) in nats against optimiser steps, one colour a run.

    Args:
        file: the PNG. runs: records as `read_log` gives them, by the name to show.
        unigram_entropy: drawn as a dashed line, the loss of a model that knows only word frequencies.
    """
    figure, axes = subplots(figsize=(8, 4.5))
    for i, (name, records) in enumerate(runs.items()):
        colour = f"C{i}"
        training = [(record["step"], record["loss"]) for record in records if "loss" in record]
        held_out = [(record["step"], record["eval_loss"]) for record in records if "eval_loss" in record]
        if training:
            axes.plot(*zip(*training, strict=True), color=colour, linewidth=0.8, alpha=0.6, label=f"{name}, training")
        if held_out:
            axes.plot(*zip(*held_out, strict=True), color=colour, marker="o", markersize=3, label=f"{name}, held out")
    if unigram_entropy is not None:
        axes.axhline(unigram_entropy, color="grey", linestyle="--", linewidth=1, label="unigram entropy")
    axes.set(xlabel="optimiser steps", ylabel="loss (nats)", title=title)
    axes.legend()
    axes.grid(alpha=0.3)
    save(figure, file)
