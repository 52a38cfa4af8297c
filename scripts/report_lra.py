"""Makes one page of several Long Range Arena runs: an overview of all tasks, then each run's table and curves.

    python scripts/report_lra.py --runs runs/listops runs/image runs/image-ablation --output_dir model_cards/lra

A run is an output folder of run_lra.py, run_copy_task.py or approximation_error.py. The page, `README.md`, says what each run
wrote itself; the runs' own `all_results.json`, `arguments.yaml` and pictures are copied beside it.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers.hf_argparser import HfArg

from s3bert.config import named_settings, parse_arguments, run_as_script
from s3bert.files import write_text
from s3bert.lra_published import published_accuracy, tasks_in_order
from s3bert.lra_report import measured_accuracy


@dataclass
class ReportArguments:
    """Which runs, and where the page goes."""

    runs: list[str] = HfArg(help="output folders of runs, in the page's order; their names are the sections' names")
    output_dir: str = HfArg(help="folder of the page")

    def __post_init__(self):
        for name in map(Path, self.runs):
            for file in ("all_results.json", "results.md", "arguments.yaml"):
                if not (name / file).is_file():
                    raise ValueError(f"runs: {name} has no {file}; name output folders of runs that have ended.")
        names = [Path(name).name for name in self.runs]
        if len(set(names)) < len(names):
            raise ValueError(
                f"runs = {' '.join(self.runs)}: two folders have the same name, and would overwrite each other."
            )


def overview(runs: Mapping[str, Mapping[str, Any]]) -> str:
    """A Markdown table of mixers by tasks: measured accuracies with their spread over seeds, and below the papers'."""
    measured: dict[str, dict[str, str]] = {}
    for content in runs.values():
        if content.get("comparison") == "mixers":
            for label, result in content["arms"].items():
                measured.setdefault(named_settings(label)[0], {})[content["task"]] = measured_accuracy(result)
    tasks = tasks_in_order(task for found in measured.values() for task in found)
    rows = [["", *tasks], ["---"] * (len(tasks) + 1)]
    for mixer, found in measured.items():
        rows.append([mixer, *(found.get(task, "") for task in tasks)])
        if any(published := [published_accuracy(task, mixer) for task in tasks]):
            rows.append([f"{mixer}, the papers'", *published])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) if tasks else ""


def main(argv: list[str] | None = None) -> Path:
    """Runs the script; returns the page."""
    (arguments,) = parse_arguments((ReportArguments,), argv, __doc__)
    top = Path(arguments.output_dir)
    runs, sections = {}, []
    for folder in map(Path, arguments.runs):
        runs[folder.name] = json.loads((folder / "all_results.json").read_text(encoding="utf-8"))
        copies = top / "runs" / folder.name
        copies.mkdir(parents=True, exist_ok=True)
        pictures = sorted(folder.glob("*.png"))
        for file in (folder / "all_results.json", folder / "arguments.yaml", *pictures):
            shutil.copyfile(file, copies / file.name)
        where = f"runs/{folder.name}"
        sections.append(f"#{(folder / 'results.md').read_text(encoding='utf-8').rstrip()}")
        sections += [f"![{folder.name}]({where}/{picture.name})" for picture in pictures]
        sections.append(f"[Figures]({where}/all_results.json), [arguments]({where}/arguments.yaml)")
    head = ["# Long Range Arena"]
    if table := overview(runs):
        head += [
            "Test accuracy in percent, mean and standard deviation over seeds, beside the papers'. The papers trained for the whole "
            "schedules of `configs/lra/`; what was done here is said in each section, and where it is less, figures are not "
            "comparable. ListOps and Pathfinder are made anew, by the descriptions of their generators.",
            table,
        ]
    page = top / "README.md"
    write_text(page, "\n\n".join(head + sections) + "\n")
    print(page)
    return page


if __name__ == "__main__":
    run_as_script(main)
