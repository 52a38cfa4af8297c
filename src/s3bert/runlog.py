"""A run's own log: one JSON object a line, exact across kills and resumes, and the picture of its losses."""

import json
from pathlib import Path
from typing import Any

import matplotlib


matplotlib.use("Agg")
import matplotlib.pyplot as plt

from .files import replacing, write_text


def read_log(file: Path) -> list[dict[str, Any]]:
    """The records of a log, in order; a last line torn by a kill is left out."""
    records = []
    if file.exists():
        for line in file.read_text(encoding="utf-8").splitlines():
            try:
                records.append(json.loads(line))
            except json.JSONDecodeError:
                break
    return records


class RunLog:
    """Appends records to `log.jsonl`; records after the step a run resumes from are dropped first.

    Args:
        file: the log. last_step: number of optimiser steps already done; later records are of a run that was cut off.
        enabled: False on all processes but the main one.
    """

    def __init__(self, file: Path, last_step: int, enabled: bool = True):
        self.file = file
        self.records = [record for record in read_log(file) if record["step"] <= last_step]
        self.enabled = enabled
        if enabled:
            write_text(file, "".join(json.dumps(record) + "\n" for record in self.records))

    def write(self, record: dict[str, Any]) -> None:
        """Adds a record, which carries its "step"."""
        self.records.append(record)
        if self.enabled:
            with self.file.open("a", encoding="utf-8") as log:
                log.write(json.dumps(record) + "\n")


def plot_losses(
    file: Path, runs: dict[str, list[dict[str, Any]]], unigram_entropy: float | None = None, title: str = ""
) -> None:
    """Draws training (thin) and held-out losses (dots) in nats against optimiser steps, one colour a run.

    Args:
        file: the PNG. runs: records as `read_log` gives them, by the name to show.
        unigram_entropy: drawn as a dashed line, the loss of a model that knows only word frequencies.
    """
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
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
    with replacing(file) as aside:
        figure.savefig(aside, dpi=150, format="png")
    plt.close(figure)
