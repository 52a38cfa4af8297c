"""The paper's Table 3 under one budget: BERT, FNet, PoNet and S3BERT pretrained and finetuned alike.

`results` is what `s3bert table3` keeps in its `results.json`.
"""

import itertools
from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Any

from s3bert.files import file_name, table
from s3bert.plots import save, subplots, wrapped
from s3bert.tasks.glue import GLUE_TASKS, TABLE_3, glue_dataset

from .glue import (
    average_name,
    difference_in_words,
    draw_scores,
    interval,
    score_in_words,
    scores_table,
    seed_averages,
    verdict,
)
from .losses import draw_held_out_losses
from .model_card import Metric, write_model_card
from .published import GLUE_SCORES


PLATEAU = 1.5  # nats under the unigram entropy that BERT has to be, or it has learnt little more than word frequencies


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
        found.append(
            f"best {average_name(list(first['tasks'])).partition(':')[0]} {score_in_words(averages[best])} ({best})"
        )
    tokens = sorted({first["models"][model]["tokens"] for model in _trained(first)})
    several = " to ".join(f"{count:,}" for count in (tokens if len(tokens) < 2 else (tokens[0], tokens[-1])))
    return f"size {first['size']}, {several} tokens a model", "; ".join(found)


def _sections(results: Mapping[str, Any], level: str) -> list[str]:
    """What was done, then headings of that level, tables, and what has to be said of them."""
    models, tasks = list(results["models"]), results["tasks"]
    sections, shown = [results["budget"], f"`{results['command']}`"], list(tasks)
    in_words = {model: _in_words(model, entry) for model, entry in results["models"].items()}
    sections += [f"{words}." for model, words in in_words.items() if words != model]
    if shown:
        sections += [
            f"{level} GLUE, development sets",
            "Scores x 100; mean ± standard deviation over the seeds of finetuning.",
        ]
        sections.append(_measured(results))
        if results["verdicts"]:
            sections.append("\n".join(f"- {line}" for line in results["verdicts"]))
            sections.append(
                "The spread of a difference is half the width of its 95% interval (Student's t) over the same seeds."
            )
        sections.append("Each model was pretrained once: how much another pretraining would change is not shown.")
        notes = [f"- {task}: {note}" for task in shown for note in tasks[task]["not_the_official_data"]]
        sections += ["Not the official data:\n\n" + "\n".join(notes)] * bool(notes)
    if set(shown) <= set(TABLE_3) and len(GLUE_SCORES.keys() & set(finetuned_models(results))) > 1:
        sections += [
            f"{level} GLUE, the paper's",
            "Base size, up to a million steps of pretraining, the official data: another setting, so a table of its own.",
            _paper(shown),
            f"{level} Beside the paper",
            _beside_the_paper(results),
            _order(results),
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


def _in_words(model: str, entry: Mapping[str, Any]) -> str:
    """A model's name, which says what it is, or is explained."""
    name, changes = entry.get("name", model), entry.get("changes", "")
    return model if model in (name, f"{name}:{changes}") else f"{model} is {name} with {changes}"


def untrained_models(results: Mapping[str, Any]) -> dict[str, str]:
    """The rows of models with their first values, and the model that each of them would have become."""
    return {name: entry["untrained"] for name, entry in results["models"].items() if "untrained" in entry}


def finetuned_models(results: Mapping[str, Any]) -> list[str]:
    """The models that have scores on every task."""
    tasks = results["tasks"].values()
    return [model for model in results["models"] if tasks and all(model in task["models"] for task in tasks)]


def _trained(results: Mapping[str, Any]) -> set[str]:
    return set(results["models"]) - set(untrained_models(results))


def _measured(results: Mapping[str, Any]) -> str:
    """Mean and standard deviation over seeds; of trained models percentages of BERT's, too."""
    scores = _scores(results)
    measured = {
        model: [100 * mean(values) for values in (*by_task.values(), seed_averages(by_task))]
        for model, by_task in scores.items()
        if model not in untrained_models(results)
    }
    return scores_table(scores, _percentages(measured))


def _paper(tasks: list[str]) -> str:
    """The paper's scores on these tasks, and percentages of BERT's."""
    scores = {model: [by_task[task] for task in tasks] for model, by_task in GLUE_SCORES.items()}
    scores = {model: [*values, mean(values)] for model, values in scores.items()}
    rows = [[model, *(f"{score:.2f}" for score in values)] for model, values in scores.items()]
    return table(["", *tasks, average_name(tasks)], rows + _percentages(scores))


def _paper_averages(results: Mapping[str, Any]) -> dict[str, float]:
    """The paper's means over the tasks that were finetuned here, of those of its models that were, the best first."""
    averages = {
        model: mean(GLUE_SCORES[model][task] for task in results["tasks"])
        for model in finetuned_models(results)
        if model in GLUE_SCORES
    }
    return dict(sorted(averages.items(), key=lambda average: -average[1]))


def _beside_the_paper(results: Mapping[str, Any]) -> str:
    """A row for each model: its mean over tasks as the paper has it, here, and of its first values."""
    papers, averages, untrained = _paper_averages(results), seed_averages_by_model(results), untrained_models(results)
    here = {model: 100 * mean(values) for model, values in averages.items()}
    first_values = {model: averages[name] for name, model in untrained.items() if name in averages}
    rows = []
    for model, values in averages.items():
        if model not in untrained:
            row = [model, f"{papers[model]:.2f}" if model in papers else "", _share_of_bert(papers, model)]
            row += [score_in_words(values), _share_of_bert(here, model)]
            if begun := first_values.get(model, []):
                row += [score_in_words(begun), difference_in_words(values, begun)]
            rows.append(row)
    name = average_name(list(results["tasks"])).partition(":")[0]
    head = ["", f"the paper's {name}", "% of BERT", f"{name} here", "% of BERT"]
    head += ["without pretraining", "what pretraining adds, with its 95% interval"] * bool(first_values)
    return table(head, [row + [""] * (len(head) - len(row)) for row in rows])


def _share_of_bert(averages: Mapping[str, float], model: str) -> str:
    """A model's mean as a percentage of BERT's; "" where one of them is not there."""
    return f"{100 * averages[model] / averages['bert']:.1f}" if {model, "bert"} <= averages.keys() else ""


def _order(results: Mapping[str, Any]) -> str:
    """Whether the paper's order is that of the means here, and which of its pairs are further apart than their spread."""
    papers, averages = _paper_averages(results), seed_averages_by_model(results)
    here = sorted(papers, key=lambda model: -mean(averages[model]))
    pairs = list(itertools.combinations(papers, 2))
    shown: dict[bool, list[str]] = {True: [], False: []}
    for better, worse in pairs:
        difference, spread = interval(averages[better], averages[worse])
        if spread is not None and abs(difference) > spread:
            shown[difference > 0].append(f"{better} over {worse}" if difference > 0 else f"{worse} over {better}")
    same, other = (", ".join(shown[way]) or "none" for way in (True, False))
    order = "the same" if here == list(papers) else ", ".join(here)
    return (
        f"The paper's order is {', '.join(papers)}; here it is {order}. Of the paper's {len(pairs)} pairs, shown here too: {same}; the other "
        f"way round: {other}; not told apart: {len(pairs) - len(shown[True]) - len(shown[False])}."
    )


def _percentages(scores: Mapping[str, list[float]]) -> list[list[str]]:
    base = scores.get("bert", [])
    return [
        [f"{model}, % of BERT", *(f"{100 * x / y:.1f}" if y > 0 else "-" for x, y in zip(values, base))]
        for model, values in scores.items()
        if base and model != "bert"
    ]


def _pretraining(results: Mapping[str, Any], models: list[str]) -> str:
    rows = []
    for model in models:
        entry = results["models"][model]
        row = {"": model, "parameters": f"{entry['parameters'] / 1e6:.2f} M"}
        if "untrained" in entry:  # its one step is at a learning rate of 0
            row["tokens"] = "0"
        else:
            row |= {
                "learning rate": f"{entry['learning_rate']:g}",
                "warm-up": f"{entry['warmup_share']:.0%}",
                "steps": f"{entry['steps']:,}",
                "tokens": f"{entry['tokens']:,}",
            }
            if "train_flops_per_token" in entry:
                row["FLOPs per token"] = f"{entry['train_flops_per_token'] / 1e6:.1f} M"
            row["hours"] = f"{entry['seconds'] / 3600:.2f}"
        rows.append(row | {
            "held-out loss": f"{entry['eval_loss']:.3f}",
            "under the unigram entropy": f"{entry['unigram_entropy'] - entry['eval_loss']:.3f}",
        })  # fmt: skip
    head = max(rows, key=len)
    return table(list(head), [[row.get(name, "") for name in head] for row in rows])


def _search(results: Mapping[str, Any], models: list[str]) -> str:
    rows, columns = [], []
    for model in models:
        if not (search := results["models"][model]["search"]):
            continue
        columns = [f"{tried['learning_rate']:g}, {tried['warmup_share']:.0%}" for tried in search] or columns
        losses = [tried["eval_loss"] for tried in search]
        rows.append([model, *("failed" if loss is None else f"{loss:.3f}" for loss in losses)])
    return table(["held-out loss", *columns], rows)


def plot_comparison(file: Path, runs: Mapping[str, Mapping[str, Any]]) -> None:
    """Draws held-out losses against steps and against time where there are logs, else as dots; below, the first comparison's scores,
    where it has several models'. A model's colour is the same in all comparisons, a comparison has its own kind of line."""
    first = next(iter(runs.values()))
    several = len(finetuned_models(first)) > 1
    figure, panels = subplots(1 + several, 2, figsize=(12, 5 + 4 * several), squeeze=False)
    pretrained = [
        (name, model, entry)
        for name, results in runs.items()
        for model, entry in results["models"].items()
        if "untrained" not in entry
    ]
    models = [model for _, model, _ in pretrained]
    colours, kinds = list(dict.fromkeys(models)), list(runs)
    losses, logs = {}, {}
    for name, model, entry in pretrained:
        label = model if runs[name] is first and models.count(model) == 1 else f"{model} ({name})"
        losses[label] = entry["eval_loss"]
        if records := runs[name]["jobs"][entry["job"]].get("log"):
            line = {"color": f"C{colours.index(model)}", "linestyle": ("-", "--", "-.", ":")[kinds.index(name) % 4]}
            logs[label] = line, records
    if logs:
        unigram = next(iter(first["models"].values()))["unigram_entropy"]
        draw_held_out_losses(dict(zip(("step", "seconds"), panels[0], strict=True)), logs, unigram)
    else:
        _draw_losses(_whole_row(figure, panels, 0), losses)
    if several:
        draw_scores(_whole_row(figure, panels, 1), _scores(first), untrained_models(first))
    save(figure, file, dpi=110)


def _whole_row(figure: Any, panels: Any, row: int) -> Any:
    """One panel in place of a row of them."""
    grid = panels[row, 0].get_gridspec()
    for axes in panels[row]:
        axes.remove()
    return figure.add_subplot(grid[row, :])


def _draw_losses(axes: Any, losses: Mapping[str, float]) -> None:
    """A dot for each model's held-out loss."""
    values = list(losses.values())
    axes.plot(values, range(len(values)), "o")
    for row, value in enumerate(values):
        axes.annotate(
            f"{value:.3f}", (value, row), xytext=(7, 0), textcoords="offset points", va="center", fontsize="small"
        )
    axes.set_yticks(range(len(values)), [wrapped(label, 40) for label in losses])
    axes.invert_yaxis()
    axes.tick_params("y", labelsize="x-small")
    axes.margins(x=0.12, y=0.08)
    axes.set(xlabel="held-out loss (nats)")
    axes.grid(alpha=0.3)


def write_cards(folder: Path, results: Mapping[str, Any]) -> None:
    """Writes a model card for each pretrained checkpoint of a comparison, `MODEL.md`: its own metrics, for the Hub too."""
    for model, entry in results["models"].items():
        if "untrained" in entry:
            continue
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
            f"{_in_words(model, entry)}, {entry['parameters']:,} parameters, pretrained on {entry['corpus']} as one of "
            f"{len(_trained(results))} models under one budget. {results['budget']} The GLUE metrics are means over seeds on "
            "development rows, of this checkpoint finetuned on each task. It shows what the budget buys; it is not a model to use. The "
            "other models stand beside it in the comparison's `results.md`."
        )
        write_model_card(
            folder / f"{file_name(model)}.md", title, entry.get("name", model.partition(":")[0]), summary, metrics, facts, results["command"],
            plot="results.png",
        )  # fmt: skip


def _scores(results: Mapping[str, Any]) -> dict[str, dict[str, list[float]]]:
    """Each seed's score by model and task, of every model that has scores on all of them."""
    tasks = results["tasks"]
    return {
        model: {task: entry["models"][model]["seeds"] for task, entry in tasks.items()}
        for model in finetuned_models(results)
    }


def seed_averages_by_model(results: Mapping[str, Any]) -> dict[str, list[float]]:
    """The mean over tasks for each seed, of every model that has scores on all of them."""
    return {model: seed_averages(by_task) for model, by_task in _scores(results).items()}


def verdicts(results: Mapping[str, Any]) -> list[str]:
    """What the averages over seeds show, for each pair of trained models, and for each of them beside its own first values."""
    averages, untrained = seed_averages_by_model(results), untrained_models(results)
    trained = [model for model in averages if model not in untrained]
    pairs = [*itertools.combinations(trained, 2), *((model, name) for name, model in untrained.items())]
    return [verdict(name, other, averages[name], averages[other]) for name, other in pairs if other in averages]
