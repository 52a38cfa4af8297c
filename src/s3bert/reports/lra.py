"""Things trained alike, Long Range Arena's mixers for one: tables of accuracies.

A run is what `s3bert lra` or `s3bert copy-task` keeps in its `all_results.json`; a variant is one of the things it compares.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from statistics import mean
from typing import Any

from s3bert.files import mean_and_deviation, table
from s3bert.training.processes import process_state

from .instability import COLUMNS, instability_cells, instability_headline, instability_table
from .lra_plots import authors_curve, best_trials, plot_runs, short_names
from .published import (
    Published,
    published_accuracies,
    published_change,
    published_incoherence,
    published_under_noise,
    trained_alike,
)
from .run_files import write_run


Run = Mapping[str, Any]


def write_report(folder: Path, what: Run, variants: Mapping[str, Any], wanted: int, *arguments: Any) -> None:
    """Writes, in the main process, a run's `results.md`, `curves.png`, `all_results.json` and `arguments.yaml`.

    Args:
        what: `title` and `description` (what was trained on what, in a sentence); Long Range Arena's also `task`, `comparison`,
            `length`, `rows`, `num_hidden_layers` and `hidden_size`.
        variants: by label, as `grid.grid_results` gives them; Long Range Arena's also have `mixer`, `mixer_settings` and `noise`.
        wanted: how many there will be.
    """
    if not process_state().is_main_process:
        return
    run = {**what, "complete": len(variants) == wanted, "variants": variants}
    plot_runs(folder / "curves.png", {run["title"]: run})
    write_run(folder, run, _parts(run), *arguments)


def lra_sections(runs: Mapping[str, Run]) -> list[str]:
    """A section for each run, by name; then what the papers print after longer schedules, in a table of its own."""
    sections = []
    for name, run in runs.items():
        sections += [f"## {name}", *_parts(run)]
        if steps := steps_table(run):
            sections += ["Validation accuracy, and loss in nats, by optimiser step:", steps]
    papers = {
        label: value
        for run in runs.values()
        for label in run["variants"]
        if (value := published_value(run, label)) != _in_words(_comparable(run, label))
    }
    if papers:
        sections += [
            "## The papers, after whole schedules",
            "Runs trained otherwise have no paper's number beside them. These are S3Attention's Tables 1 and 7, and Table 1 of the paper that is "
            "named. Long Range Arena's encoders have other sizes.",
            table(["", "test accuracy, or its change"], [[label, value] for label, value in papers.items()]),
        ]
    return sections


def _parts(run: Run) -> list[str]:
    """What is told of a run: its description and its tables."""
    if _comparison(run) == "instability":
        return [run["description"], instability_table(run["variants"])]
    tables = [lra_table(run)]
    if incoherence := incoherence_table(run):
        tables += [
            "Incoherence of the tokens before and after the Fourier convolution, by rank: means over sequences, of a layer ± their "
            "standard deviation.",
            incoherence,
        ]
    return [run["description"], *tables]


def lra_headline(runs: Mapping[str, Run]) -> tuple[str, str]:
    """The setting, and test accuracies, each with its run: S3's where it was trained longest and the best of the others; without a run of
    mixers, the least and the best of each run."""
    settings = [
        setting for run in runs.values() for result in run["variants"].values() for setting in result["settings"]
    ]
    trials = [trial for setting in settings for trial in setting["trials"]]
    steps, seeds = [trial["steps"] for trial in trials], [len(setting["trials"]) for setting in settings]
    lengths = [run["length"] for run in runs.values()]
    setting = f"{_range(lengths, 'token')}, {_range(steps, 'step')}, {_range(seeds, 'seed')}"
    labels = [(name, label) for name, run in runs.items() for label in run["variants"]]
    mixers = [(name, label) for name, label in labels if _comparison(runs[name]) == "mixers"]
    if mixers:
        s3 = [(name, label) for name, label in mixers if label.partition(":")[0] == "s3"]
        most = max((_examples(runs[name]) for name, _ in s3), default=0)
        longest = [(name, label) for name, label in s3 if _examples(runs[name]) == most]
        best = [_best(runs, longest), _best(runs, [each for each in mixers if each not in s3])]
    else:
        best = [
            f"{instability_headline(run['variants'])} (`{name}`)"
            if _comparison(run) == "instability"
            else _extremes(name, run)
            for name, run in runs.items()
        ]
    return setting, "; ".join(filter(None, best))


def _best(runs: Mapping[str, Run], labels: Sequence[tuple[str, str]]) -> str:
    """The best test accuracy among variants, given by run and label; "" where none has one."""
    tests = {(name, label): _tests(runs[name]["variants"][label]) for name, label in labels}
    means = {variant: mean(values) for variant, values in tests.items() if values}
    if not means:
        return ""
    best = max(means, key=means.__getitem__)
    return f"{best[1]} {_accuracy(tests[best])} (`{best[0]}`)"


def _extremes(name: str, run: Run) -> str:
    """The least and the best test accuracy of a run's variants; "" where none has one."""
    tests = {label: values for label, result in run["variants"].items() if (values := _tests(result))}
    names = dict(zip(tests, short_names([(label, run["variants"][label]) for label in tests]), strict=True))
    ordered = sorted(tests, key=lambda label: mean(tests[label]))
    least_and_best = dict.fromkeys((*ordered[:1], *ordered[-1:]))
    words = ", ".join(f"{names[label]} {_accuracy(tests[label])}" for label in least_and_best)
    return f"{words} (`{name}`)" if words else ""


