"""Plots of pretraining losses."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from s3bert.plots import save, subplots, wrapped


# What held-out losses are drawn against: of a log's records, with its unit.
_ACROSS = {
    "step": ("optimiser steps", 1.0),
    "tokens": ("million tokens", 1e6),
    "seconds": ("minutes of training", 60.0),
}


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


def draw_held_out_losses(
    panels: Mapping[str, Any],
    logs: Mapping[str, tuple[Mapping[str, Any], list[dict[str, Any]]]],
    unigram_entropy: float,
) -> None:
    """Draws several runs' held-out losses side by side.

    Args:
        panels: axes by what they are drawn against, "step", "tokens" or "seconds". logs: records as `read_log` gives them, each with the
            style of its line, by the label to show.
    """
    for label, (style, records) in logs.items():
        points, reached = [], dict.fromkeys(_ACROSS, 0.0)
        for record in records:
            if "eval_loss" in record:  # it may come some steps after the last record of training
                further = record["step"] / reached["step"] if reached["step"] else 1.0
                here = {name: value * further for name, value in reached.items()}
                points.append(here | {"step": record["step"], "eval_loss": record["eval_loss"]})
            else:
                reached |= {name: record[name] for name in _ACROSS if name in record}
        for name, axes in panels.items():
            line = [(point[name] / _ACROSS[name][1], point["eval_loss"]) for point in points]
            axes.plot(*zip(*line), marker="o", markersize=3, label=wrapped(label, 45), **style)
    for name, axes in panels.items():
        axes.axhline(unigram_entropy, color="grey", linestyle="--", linewidth=1, label="unigram entropy")
        axes.set(xlabel=_ACROSS[name][0], ylabel="held-out loss (nats)")
        axes.grid(alpha=0.3)
    first = next(iter(panels.values()))
    if max(map(len, logs)) < 40:
        first.legend(fontsize="small")
    else:  # it would lie on the curves
        first.figure.legend(*first.get_legend_handles_labels(), fontsize="small", loc="outside lower center", ncols=3)
