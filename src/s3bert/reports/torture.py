"""The campaign of faults, fuzzing and load (`make torture`): what was tried, what held, and what was lost."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from s3bert.files import as_markdown, table
from s3bert.plots import save, subplots


def torture_sections(runs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A section for each run, by name: a row for each class of faults, and what was lost."""
    parts = []
    for name, run in runs.items():
        machine = run["machine"]
        parts += [f"## {name}", f"{run['minutes']:g} minutes on {machine['processor']}, torch {machine['torch']}."]
        rows = [[each["class"], f"{each['tries']:,}", f"{each['held']:,}", f"{_lost(each):,}"] for each in run["tries"]]
        parts.append(table(["class", "tries", "held", "lost"], [*rows, ["all", *(f"{n:,}" for n in _totals(run))]]))
        if lost := [f"- {as_markdown(line)}" for each in run["tries"] for line in each["lost"]]:
            parts += ["Lost:", "\n".join(lost)]
    return parts


def torture_headline(runs: Mapping[str, Mapping[str, Any]]) -> tuple[str, str]:
    """The number of classes, tries and losses of all runs."""
    tries, _, lost = (sum(numbers) for numbers in zip(*map(_totals, runs.values())))
    classes = {each["class"] for run in runs.values() for each in run["tries"]}
    return f"{len(classes)} classes of faults, values, files and load", f"{tries:,} tries, {lost:,} lost"


def plot_tries(file: Path, runs: Mapping[str, Mapping[str, Any]]) -> None:
    """How often each class was tried, and how often it was lost; a panel for each run."""
    heights = [len(run["tries"]) for run in runs.values()]
    size = (8, 0.32 * sum(heights) + 0.8 * len(runs))
    figure, panels = subplots(len(runs), figsize=size, sharex=True, squeeze=False, height_ratios=heights)
    for axes, (name, run) in zip(panels[:, 0], runs.items()):
        tried = run["tries"][::-1]
        names = [each["class"] for each in tried]
        axes.barh(names, [each["tries"] for each in tried], color="tab:green", label="tries")
        axes.barh(names, [_lost(each) for each in tried], color="tab:red", label="lost")
        axes.set_xscale("symlog")
        axes.set_title(name, fontsize="medium")
    axes.set(xlabel="tries")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower left", fontsize="small")
    save(figure, file, dpi=110)


def _lost(tried: Mapping[str, Any]) -> int:
    return tried["tries"] - tried["held"]


def _totals(run: Mapping[str, Any]) -> tuple[int, int, int]:
    """Tries, and how many of them held and were lost."""
    tries, held = (sum(each[key] for each in run["tries"]) for key in ("tries", "held"))
    return tries, held, tries - held