def _tests(result: Mapping[str, Any]) -> list[float]:
    """Test accuracies of a variant's best setting, one for each seed."""
    return _percentages(result["settings"][0], "test_accuracy")


def _examples(run: Run) -> int:
    """Training examples that a run's longest trial has read."""
    return max(trial["steps"] * trial["batch_size"] for trial in best_trials(run))


def _comparison(run: Run) -> str:
    return run.get("comparison", "mixers")


def _range(values: list[int], word: str) -> str:
    least, most = min(values), max(values)
    return f"{least:,} to {most:,} {word}s" if least < most else f"{most:,} {word}{'s' * (most > 1)}"


def published_value(run: Run, label: str) -> str:
    """What the papers give for a variant of these settings, whatever its schedule; "" where none of them does."""
    return _in_words(_published(run, label))


def _published(run: Run, label: str) -> list[Published]:
    variant, task = run["variants"][label], run.get("task")
    if task is None:
        return []
    if run["comparison"] == "parts":
        return published_change(task, label, run["variants"]["whole"]["mixer_settings"])
    if run["comparison"] == "noise":
        return published_under_noise(task, variant["mixer"], variant["mixer_settings"], variant["noise"])
    mixers = run["comparison"] == "mixers"
    return published_accuracies(task, variant["mixer"], variant["mixer_settings"]) if mixers else []


def _comparable(run: Run, label: str) -> list[Published]:
    """Those that may stand beside a variant's number: same encoder, length, rows and schedule."""
    return [entry for entry in _published(run, label) if _is_trained_alike(run, label, entry.schedule)]


def _is_trained_alike(run: Run, label: str, schedule: str) -> bool:
    trials = [trial for setting in run["variants"][label]["settings"] for trial in setting["trials"]]
    return trained_alike(schedule, run["task"], run, trials)


def _in_words(entries: list[Published]) -> str:
    return ", ".join(entry.text for entry in entries)


def lra_table(run: Run) -> str:
    """A Markdown table of a run's variants and settings: accuracies times 100, mean and standard deviation over seeds.

    A comparison of parts has a column of changes against the whole. A paper's number stands beside what was trained as in the paper.
    """
    results = run["variants"]
    against = "whole" if run.get("comparison") == "parts" else None
    published = {label: value for label in results if (value := _in_words(_comparable(run, label)))}
    head = ["", "setting", "test accuracy"]
    head += [f"against {against}"] if against else []
    head += ["published"] if published else []
    head += ["each seed", "validation accuracy"]
    if any("self_pretrained" in result for result in results.values()):
        head.append("test accuracy after self-pretraining")
    trials = [trial for result in results.values() for setting in result["settings"] for trial in setting["trials"]]
    has_instability = any("instability" in trial["metrics"] for trial in trials)
    if has_instability:
        head += COLUMNS
    rows = []
    wholes = results[against]["settings"] if against in results else []
    base = {whole["name"]: mean(tests) for whole in wholes if (tests := _percentages(whole, "test_accuracy"))}
    for name, result in results.items():
        after = {entry["name"]: entry for entry in result.get("self_pretrained", {}).get("settings", [])}
        for setting in result["settings"]:
            tests = _percentages(setting, "test_accuracy")
            row = [name, setting["name"], _accuracy(tests)]
            if against:
                comparable = tests and name != against and setting["name"] in base
                row.append(f"{mean(tests) - base[setting['name']]:+.2f}" if comparable else "")
            if published:
                row.append(published.get(name, ""))
            row += [", ".join(f"{value:.2f}" for value in tests), _accuracy(_percentages(setting, "accuracy"))]
            if "self_pretrained" in result:
                row.append(_accuracy(_percentages(after[setting["name"]], "test_accuracy")))
            if has_instability:
                row += instability_cells(setting, results)
            rows.append(row)
    return table(head, rows)


