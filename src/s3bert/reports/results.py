"""An experiment's folder, `results/NAME`: `results.json`, and the page and the plot that are drawn from it alone.

    {"title": ..., "findings": [...], "runs": {RUN: {"arguments": {...}, ...}}}

Findings are sentences, written by hand: what the numbers show, each with its run's name. A run holds its arguments and what its own
results file holds. All runs of an experiment come from the same command.
"""

import json
import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from s3bert.arguments import read_entries
from s3bert.benchmark.report import plot_speeds, speed_headline, speed_sections
from s3bert.files import reading, table, write_text
from s3bert.training.log import read_log

from .approximation import approximation_headline, approximation_sections, plot_approximation
from .attention_rank import plot_ranks, rank_headline, rank_sections
from .causal_comparison import causal_headline, causal_sections, plot_causal
from .documents import document_headline, document_sections, plot_accuracies
from .forecasting import forecast_headline, forecast_sections, plot_errors
from .glue import glue_headline, glue_sections, plot_glue
from .lra import lra_headline, lra_sections
from .lra_plots import plot_runs
from .pretraining import plot_pretrainings, pretraining_headline, pretraining_sections
from .table3 import plot_comparison, table3_headline, table3_sections
from .torture import plot_tries, torture_headline, torture_sections
from .variance_shares import plot_variance, variance_headline, variance_sections


Runs = Mapping[str, Mapping[str, Any]]


class Report(NamedTuple):
    """How the runs of a command are told: sections of a page, a plot, and for the index the setting and the main number."""

    sections: Callable[[Runs], list[str]]
    plot: Callable[[Path, Runs], None]
    headline: Callable[[Runs], tuple[str, str]]


# By what the runs' results hold.
REPORTS = {
    "variants": Report(lra_sections, plot_runs, lra_headline),
    "attentions": Report(causal_sections, plot_causal, causal_headline),
    "horizons": Report(forecast_sections, plot_errors, forecast_headline),
    "models": Report(table3_sections, plot_comparison, table3_headline),
    "speed": Report(speed_sections, plot_speeds, speed_headline),
    "errors": Report(approximation_sections, plot_approximation, approximation_headline),
    "ranks": Report(rank_sections, plot_ranks, rank_headline),
    "measures": Report(variance_sections, plot_variance, variance_headline),
    "tries": Report(torture_sections, plot_tries, torture_headline),
    "documents_cut": Report(document_sections, plot_accuracies, document_headline),
    "tasks": Report(glue_sections, plot_glue, glue_headline),
    "not_the_official_data": Report(glue_sections, plot_glue, glue_headline),  # of one task
    "train_tokens": Report(pretraining_sections, plot_pretrainings, pretraining_headline),
}
_RESULTS = ("all_results.json", "results.json", "report/results.json")
_INDEX_HEAD = ["experiment", "setting", "main number"]
_INDEX = f"# Results\n\n{table(_INDEX_HEAD, [])}"


def read_run(folder: Path) -> dict[str, Any]:
    """A finished run's arguments and results.

    Raises:
        ValueError: the folder is none of a run that has ended, or of a command without a report here; its results are damaged.
    """
    files = [folder / name for name in _RESULTS if (folder / name).is_file()]
    if not files or not (folder / "arguments.yaml").is_file():
        raise ValueError(
            f"{folder} has no {' or '.join(_RESULTS)} beside an arguments.yaml: name the output folder of a run that has ended."
        )
    arguments = read_entries(folder / "arguments.yaml")
    with reading(str(files[0])):
        results = json.loads(files[0].read_text(encoding="utf-8"))
        if not results.get("complete", True):
            raise ValueError(f"{folder} has not come to its end; its command, given again, goes on.")
        if "command" in results:
            results["command"] = shlex.join(_without_home(shlex.split(results["command"])))
        run = {"arguments": _without_home(arguments)} | _without_home(results)
        if not _contents(run):
            raise ValueError(
                f"{files[0]} is of a run that no report tells of: add those of the commands that s3bert report --help names."
            )
        if _contents(run) == "train_tokens":
            run["log"] = read_log(folder / "log.jsonl")
            if not any("eval_loss" in record for record in run["log"]):
                raise ValueError(f"{folder / 'log.jsonl'} holds no evaluation: bring the run's log back.")
        REPORTS[_contents(run)].sections({folder.name: run})
    return run


