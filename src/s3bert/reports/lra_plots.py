"""Plots of things trained alike: learning curves (the S3Attention paper's Figure 3), and accuracies of runs that have none."""

import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from s3bert.plots import save, subplots, wrapped

from .instability import plot_instability
from .published import DEFAULTS, published_curve


Run = Mapping[str, Any]
_FEWEST_POINTS = 3  # of a curve
_ROW, _LINE, _FRAME = 3.4, 0.24, 1.1  # inches: a row of curves, a line of dots, what stands around the lines


class _Line(NamedTuple):
    """A variant of a run: its name in the legend and its trials at the best setting, one for each seed."""

    name: str
    trials: Sequence[Mapping[str, Any]]


def plot_runs(file: Path, runs: Mapping[str, Run]) -> None:
    """Draws runs: those of one length and batch size that were evaluated often share a row of two panels, validation accuracy and loss by
    optimiser step, a thin line for each seed; of the others each has a panel of test accuracies, a dot for each seed. Runs of the
    instability have its scores; the accuracies of those of the incoherence say nothing."""
    measured = {name: run for name, run in runs.items() if run.get("comparison") == "instability"}
    curves = _groups({name: run for name, run in runs.items() if name not in measured})
    drawn = {name for group in curves.values() for name in group} | measured.keys()
    dots = [(name, run) for name, run in runs.items() if name not in drawn]
    dots = [entry for entry in dots if entry[1].get("comparison") != "incoherence"] or dots[: not drawn]
    pairs = [dots[place : place + 2] for place in range(0, len(dots), 2)]
    heights = [_ROW] * (len(curves) + len(measured))
    heights += [_FRAME + _LINE * max(len(_dotted(run)) for _, run in pair) for pair in pairs]
    figure, rows = subplots(
        len(heights), 2, figsize=(13, sum(heights) + 0.3), squeeze=False, gridspec_kw={"height_ratios": heights}
    )
    left = iter(rows)
    colours: dict[str, int] = {}
    for (length, batch_size), group in curves.items():
        title = f"{length:,} tokens, batches of {batch_size}" if len(runs) > 1 else next(iter(group))
        _plot_curves(next(left), title, group, colours)
    for name, run in measured.items():
        plot_instability(next(left), name, run["variants"])
    for pair in pairs:
        for axes, entry in itertools.zip_longest(next(left), pair):
            axes.set_visible(entry is not None)
            if entry:
                _plot_dots(axes, *entry)
    save(figure, file, dpi=110)


def _groups(runs: Mapping[str, Run]) -> dict[tuple[int, int], dict[str, Run]]:
    """Runs with curves by length and batch size. One trained thing that was evaluated twice stands beside such."""
    groups: dict[tuple[int, int], dict[str, Run]] = {}
    for least in (_FEWEST_POINTS, 2):
        for name, run in runs.items():
            key = run["length"], best_trials(run)[0]["batch_size"]
            alone = key in groups and len(run["variants"]) == 1 and len(_dotted(run)) == 1
            if _points(run) >= least and (least == _FEWEST_POINTS or alone):
                groups.setdefault(key, {})[name] = run
    return groups


