"""Kinds of causal attention as language models: perplexities beside FMMformer's Table 2, differences with intervals, loss by context.

A run is what `s3bert compare-clm` keeps in its `all_results.json`.
"""

from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Any

from s3bert.files import table
from s3bert.plots import save, subplots
from s3bert.training.processes import process_state

from .perplexity import span_in_words, span_middle
from .published import PERPLEXITIES
from .run_files import write_run


Run = Mapping[str, Any]

_PAPER = (
    "The paper's numbers are those of WikiText-103's validation split: 16 layers, 50 times the text, windows that slide by one token. "
    "Their order may be compared, and no more."
)


def write_report(folder: Path, what: Run, attentions: Mapping[str, Any], wanted: int, *arguments: Any) -> None:
    """Writes, in the main process, a run's `results.md`, `losses.png`, `all_results.json` and `arguments.yaml`.

    Args:
        what: `title`, `description` and `bandwidth`. attentions: by name, as `causal_comparison.compared` leaves them. wanted: how many there
            will be.
    """
    if not process_state().is_main_process:
        return
    run = {**what, "complete": len(attentions) == wanted, "attentions": attentions}
    plot_causal(folder / "losses.png", {run["title"]: run})
    write_run(folder, run, _parts(run), *arguments)


def causal_sections(runs: Mapping[str, Run]) -> list[str]:
    """A section for each run, by name."""
    sections = []
    for name, run in runs.items():
        sections += [f"## {name}", *_parts(run)]
    return sections


def causal_headline(runs: Mapping[str, Run]) -> tuple[str, str]:
    """The setting, and the order of perplexities of the last run."""
    name, run = list(runs.items())[-1]
    trials = [trial for result in run["attentions"].values() for trial in result["settings"][0]["trials"]]
    order = ", ".join(f"{kind} {run['attentions'][kind]['perplexity']:.1f}" for kind in _ranked(run))
    return f"{max(trial['steps'] for trial in trials):,} steps", f"perplexity: {order} (`{name}`)"


def _parts(run: Run) -> list[str]:
    parts = [run["description"], perplexity_table(run)]
    if _has_papers_band(run):
        parts.append(_PAPER)
    return [*parts, "Loss in nats, by tokens of context in segments that are read alone:", context_table(run)]


def _ranked(run: Run) -> list[str]:
    """The kinds of attention, the least perplexity first."""
    return sorted(run["attentions"], key=lambda name: run["attentions"][name]["perplexity"])


def _has_papers_band(run: Run) -> bool:
    return run["bandwidth"] == 20


def perplexity_table(run: Run) -> str:
    """A Markdown table, the best first: perplexity with its interval, and the difference in loss to the next better and to softmax attention."""
    results, order = run["attentions"], _ranked(run)
    head = ["", "parameters", "perplexity", "loss against the row above", "loss against softmax", "seeds"]
    head += ["published"] if _has_papers_band(run) else []
    rows = []
    for place, name in enumerate(order):
        result = results[name]
        low, high = result["interval"]
        above = _difference(result["against"][order[place - 1]]) if place else ""
        softmax = _difference(result["against"]["softmax"]) if "softmax" in result["against"] else ""
        row = [
            name,
            f"{result['parameters']:,}",
            f"{result['perplexity']:.2f} ({low:.2f} to {high:.2f})",
            above,
            softmax,
        ]
        row.append(str(result["num_seeds"]))
        row += [f"{PERPLEXITIES[name][0]:.2f}"] if _has_papers_band(run) else []
        rows.append(row)
    return table(head, rows)


def _difference(interval: list[float]) -> str:
    found, low, high = interval
    return f"{found:+.4f} ({low:+.4f} to {high:+.4f})"


def context_table(run: Run) -> str:
    """A Markdown table of losses, a column for each kind of attention, the best first."""
    order = _ranked(run)
    spans = run["attentions"][order[0]]["loss_by_context"]
    rows = []
    for place, span in enumerate(spans):
        losses = [run["attentions"][name]["loss_by_context"][place]["loss"] for name in order]
        rows.append([span_in_words(span), *(f"{loss:.3f}" for loss in losses)])
    return table(["tokens of context", *order], rows)


def plot_causal(file: Path, runs: Mapping[str, Run]) -> None:
    """Draws a row of panels a run: held-out loss against optimiser steps, and against tokens of context as a difference to softmax attention, or to
    the best where there is none; a colour for each kind."""
    figure, rows = subplots(len(runs), 2, figsize=(13, 4.2 * len(runs) + 0.4), squeeze=False)
    for (curves, contexts), (title, run) in zip(rows, runs.items(), strict=True):
        order = _ranked(run)
        base = "softmax" if "softmax" in order else order[0]
        baseline = [entry["loss"] for entry in run["attentions"][base]["loss_by_context"]]
        for number, name in enumerate(order):
            result = run["attentions"][name]
            steps: dict[int, list[float]] = {}
            for trial in result["settings"][0]["trials"]:
                for record in trial["history"]:
                    steps.setdefault(record["step"], []).append(record["eval_loss"])
            style = {"color": f"C{number}", "marker": "o", "markersize": 3, "linewidth": 1.2}
            curves.plot(list(steps), [mean(losses) for losses in steps.values()], label=name, **style)
            entries = result["loss_by_context"]
            middles = [span_middle(entry) for entry in entries]
            differences = [entry["loss"] - other for entry, other in zip(entries, baseline, strict=True)]
            contexts.plot(middles, differences, label=name, **style)
        curves.set(xlabel="optimiser steps", ylabel="held-out loss (nats)", title=title)
        contexts.set_xscale("log", base=2)
        contexts.axvline(run["bandwidth"], color="gray", linestyle=":", linewidth=1)
        contexts.set(xlabel="tokens of context (dotted: the band)", ylabel=f"loss against {base} (nats)")
        contexts.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize="small")
        for axes in (curves, contexts):
            axes.grid(alpha=0.3)
    save(figure, file, dpi=110)