def _without_home(value: Any) -> Any:
    """A value; of an absolute path, alone or joined to others by " + ", the last part, for the rest says nothing to others."""
    if isinstance(value, list):
        return [_without_home(part) for part in value]
    if isinstance(value, Mapping):
        return {name: _without_home(part) for name, part in value.items()}
    if not isinstance(value, str):
        return value
    return " + ".join(Path(part).name if part.startswith("/") else part for part in value.split(" + "))


def add_run(experiment: dict[str, Any], name: str, run: dict[str, Any]) -> None:
    """Takes a run into an experiment.

    Raises:
        ValueError: the experiment has another run of that name, or runs of another command.
    """
    runs = experiment["runs"]
    if runs.get(name, run) != run:
        raise ValueError(f"the experiment has a run {name} with other results: rename the folder of one of them.")
    if runs and (held := _contents(next(iter(runs.values())))) != _contents(run):
        raise ValueError(
            f"{name} holds {_contents(run)}, the experiment's runs hold {held}: give it an experiment of its own."
        )
    runs[name] = run


def _contents(run: Mapping[str, Any]) -> str:
    """Which of `REPORTS` tells of a run; "" for none."""
    return next((key for key in REPORTS if key in run), "")


def report_of(experiment: Mapping[str, Any]) -> Report:
    """How an experiment is told."""
    return REPORTS[_contents(next(iter(experiment["runs"].values())))]


def page(experiment: Mapping[str, Any]) -> str:
    """`results.md`: findings, plot and tables."""
    parts = [f"# {experiment['title']}"]
    parts += ["\n".join(f"- {finding}" for finding in experiment["findings"])] * bool(experiment["findings"])
    parts += ["![plot](results.png)", *report_of(experiment).sections(experiment["runs"])]
    parts.append("Every number and argument is in [results.json](results.json).")
    return "\n\n".join(parts) + "\n"


def read_experiment(folder: Path) -> dict[str, Any]:
    """`results.json` of an experiment's folder.

    Raises:
        ValueError: it is damaged.
    """
    with reading(str(folder / "results.json")):
        experiment = json.loads((folder / "results.json").read_text(encoding="utf-8"))
        page(experiment)
    return experiment


def write_experiment(folder: Path, experiment: Mapping[str, Any]) -> None:
    """Writes an experiment's `results.json`, `results.md` and `results.png`, and the index beside its folder.

    Raises:
        ValueError: a page of another kind is where the index goes.
    """
    other = folder.parent / "README.md"
    if other.exists() and not other.read_text(encoding="utf-8").startswith(_INDEX):
        raise ValueError(
            f"{other} is no index of experiments, which would take its place: name a --results_dir two levels down, as results/"
            f"{folder.name}."
        )
    write_text(folder / "results.json", compact_json(experiment))
    write_text(folder / "results.md", page(experiment))
    report_of(experiment).plot(folder / "results.png", experiment["runs"])
    write_text(folder.parent / "README.md", index(folder.parent))


def compact_json(content: Any) -> str:
    """JSON with a line for each innermost object or list."""
    text = json.dumps(content, indent=1, ensure_ascii=False)
    return re.sub(r"[{\[][^{}\[\]]*[}\]]", lambda match: re.sub(r"\n\s*", " ", match[0]), text) + "\n"


def index(top: Path) -> str:
    """`README.md` of all experiments: what, setting, the main number, link."""
    rows = []
    for file in sorted(top.glob("*/results.json")):
        experiment = read_experiment(file.parent)
        setting, result = report_of(experiment).headline(experiment["runs"])
        rows.append([f"[{experiment['title']}]({file.parent.name}/results.md)", setting, result])
    parts = ["# Results", table(_INDEX_HEAD, rows)]
    parts.append(
        "Each folder holds `results.json`, from which `s3bert report --results_dir FOLDER` regenerates `results.md`, "
        "`results.png` and this page. Names in backquotes are runs."
    )
    if (top / "plan.md").is_file():
        parts.append("[Runs that are planned](plan.md).")
    return "\n\n".join(parts) + "\n"
