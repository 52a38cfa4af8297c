"""Scores of GLUE: those of several models beside one another, with their spread over seeds.

A run is what `s3bert glue` keeps in its `all_results.json`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from scipy.stats import t as student_t

from s3bert.files import as_markdown, mean_and_deviation, table
from s3bert.plots import save, subplots, wrapped
from s3bert.tasks.glue import GLUE_TASKS, TABLE_3


Run = Mapping[str, Any]
Scores = Mapping[str, Mapping[str, list[float]]]  # each seed's, in the order of the seeds, by model and task


def average_name(tasks: Sequence[str]) -> str:
    """What a mean over tasks is called: the paper's "average" is that of all eight and no other."""
    return "average" if set(tasks) == set(TABLE_3) else f"mean of {len(tasks)}: {', '.join(tasks)}"


def results_by_task(results: Run) -> dict[str, Run]:
    """What `s3bert glue` found, of one task or of several; {} of a run without results."""
    return dict(results.get("tasks", {results["task"]: results} if "task" in results else {}))


def seed_scores(scores: Run) -> dict[str, Any]:
    """What a task's results by `s3bert glue` say of the best setting: each seed's score, in the order of the seeds, and the
    mean over seeds of each metric."""
    best = scores["settings"][0]
    trials = sorted(best["trials"], key=lambda trial: trial["seed"])
    metrics = {name: mean(trial["metrics"][name] for trial in trials) for name in GLUE_TASKS[scores["task"]].metrics}
    return {"setting": best["name"], "seeds": [trial["score"] for trial in trials], "metrics": metrics}


def seed_averages(scores: Mapping[str, list[float]]) -> list[float]:
    """The mean over tasks for each seed, of scores by task in the order of the seeds."""
    return [mean(of_seed) for of_seed in zip(*scores.values(), strict=True)]


def score_in_words(values: list[float]) -> str:
    """Mean and deviation in points of a hundred."""
    return mean_and_deviation([100 * value for value in values], ".2f")


def interval(ours: list[float], theirs: list[float]) -> tuple[float, float | None]:
    """The difference of two means over seeds in points of a hundred, and half the width of its 95% interval; None with one seed.

    Student's t, at one degree of freedom less than the fewer seeds, times the standard error of the difference.
    """
    difference = 100 * (mean(ours) - mean(theirs))
    if min(len(ours), len(theirs)) < 2:
        return difference, None
    quantile = student_t.ppf(0.975, df=min(len(ours), len(theirs)) - 1)
    return difference, 100 * quantile * (stdev(ours) ** 2 / len(ours) + stdev(theirs) ** 2 / len(theirs)) ** 0.5


def difference_in_words(ours: list[float], theirs: list[float]) -> str:
    """`interval` in words."""
    difference, spread = interval(ours, theirs)
    return f"{difference:+.2f}" + ("" if spread is None else f" ± {spread:.2f}")


def verdict(name: str, other: str, ours: list[float], theirs: list[float]) -> str:
    """What may be said of two models' averages over seeds: a difference counts when its interval leaves out none."""
    difference, spread = interval(ours, theirs)
    if spread is None:
        return f"{name} and {other} differ by {difference:+.2f} points, with one seed: no spread, no verdict."
    if abs(difference) <= spread:
        return f"{name} and {other} differ by {difference:+.2f} points, within the spread of {spread:.2f}: no difference is shown."
    side = "ahead of" if difference > 0 else "behind"
    return f"{name} is {side} {other} by {abs(difference):.2f} points (spread {spread:.2f})."


def scores_table(scores: Scores, more: Sequence[list[str]] = ()) -> str:
    """A row for each model: mean and deviation over seeds of each task and of their mean; then `more` rows."""
    tasks = list(next(iter(scores.values())))
    rows = [
        [model, *map(score_in_words, (*by_task.values(), seed_averages(by_task)))] for model, by_task in scores.items()
    ]
    return table(["", *tasks, average_name(tasks)], [*rows, *more])


