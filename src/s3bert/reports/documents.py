"""Classifiers of documents: accuracy against the tokens that are read and against milliseconds per document.

A run is what `s3bert finetune` keeps in its `all_results.json`.
"""

from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Any

from matplotlib.ticker import LogFormatter

from s3bert.files import as_markdown, mean_and_deviation, table
from s3bert.plots import save, subplots


Run = Mapping[str, Any]


def document_sections(runs: Mapping[str, Run]) -> list[str]:
    """A table with a row for each run: of the test documents where all runs have them, else of the held-out ones."""
    split = _split(runs)
    head = ["run", "model", "tokens read", "accuracy", "macro F1", "ms per document", "documents cut", "seeds"]
    rows = [
        [
            name,
            as_markdown(_reader(run)),
            f"{run['max_seq_length']:,}",
            mean_and_deviation([100 * value for value in _values(run, split, "accuracy")], ".2f"),
            mean_and_deviation([100 * value for value in _values(run, split, "macro_f1")], ".2f"),
            mean_and_deviation([1000 * value for value in _values(run, split, "seconds_per_document")], ".1f"),
            f"{run['documents_cut'][split]:,} of {run['samples'][split]:,}",
            str(run["num_seeds"]),
        ]
        for name, run in runs.items()
    ]
    of = f"Of the {split} documents; mean ± deviation over the seeds of the best setting. Milliseconds are of inference, in batches."
    measured = {(run["samples"][split], run.get("crc32", {}).get(split)) for run in runs.values()}
    told = "**The runs are not measured on the same documents: their accuracies are not to be compared.**"
    return [of, *[told] * (len(measured) > 1), table(head, rows)]


def document_headline(runs: Mapping[str, Run]) -> tuple[str, str]:
    """The lengths, and the best accuracy of each model."""
    split, best = _split(runs), {}
    for run in runs.values():
        found = (mean(_values(run, split, "accuracy")), run["max_seq_length"])
        best[_reader(run)] = max(best.get(_reader(run), found), found)
    lengths = sorted({run["max_seq_length"] for run in runs.values()})
    told = ", ".join(f"{as_markdown(name)} {100 * score:.2f} ({length:,})" for name, (score, length) in best.items())
    return f"{lengths[0]:,} to {lengths[-1]:,} tokens", f"best accuracy (tokens): {told}"


def plot_accuracies(file: Path, runs: Mapping[str, Run]) -> None:
    """Accuracy against tokens read, and against milliseconds per document; a line for each model, a dot for each seed."""
    split = _split(runs)
    readers: dict[str, list[Run]] = {}
    for run in runs.values():
        readers.setdefault(_reader(run), []).append(run)
    figure, (lengths, times) = subplots(1, 2, figsize=(12, 4.4), sharey=True)
    for number, (name, group) in enumerate(readers.items()):
        group = sorted(group, key=lambda run: run["max_seq_length"])
        scores = [[100 * value for value in _values(run, split, "accuracy")] for run in group]
        took = [1000 * mean(_values(run, split, "seconds_per_document")) for run in group]
        for axes, places in ((lengths, [run["max_seq_length"] for run in group]), (times, took)):
            axes.plot(places, [mean(each) for each in scores], color=f"C{number}", marker="o", markersize=4, label=name)
            for place, each in zip(places, scores, strict=True):
                axes.plot([place] * len(each), each, ".", color=f"C{number}", alpha=0.4)
    ticks = sorted({run["max_seq_length"] for run in runs.values()})
    lengths.set_xscale("log", base=2)
    lengths.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    lengths.set(xlabel="tokens read of a document", ylabel=f"accuracy on {split} documents (%)")
    times.set_xscale("log")
    for which in (times.xaxis.set_major_formatter, times.xaxis.set_minor_formatter):
        which(LogFormatter())
    times.set(xlabel="milliseconds per document, in inference")
    times.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize="small")
    for axes in (lengths, times):
        axes.grid(alpha=0.3)
    save(figure, file, dpi=110)


def _split(runs: Mapping[str, Run]) -> str:
    return "test" if all("eval_test_accuracy" in run for run in runs.values()) else "validation"


def _reader(run: Run) -> str:
    """Which model read, and how."""
    name, _, finetuned = run["started_from"].partition(" (")
    windows = f", windows of {run['sliding_window']:,}" if run["sliding_window"] else ""
    return Path(name).name + (f" ({finetuned}" if finetuned else "") + windows


def _values(run: Run, split: str, metric: str) -> list[float]:
    """A metric of each seed of the best setting."""
    prefix = "test_" if split == "test" else ""
    return [trial["metrics"][prefix + metric] for trial in run["settings"][0]["trials"] if trial["score"] is not None]
