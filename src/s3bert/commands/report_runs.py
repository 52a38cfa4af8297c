"""Makes one page of several runs: an overview of all tasks or series, then each run's own table and plots.

    s3bert report --runs runs/listops runs/image runs/image-ablation --title "Long Range Arena" \\
        --output_dir model_cards/lra
    s3bert report --runs runs/ettm2 runs/ili --title "Long-term forecasting" --output_dir model_cards/forecasting

A run is an output folder of s3bert lra, copy-task, approximation or forecasting. The page, `README.md`, says what each run
wrote itself; the runs' own `all_results.json`, `arguments.yaml`, `results.md` and plots are copied beside it, so that a page can be
extended: --runs model_cards/lra/runs/* runs/text --output_dir model_cards/lra.
"""

import json
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from s3bert.arguments import option, parse_arguments
from s3bert.commands import run
from s3bert.files import write_text


FILES = ("all_results.json", "arguments.yaml", "results.md")


@dataclass
class ReportArguments:
    """Which runs, and where the page goes."""

    runs: list[str] = option(help="output folders of runs, in the page's order; their names are the sections' names")
    title: str = option(help="the page's heading")
    output_dir: str = option(help="folder of the page")

    def __post_init__(self):
        for name in map(Path, self.runs):
            for file in FILES:
                if not (name / file).is_file():
                    raise ValueError(f"runs: {name} has no {file}; name output folders of runs that have ended.")
        names = [Path(name).name for name in self.runs]
        if len(set(names)) < len(names):
            raise ValueError(
                f"runs = {' '.join(self.runs)}: two folders have the same name, and would overwrite each other."
            )


def overview(runs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What stands above the runs' own sections: tables of all of them, each with what is to be known about it."""
    from s3bert.reports.forecasting import forecast_overview
    from s3bert.reports.lra import lra_overview
    from s3bert.tasks.forecasting import FORECAST_DATASETS

    parts = []
    if compared := {name: content for name, content in runs.items() if content.get("comparison") == "mixers"}:
        parts += [
            "Test accuracy in percent, mean and standard deviation over seeds, beside the papers'. The papers trained for the whole "
            "schedules of `configs/lra/`; what was done here is said in each section, and where it is less, figures are not "
            "comparable. ListOps and Pathfinder are made anew, by the descriptions of their generators.",
            lra_overview(compared),
        ]
    if forecasts := {name: content for name, content in runs.items() if "horizons" in content}:
        own = {name: dataset.horizons for name, dataset in FORECAST_DATASETS.items()}
        parts += [
            "Test errors over all windows, beside the paper's. Of several variants of a forecaster the one with the least "
            "error on validation is meant, horizon by horizon. For ILI the paper has the same figures with 36 weeks of context (journal) "
            "and with 60 (preprint).",
            forecast_overview(forecasts, own),
        ]
    return parts


def main(argv: list[str] | None = None) -> Path:
    """Runs the script; returns the page."""
    (arguments,) = parse_arguments((ReportArguments,), argv, __doc__)
    top = Path(arguments.output_dir)
    folders = [Path(name) for name in arguments.runs]
    pages = {folder.name: (folder / "results.md").read_text(encoding="utf-8").rstrip() for folder in folders}
    titles = Counter(page.splitlines()[0] for page in pages.values())
    runs = {folder.name: json.loads((folder / "all_results.json").read_text(encoding="utf-8")) for folder in folders}
    for name, content in runs.items():
        if not content.get("complete", True):
            raise ValueError(f"runs: {name} has not come to its end; its command, given again, goes on.")
    sections = []
    for folder in folders:
        copies = top / "runs" / folder.name
        copies.mkdir(parents=True, exist_ok=True)
        plots = sorted(folder.glob("*.png"))
        if not copies.samefile(folder):  # it is, for a run that the page has already
            for file in (*(folder / name for name in FILES), *plots):
                shutil.copyfile(file, copies / file.name)
        where = f"runs/{folder.name}"
        title, _, rest = pages[folder.name].partition("\n")
        sections.append(f"#{title}{f' ({folder.name})' if titles[title] > 1 else ''}\n{rest}")
        sections += [f"![{folder.name}]({where}/{plot.name})" for plot in plots]
        sections.append(f"[Figures]({where}/all_results.json), [arguments]({where}/arguments.yaml)")
    page = top / "README.md"
    write_text(page, "\n\n".join([f"# {arguments.title}", *overview(runs), *sections]) + "\n")
    print(page)
    return page


if __name__ == "__main__":
    run("report")
