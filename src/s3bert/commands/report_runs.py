"""Takes finished runs into an experiment's results, and regenerates its page and plot.

    s3bert report --results_dir results/lra-image                             # from results.json alone
    s3bert report --results_dir results/lra-image --add runs/lra-image
    s3bert report --results_dir results/lra-retrieval --title "Long Range Arena: Retrieval" --add runs/retrieval

A run is an output folder of s3bert pretrain, pretrain-clm, glue, lra, copy-task, compare-clm, finetune, approximation, attention-rank,
forecasting, table3 or benchmark, or of `make torture`. Its arguments and results go into `results.json` under the folder's name. `results.md`,
`results.png` and the index beside the experiment's folder, `README.md`, are drawn from `results.json` alone. The sentences under `findings`
there are written by hand.
"""

from dataclasses import dataclass
from pathlib import Path

from s3bert.arguments import Arguments, option, parse_arguments
from s3bert.commands import run


@dataclass
class ReportArguments(Arguments):
    """Experiment: which, and what is new in it."""

    results_dir: str = option(help="folder of the experiment")
    add: list[str] = option(help="output folders of runs to take in", default_factory=list)
    title: str | None = option(help="heading of a new experiment", default=None)

    def __post_init__(self):
        super().__post_init__()
        there = (Path(self.results_dir) / "results.json").is_file()
        if not there and not (self.add and self.title):
            raise ValueError(
                f"results_dir = {self.results_dir} has no results.json: begin an experiment with --title and --add."
            )
        if there and self.title:
            raise ValueError(f"title: {self.results_dir} has one, in its results.json; change it there.")


def main(argv: list[str] | None = None) -> Path:
    """Runs the command; returns the page."""
    (arguments,) = parse_arguments((ReportArguments,), argv, __doc__)
    from s3bert.folder_lock import locked_folder
    from s3bert.reports.results import add_run, read_experiment, read_run, write_experiment

    folder = Path(arguments.results_dir)
    new = {"title": arguments.title, "findings": [], "runs": {}}
    with locked_folder(folder.parent):  # the index lies there
        experiment = new if arguments.title else read_experiment(folder)
        for name in map(Path, arguments.add):
            add_run(experiment, name.resolve().name, read_run(name))
        write_experiment(folder, experiment)
    print(f"The page, its plot and all numbers are in {folder}; {folder.parent / 'README.md'} is the index.")
    return folder / "results.md"


if __name__ == "__main__":
    run("report")