def short_names(variants: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """For each label and result: the mixer with those settings that are neither its defaults nor shared by all of that mixer, if there are
    several; other labels as they are."""
    sets: dict[str, list[set[str]]] = {}
    for _, result in variants:
        if mixer := result.get("mixer"):
            sets.setdefault(mixer, []).append(set(_words(result)))
    names = []
    for label, result in variants:
        mixer = result.get("mixer")
        if not mixer or re.split("[:,]", label)[0] != mixer:
            names.append(label)
            continue
        shared = set.intersection(*sets[mixer]) if len(sets[mixer]) > 1 else set()
        settings = ",".join(word for word in _words(result) if word not in shared)
        noise = f", noise {result['noise']:g}" if ", noise " in label else ""
        names.append(f"{mixer}:{settings}{noise}" if settings else mixer + noise)
    return names


def _words(result: Mapping[str, Any]) -> list[str]:
    """A variant's settings that are not its mixer's defaults, as they are written."""
    defaults = DEFAULTS.get(result["mixer"], {})
    return [
        f"{name}={value}" for name, value in result["mixer_settings"].items() if (name, value) not in defaults.items()
    ]


def best_trials(run: Run) -> list[Mapping[str, Any]]:
    """All variants' trials, one for each seed, under each one's best setting."""
    return [trial for result in run["variants"].values() for trial in result["settings"][0]["trials"]]


def _points(run: Run) -> int:
    return max(sum("eval_accuracy" in record for record in trial["history"]) for trial in best_trials(run))


def _dotted(run: Run) -> list[tuple[str, Mapping[str, Any]]]:
    """A run's settings, each with its name."""
    names = short_names(list(run["variants"].items()))
    return [
        (f"{name}, {setting['name']}" if len(result["settings"]) > 1 else name, setting)
        for name, result in zip(names, run["variants"].values(), strict=True)
        for setting in result["settings"]
    ]


def _lines(group: Mapping[str, Run]) -> list[_Line]:
    """All variants of the runs; where runs share a name, it has the run's."""
    variants = [(run_name, *entry) for run_name, run in group.items() for entry in run["variants"].items()]
    names = short_names([entry for _, *entry in variants])
    return [
        _Line(f"{name} ({run_name})" if names.count(name) > 1 else name, result["settings"][0]["trials"])
        for name, (run_name, _, result) in zip(names, variants, strict=True)
    ]


def _plot_curves(panels: Sequence[Any], title: str, group: Mapping[str, Run], colours: dict[str, int]) -> None:
    """A line's colour is that of its name in every row; `colours` grows."""
    lines = _lines(group)
    last = max(trial["steps"] for line in lines for trial in line.trials)
    quantities = (("eval_accuracy", "validation accuracy (%)", 100), ("eval_loss", "validation loss (nats)", 1))
    for axes, (key, label, scale) in zip(panels, quantities, strict=True):
        for line in lines:
            number = colours.setdefault(line.name, len(colours))
            for place, trial in enumerate(line.trials):
                points = [(record["step"], scale * record[key]) for record in trial["history"] if key in record]
                style = {"color": f"C{number % 10}", "linewidth": 1, "marker": "o", "markersize": 2}
                if number > 9:  # there are ten colours
                    style |= {"linestyle": "--", "fillstyle": "none"}
                if points:
                    axes.plot(*zip(*points, strict=True), label=None if place else wrapped(line.name), **style)
        if key == "eval_accuracy" and (curve := authors_curve(group)):
            points = [(step, value) for step, value in curve.items() if step <= last]
            if points:
                axes.plot(*zip(*points, strict=True), "kx:", linewidth=1, label="the authors' S3, test")
                axes.legend(loc="lower right", fontsize="small", handles=axes.lines[-1:])
        axes.set(xlabel="optimiser steps", ylabel=label, xlim=(0, None), title=title)
        axes.grid(alpha=0.3)
    panels[1].legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize="small")


def _plot_dots(axes: Any, title: str, run: Run) -> None:
    dotted = _dotted(run)
    for row, (_, setting) in enumerate(dotted):
        metrics = [trial["metrics"] for trial in setting["trials"] if trial["metrics"]]
        values = [100 * each.get("test_accuracy", each["accuracy"]) for each in metrics]
        axes.plot(values, [row] * len(values), "o", color=f"C{row % 10}", alpha=0.7)
    axes.set(xlabel="test accuracy (%)", title=title, ylim=(len(dotted) - 0.5, -0.5))
    axes.set_yticks(range(len(dotted)), [wrapped(name, 40) for name, _ in dotted])
    axes.grid(alpha=0.3, axis="x")


def authors_curve(group: Mapping[str, Run]) -> Mapping[int, float]:
    """The authors' curve, where S3 is among the variants and all train with their batch size."""
    run = next(iter(group.values()))
    results = [result for each in group.values() for result in each["variants"].values()]
    sizes = {setting["trials"][0]["batch_size"] for result in results for setting in result["settings"]}
    if "task" not in run or "s3" not in {result.get("mixer") for result in results} or len(sizes) > 1:
        return {}
    return published_curve(run["task"], run["length"], *sizes)
