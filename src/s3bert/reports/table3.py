"""The paper's Table 3 under one budget: BERT, FNet, PoNet and S3BERT pretrained and finetuned alike.

`results` is what `s3bert table3` keeps in its `results.json`.
"""

import itertools
from collections.abc import Mapping
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from scipy.stats import t as student_t

from s3bert.files import file_name, mean_and_deviation, table
from s3bert.plots import save, subplots
from s3bert.tasks.glue import GLUE_TASKS, TABLE_3, glue_dataset

from .model_card import Metric, write_model_card
from .published import GLUE_SCORES


PLATEAU = 1.5  # nats under the unigram entropy that BERT has to be, or it has learnt little more than word frequencies


def average_name(tasks: list[str]) -> str:
    """What a mean over tasks is called: the paper's "average" is that of all eight and no other."""
    return "average" if set(tasks) == set(TABLE_3) else f"mean of {len(tasks)}: {', '.join(tasks)}"


def seed_scores(scores: Mapping[str, Any]) -> dict[str, Any]:
    """What a task's results by `s3bert glue` say of the best setting: each seed's score, in the order of the seeds, and the
    mean over seeds of each metric."""
    best = scores["settings"][0]
    trials = sorted(best["trials"], key=lambda trial: trial["seed"])
    metrics = {name: mean(trial["metrics"][name] for trial in trials) for name in GLUE_TASKS[scores["task"]].metrics}
    return {"setting": best["name"], "seeds": [trial["score"] for trial in trials], "metrics": metrics}


def seed_averages(scores: Mapping[str, list[float]]) -> list[float]:
    """The mean over tasks for each seed, of scores by task in the order of the seeds."""
    return [mean(of_seed) for of_seed in zip(*scores.values(), strict=True)]


def verdict(name: str, other: str, ours: list[float], theirs: list[float]) -> str:
    """What may be said of two models' averages over seeds, in points of a hundred.

    A difference counts when it leaves the 95% interval around none: Student's t, at one degree of freedom less than the
    fewer seeds, times the standard error of the difference of the two means. With one seed there is nothing to say.
    """
    difference = 100 * (mean(ours) - mean(theirs))
    if min(len(ours), len(theirs)) < 2:
        return f"{name} and {other} differ by {difference:+.2f} points, with one seed: no spread, no verdict."
    quantile = student_t.ppf(0.975, df=min(len(ours), len(theirs)) - 1)
    spread = 100 * quantile * (stdev(ours) ** 2 / len(ours) + stdev(theirs) ** 2 / len(theirs)) ** 0.5
    if abs(difference) <= spread:
        return f"{name} and {other} differ by {difference:+.2f} points, within the spread of {spread:.2f}: no difference is shown."
    side = "ahead of" if difference > 0 else "behind"
    return f"{name} is {side} {other} by {abs(difference):.2f} points (spread {spread:.2f})."


def markdown(results: Mapping[str, Any]) -> str:
    """`results.json` as tables: scores, also as percentages of BERT's, the paper's apart; pretraining, and data."""
    return "\n\n".join([f"# {results['title']}", *_sections(results, "##")]) + "\n"