def incoherence_table(run: Run) -> str:
    """A Markdown table of a run's `token_incoherence`: a row for all layers and one for each, means over seeds; "" where it was not measured.
    The paper's stands under runs like its own."""
    titles: dict[str, str] = {}
    rows = []
    for name, result in run["variants"].items():
        for setting in result["settings"]:
            metrics = [trial["metrics"] for trial in setting["trials"] if trial["metrics"]]
            found = [re.fullmatch(r"(incoherence_(before|after)_(\d+))(|_layer_\d+)", key) for key in chain(*metrics)]
            titles |= {match[1]: f"rank {match[3]}, {match[2]}" for match in found if match}
            for layer in dict.fromkeys(match[4] for match in found if match):
                row = [name, setting["name"], layer.removeprefix("_layer_") or "all"]
                for measure in titles:
                    values = [each[measure + layer] for each in metrics]
                    spreads = [each[f"{measure}{layer}_std"] for each in metrics] if layer else []
                    row.append(f"{mean(values):.2f}" + (f" ± {mean(spreads):.2f}" if spreads else ""))
                rows.append(row)
        papers = published_incoherence(run["task"], result["mixer_settings"]) if _has_incoherence(run, name) else {}
        if papers:
            rows.append([name, "published", "", *(f"{papers[measure]:.2f}" for measure in titles)])
    return table(["", "setting", "layer", *titles.values()], rows) if titles else ""


def steps_table(run: Run) -> str:
    """A Markdown table of validation accuracy and loss at up to 16 of the steps where a run was evaluated, each variant at its best setting,
    beside the authors' curve; "" for a run evaluated less than three times."""
    found: dict[str, dict[int, list[tuple[float, float]]]] = {}
    for name, result in run["variants"].items():
        points = found.setdefault(name, {})
        for trial in result["settings"][0]["trials"]:
            for record in trial["history"]:
                if "eval_accuracy" in record:
                    points.setdefault(record["step"], []).append((100 * record["eval_accuracy"], record["eval_loss"]))
    curve = authors_curve({"": run})
    every = sorted({step for points in found.values() for step in points})
    if len(every) < 3:
        return ""
    stride = -(-len(every) // 16)
    steps = [step for place, step in enumerate(every) if step in curve or place % stride == 0 or step == every[-1]]
    rows = []
    for step in steps:
        row = [f"{step:,}"]
        for points in found.values():
            accuracies, losses = zip(*points[step], strict=True) if step in points else ((), ())
            row.append(f"{_accuracy(accuracies)}, {mean(losses):.3f}" if accuracies else "")
        rows.append([*row, *([f"{curve[step]:.1f}" if step in curve else ""] if curve else [])])
    return table(["step", *found, *(["the authors' S3, test"] if curve else [])], rows)


def _has_incoherence(run: Run, label: str) -> bool:
    """Whether the paper's incoherence may stand beside a variant's."""
    return (
        run.get("comparison") == "incoherence"
        and run["variants"][label]["mixer"] == "s3"
        and _is_trained_alike(run, label, "incoherence")
    )


def _percentages(setting: Mapping[str, Any], metric: str) -> list[float]:
    """A metric times 100 of each seed that has ended well."""
    return [100 * trial["metrics"][metric] for trial in setting["trials"] if trial["metrics"]]


def _accuracy(values: Sequence[float]) -> str:
    return mean_and_deviation(values, ".2f") or "failed"
