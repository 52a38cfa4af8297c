"""Pretrainings side by side: held-out loss against tokens and against time.

A run is what `s3bert pretrain` keeps in its `all_results.json`, and its `log`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from s3bert.files import as_markdown, table
from s3bert.plots import save, subplots

from .losses import draw_held_out_losses


Runs = Mapping[str, Mapping[str, Any]]


def pretraining_sections(runs: Runs) -> list[str]:
    """A table with a row for each run."""
    head = ["run", "model", "started from", "teacher", "parameters", "learning rate", "steps", "tokens", "hours"]
    head += ["held-out loss", "under the unigram entropy"]
    rows = []
    for name, run in runs.items():
        given = run["arguments"]
        rows.append([
            name,
            as_markdown(_model(run)),
            as_markdown(_name(given.get("model_name_or_path")) or "random weights"),
            as_markdown(_name(given.get("teacher_name_or_path")) or "none"),
            f"{run['parameters'] / 1e6:.2f} M",
            f"{given['learning_rate']:g}",
            f"{run['train_steps']:,}",
            f"{run['train_tokens']:,}",
            f"{run['train_runtime'] / 3600:.2f}",
            f"{run['eval_loss']:.3f}",
            f"{run['unigram_entropy'] - run['eval_loss']:.3f}",
        ])  # fmt: skip
    texts = dict.fromkeys(f"{run['corpus']} ({run['unigram_entropy']:.3f})" for run in runs.values())
    parts = [
        f"Losses are in nats. Corpus, with the unigram entropy of its held-out tokens: {as_markdown(', '.join(texts))}."
    ]
    if len({run["unigram_entropy"] for run in runs.values()}) > 1:
        parts.append(
            "**The held-out tokens are not the same in all runs: losses on different ones are not to be compared.**"
        )
    return [*parts, table(head, rows)]


def pretraining_headline(runs: Runs) -> tuple[str, str]:
    """The most tokens of a run, and the held-out losses of all, the least first."""
    tokens = max(run["train_tokens"] for run in runs.values())
    ranked = sorted(runs, key=lambda name: runs[name]["eval_loss"])
    losses = ", ".join(f"{runs[name]['eval_loss']:.3f} (`{name}`)" for name in ranked)
    return f"up to {tokens:,} tokens a run", f"held-out loss {losses}"


def plot_pretrainings(file: Path, runs: Runs) -> None:
    """Held-out losses against tokens and against time; the dashed line is the first run's unigram entropy."""
    figure, (tokens, seconds) = subplots(1, 2, figsize=(12, 5))
    logs = {name: ({"color": f"C{number}"}, run["log"]) for number, (name, run) in enumerate(runs.items())}
    unigram = next(iter(runs.values()))["unigram_entropy"]
    draw_held_out_losses({"tokens": tokens, "seconds": seconds}, logs, unigram)
    save(figure, file, dpi=110)


def _model(run: Mapping[str, Any]) -> str:
    """What was trained, as the command line names it; a checkpoint is what it was."""
    given = run["arguments"]
    start = _name(given.get("config_name") or given.get("model_type")) or "as it was"
    changes = given.get("config_overrides")
    return start + (f", {changes}" if changes else "")


def _name(path: str | None) -> str:
    """Of a folder, a Hub id, a recipe or its file; "" of None."""
    named = Path(path or "")
    return named.stem if named.suffix == ".json" else named.name or path or ""