def table3_sections(runs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A section for each comparison, by name."""
    return [part for name, results in runs.items() for part in (f"## {name}", *_sections(results, "###"))]


def table3_headline(runs: Mapping[str, Mapping[str, Any]]) -> tuple[str, str]:
    """The budget of the first comparison, and of all of them the least held-out loss and the best mean of tasks, each with its model."""
    first = next(iter(runs.values()))
    losses = {model: entry["eval_loss"] for results in runs.values() for model, entry in results["models"].items()}
    least = min(losses, key=losses.__getitem__)
    found = [f"least held-out loss {losses[least]:.3f} ({least})"]
    averages = seed_averages_by_model(first)
    if averages:
        best = max(averages, key=lambda model: mean(averages[model]))
        found.append(f"best {average_name(list(first['tasks'])).partition(':')[0]} {_score(averages[best])} ({best})")
    tokens = max(entry["tokens"] for entry in first["models"].values())
    return f"size {first['size']}, {tokens:,} tokens a model", "; ".join(found)


def _sections(results: Mapping[str, Any], level: str) -> list[str]:
    """What was done, then headings of that level, tables, and what has to be said of them."""
    models, tasks = list(results["models"]), results["tasks"]
    sections, shown = [results["budget"], f"`{results['command']}`"], list(tasks)
    if shown:
        sections += [f"{level} GLUE, development sets", _scores(results, shown)]
        sections += ["\n".join(f"- {line}" for line in results["verdicts"])] * bool(results["verdicts"])
        sections.append(
            "The spread is a 95% interval (Student's t) over the seeds of finetuning. Each model was pretrained once: how much "
            "another pretraining would change is not in it."
        )
        notes = [f"- {task}: {note}" for task in shown for note in tasks[task]["not_the_official_data"]]
        sections += ["Not the official data:\n\n" + "\n".join(notes)] * bool(notes)
    if shown and set(shown) <= set(TABLE_3) and set(finetuned_models(results)) <= set(GLUE_SCORES):
        sections += [
            f"{level} GLUE, the paper's",
            "Base size, up to a million steps of pretraining, the official data: another setting, so a table of its own.",
            _paper(shown),
        ]
    sections += [f"{level} Pretraining", _pretraining(results, models)]
    if all("train_flops_per_token" in entry for entry in results["models"].values()):
        sections.append("FLOPs of training, without FFTs and element-wise work.")
    if "bert" in models:
        below = results["models"]["bert"]["unigram_entropy"] - results["models"]["bert"]["eval_loss"]
        if below < PLATEAU:
            sections.append(
                f"**BERT's held-out loss is {below:.2f} nats under the unigram entropy, less than {PLATEAU}: it has not left its "
                "first plateau, and this comparison says nothing about what the models can do.**"
            )
    if any(len(entry["search"]) > 1 for entry in results["models"].values()):
        sections += [f"{level} Learning rates and warm-ups tried", _search(results, models)]
    return sections


def finetuned_models(results: Mapping[str, Any]) -> list[str]:
    """The models that have scores on every task."""
    tasks = results["tasks"].values()
    return [model for model in results["models"] if tasks and all(model in task["models"] for task in tasks)]


def _scores(results: Mapping[str, Any], tasks: list[str]) -> str:
    """Mean and standard deviation over seeds, and percentages of BERT's."""
    rows, measured = [], {}
    for model in finetuned_models(results):
        seeds = {task: results["tasks"][task]["models"][model]["seeds"] for task in tasks}
        averages = seed_averages(seeds)
        measured[model] = [100 * mean(values) for values in (*seeds.values(), averages)]
        rows.append([model, *map(_score, (*seeds.values(), averages))])
    return table(["", *tasks, average_name(tasks)], rows + _percentages(measured))


def _paper(tasks: list[str]) -> str:
    """The paper's scores on these tasks, and percentages of BERT's."""
    scores = {model: [by_task[task] for task in tasks] for model, by_task in GLUE_SCORES.items()}
    scores = {model: [*values, mean(values)] for model, values in scores.items()}
    rows = [[model, *(f"{score:.2f}" for score in values)] for model, values in scores.items()]
    return table(["", *tasks, average_name(tasks)], rows + _percentages(scores))


def _percentages(scores: Mapping[str, list[float]]) -> list[list[str]]:
    base = scores.get("bert", [])
    return [
        [f"{model}, % of BERT", *(f"{100 * x / y:.1f}" if y > 0 else "-" for x, y in zip(values, base))]
        for model, values in scores.items()
        if base and model != "bert"
    ]


def _score(values: list[float]) -> str:
    return mean_and_deviation([100 * value for value in values], ".2f")


def _pretraining(results: Mapping[str, Any], models: list[str]) -> str:
    rows = []
    for model in models:
        entry = results["models"][model]
        row = {
            "": model,
            "parameters": f"{entry['parameters'] / 1e6:.2f} M",
            "learning rate": f"{entry['learning_rate']:g}",
            "warm-up": f"{entry['warmup_share']:.0%}",
            "steps": f"{entry['steps']:,}",
            "tokens": f"{entry['tokens']:,}",
        }
        if "train_flops_per_token" in entry:
            row["FLOPs per token"] = f"{entry['train_flops_per_token'] / 1e6:.1f} M"
        rows.append(row | {
            "hours": f"{entry['seconds'] / 3600:.2f}",
            "held-out loss": f"{entry['eval_loss']:.3f}",
            "under the unigram entropy": f"{entry['unigram_entropy'] - entry['eval_loss']:.3f}",
        })  # fmt: skip
    head = max(rows, key=len)
    return table(list(head), [[row.get(name, "") for name in head] for row in rows])


def _search(results: Mapping[str, Any], models: list[str]) -> str:
    rows, columns = [], []
    for model in models:
        search = results["models"][model]["search"]
        columns = [f"{tried['learning_rate']:g}, {tried['warmup_share']:.0%}" for tried in search] or columns
        losses = [tried["eval_loss"] for tried in search]
        rows.append([model, *("failed" if loss is None else f"{loss:.3f}" for loss in losses)])
    return table(["held-out loss", *columns], rows)


def plot_comparison(file: Path, runs: Mapping[str, Mapping[str, Any]]) -> None:
    """Draws held-out losses against steps and against time where there are logs, else as bars; below, the first comparison's scores,
    where it has several models'."""
    first = next(iter(runs.values()))
    scored = finetuned_models(first)
    several = len(scored) > 1
    figure, panels = subplots(1 + several, 2, figsize=(12, 5 + 4 * several), squeeze=False)
    losses, logs = {}, {}
    for name, results in runs.items():
        for model, entry in results["models"].items():
            label = model if results is first else f"{model} ({name})"
            losses[label] = entry["eval_loss"]
            if records := results["jobs"][entry["job"]].get("log"):
                logs[label] = records
    if logs:
        unigram = next(iter(first["models"].values()))["unigram_entropy"]
        _draw_curves(panels[0], logs, unigram)
    else:
        _draw_losses(_whole_row(figure, panels, 0), losses)
    if several:
        _draw_scores(_whole_row(figure, panels, 1), first, scored)
    save(figure, file, dpi=110)


def _whole_row(figure: Any, panels: Any, row: int) -> Any:
    """One panel in place of a row of them."""
    grid = panels[row, 0].get_gridspec()
    for axes in panels[row]:
        axes.remove()
    return figure.add_subplot(grid[row, :])


def _draw_curves(panels: Any, logs: Mapping[str, list[dict[str, Any]]], unigram_entropy: float) -> None:
    """Held-out losses against optimiser steps and against the time spent training, side by side."""
    for number, (model, records) in enumerate(logs.items()):
        points, seconds = [], 0.0
        for record in records:
            seconds = record.get("seconds", seconds)
            if "eval_loss" in record:
                points.append((record["step"], seconds / 60, record["eval_loss"]))
        for column, axes in enumerate(panels):
            line = [(point[column], point[2]) for point in points]
            axes.plot(*zip(*line), marker="o", markersize=3, color=f"C{number}", label=model)
    for axes, label in zip(panels, ("optimiser steps", "minutes of training"), strict=True):
        axes.axhline(unigram_entropy, color="grey", linestyle="--", linewidth=1, label="unigram entropy")
        axes.set(xlabel=label, ylabel="held-out loss (nats)")
        axes.grid(alpha=0.3)
    panels[0].legend(fontsize="small")


def _draw_losses(axes: Any, losses: Mapping[str, float]) -> None:
    """A bar for each model's held-out loss; the axis begins near the least."""
    bars = axes.barh([label.replace(",", ",\n") for label in losses], list(losses.values()), height=0.6)
    axes.bar_label(bars, fmt="%.3f", padding=3, fontsize="small")
    axes.invert_yaxis()
    axes.tick_params("y", labelsize="x-small")
    least, most = min(losses.values()), max(losses.values())
    axes.set(xlabel="held-out loss (nats)", xlim=(least - 0.05 * most, most + 0.02 * most))
    axes.grid(axis="x", alpha=0.3)


def _draw_scores(axes: Any, results: Mapping[str, Any], models: list[str]) -> None:
    """Bars of the tasks' scores with their standard deviations, a colour a model."""
    tasks = list(results["tasks"])
    width = 0.8 / len(models)
    for number, model in enumerate(models):
        seeds = [results["tasks"][task]["models"][model]["seeds"] for task in tasks]
        places = [place + (number - (len(models) - 1) / 2) * width for place in range(len(tasks))]
        heights = [100 * mean(values) for values in seeds]
        errors = [100 * stdev(values) if len(values) > 1 else 0 for values in seeds]
        axes.bar(places, heights, 0.9 * width, yerr=errors, color=f"C{number}", label=model, error_kw={"linewidth": 1})
    axes.set_xticks(range(len(tasks)), tasks)
    axes.set(ylabel="score x 100")
    axes.legend(ncols=len(models), loc="lower center", bbox_to_anchor=(0.5, 1))
    axes.grid(axis="y", alpha=0.3)


def write_cards(folder: Path, results: Mapping[str, Any]) -> None:
    """Writes a model card for each pretrained checkpoint of a comparison, `MODEL.md`: its own metrics, for the Hub too."""
    for model, entry in results["models"].items():
        title = f"{file_name(model)}-{results['size']}"
        metrics = [Metric("fill-mask", "validation", "loss", entry["eval_loss"], entry["corpus"])]
        for task, scores in results["tasks"].items():
            split = next(iter(GLUE_TASKS[task].evaluation_splits))
            for metric, value in scores["models"][model]["metrics"].items():
                data = (*glue_dataset(task), "; ".join(scores["not_the_official_data"]))
                metrics.append(Metric("text-classification", split, metric, value, *data))
        facts = {
            "parameters": f"{entry['parameters']:,}",
            "tokens seen": f"{entry['tokens']:,}",
            "optimiser steps": f"{entry['steps']:,}",
            "peak learning rate, warm-up": f"{entry['learning_rate']:g}, {entry['warmup_share']:.0%} of the steps",
            "hours": f"{entry['seconds'] / 3600:.2f}",
            **entry["machine"],
        }
        summary = (
            f"{model}, {entry['parameters']:,} parameters, pretrained on {entry['corpus']} as one of "
            f"{len(results['models'])} models under one budget. {results['budget']} The GLUE metrics are means over seeds on "
            "development rows, of this checkpoint finetuned on each task. It shows what the budget buys; it is not a model to use. The "
            "other models stand beside it in the comparison's `results.md`."
        )
        write_model_card(
            folder / f"{file_name(model)}.md", title, model.partition(":")[0], summary, metrics, facts, results["command"],
            plot="results.png",
        )  # fmt: skip


def seed_averages_by_model(results: Mapping[str, Any]) -> dict[str, list[float]]:
    """The mean over tasks for each seed, of every model that has scores on all of them."""
    tasks = results["tasks"]
    return {
        model: seed_averages({task: entry["models"][model]["seeds"] for task, entry in tasks.items()})
        for model in finetuned_models(results)
    }


def verdicts(results: Mapping[str, Any]) -> list[str]:
    """What the averages over seeds show, for each pair of models."""
    averages = seed_averages_by_model(results)
    return [
        verdict(name, other, averages[name], averages[other]) for name, other in itertools.combinations(averages, 2)
    ]
