"""Perplexity of a text under a language model: a table, and the loss by tokens of context.

A run is what `s3bert eval-perplexity` keeps in its `all_results.json`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from s3bert.files import table
from s3bert.plots import save, subplots


Run = Mapping[str, Any]


def perplexity_tables(run: Run) -> list[str]:
    """Markdown: the measures of a text, and the loss by context."""
    interval = run["perplexity_interval"]
    measures = {
        "perplexity": f"{run['perplexity']:.2f}",
        "95% interval over documents": f"{interval[0]:.2f} to {interval[1]:.2f}" if interval else "",
        "loss, nats per token": f"{run['loss']:.4f}",
        "bits per byte": f"{run['bits_per_byte']:.4f}",
        "tokens": f"{run['tokens']:,}",
        "documents": f"{run['documents']:,}",
    }
    rows = [[span_in_words(entry), f"{entry['tokens']:,}", f"{entry['loss']:.4f}"] for entry in run["loss_by_context"]]
    first = table(["measure", "value"], [[name, value] for name, value in measures.items() if value])
    return [first, table(["tokens of context", "tokens", "loss"], rows)]


def plot_loss_by_context(file: Path, runs: Mapping[str, Run]) -> None:
    """Mean loss against tokens of context, a line a run, a dot at the middle of each span of contexts."""
    figure, axes = subplots(figsize=(7, 4.5))
    for name, run in runs.items():
        entries = run["loss_by_context"]
        middles = [span_middle(entry) for entry in entries]
        axes.plot(middles, [entry["loss"] for entry in entries], marker="o", markersize=4, label=name)
    axes.set_xscale("log", base=2)
    axes.set(xlabel="tokens of context", ylabel="loss (nats per token)")
    axes.legend()
    axes.grid(alpha=0.3)
    save(figure, file)


def span_in_words(span: Mapping[str, Any]) -> str:
    """A span of contexts, as `losses_by_context` gives it: "4 to 7" tokens."""
    least, most = span["least"], span["most"]
    return f"{least}" if least == most else f"{least} to {most}"


def span_middle(span: Mapping[str, Any]) -> float:
    """Where a span of contexts is drawn on an axis of logarithms, in tokens."""
    return (span["least"] * span["most"]) ** 0.5