def draw_scores(axes: Any, scores: Scores, untrained: Mapping[str, str] | None = None) -> None:
    """Bars of the tasks' scores and of their mean, with standard deviations over seeds, a colour a model. `untrained` are rows without
    pretraining, each with the model whose bar they lie over as a black line."""
    untrained = untrained or {}
    bars = [model for model in scores if model not in untrained]
    groups = [*next(iter(scores.values())), "mean"]
    values = {model: [*by_task.values(), seed_averages(by_task)] for model, by_task in scores.items()}
    heights = {model: [100 * mean(group) for group in of_model] for model, of_model in values.items()}
    width = 0.8 / len(bars)
    places = {
        model: [place + (number - (len(bars) - 1) / 2) * width for place in range(len(groups))]
        for number, model in enumerate(bars)
    }
    for number, model in enumerate(bars):
        errors = [100 * stdev(group) if len(group) > 1 else 0 for group in values[model]]
        look = {"color": f"C{number % 10}", "label": wrapped(model, 45)}
        axes.bar(places[model], heights[model], 0.9 * width, yerr=errors, error_kw={"linewidth": 1}, **look)
    for number, (name, model) in enumerate(untrained.items()):
        left, right = ([place + side * 0.45 * width for place in places[model]] for side in (-1, 1))
        label = None if number else "without pretraining"
        axes.hlines(heights[name], left, right, color="black", linewidth=2, label=label)
    axes.set_xticks(range(len(groups)), groups)
    axes.set(ylabel="score x 100")
    legend = sorted(zip(*axes.get_legend_handles_labels()), key=lambda entry: entry[1] == "without pretraining")
    columns = min(6, len(legend))
    axes.legend(*zip(*legend), ncols=columns, loc="lower center", bbox_to_anchor=(0.5, 1), fontsize="small")
    axes.grid(axis="y", alpha=0.3)


def glue_sections(runs: Mapping[str, Run]) -> list[str]:
    """A row for each run, then what each has more than the first one with the 95% interval of that."""
    scores = _scores(runs)
    (first, base), *others = scores.items()
    differences = [
        [f"{name} - {first}", *(difference_in_words(by_task[task], base[task]) for task in base)]
        for name, by_task in others
    ]
    for row, (_, by_task) in zip(differences, others, strict=True):
        row.append(difference_in_words(seed_averages(by_task), seed_averages(base)))
    started = [
        f"- {name}: {as_markdown(next(iter(results_by_task(run).values()))['started_from'])}"
        for name, run in runs.items()
    ]
    notes: dict[str, list[str]] = {}  # the runs that each is of
    for name, run in runs.items():
        for task, result in results_by_task(run).items():
            for note in result["not_the_official_data"]:
                notes.setdefault(f"{task}: {note}", []).append(name)
    sections = [
        "Scores x 100 on development sets; mean ± deviation over the seeds of the best setting. A difference has its 95% interval.",
        scores_table(scores, differences),
        "Started from:\n\n" + "\n".join(started),
    ]
    told = [f"- {note}" + f" ({', '.join(of)})" * (len(of) < len(runs)) for note, of in notes.items()]
    return sections + ["Not the official data:\n\n" + "\n".join(told)] * bool(told)


def glue_headline(runs: Mapping[str, Run]) -> tuple[str, str]:
    """The tasks, and each run's mean over them."""
    scores = _scores(runs)
    means = ", ".join(f"{name} {score_in_words(seed_averages(by_task))}" for name, by_task in scores.items())
    return ", ".join(next(iter(scores.values()))), f"mean of tasks: {means}"


def plot_glue(file: Path, runs: Mapping[str, Run]) -> None:
    """Bars of every task's scores."""
    figure, axes = subplots(figsize=(10, 4.4))
    draw_scores(axes, _scores(runs))
    save(figure, file, dpi=110)


def _scores(runs: Mapping[str, Run]) -> dict[str, dict[str, list[float]]]:
    """
    Raises:
        ValueError: the runs are not of the same tasks.
    """
    found = {
        name: {task: seed_scores(result)["seeds"] for task, result in results_by_task(run).items()}
        for name, run in runs.items()
    }
    first, *others = found
    for other in others:
        if found[other].keys() != found[first].keys():
            raise ValueError(
                f"{first} has scores of {', '.join(found[first])}, {other} of {', '.join(found[other])}: finetune both on the same tasks."
            )
    return {name: {task: by_task[task] for task in found[first]} for name, by_task in found.items()}
