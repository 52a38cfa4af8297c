"""Generates the data of two Long Range Arena tasks: ListOps and Pathfinder.

    s3bert prepare-lra --task_name listops --output_dir data/lra
    s3bert prepare-lra --task_name pathfinder --output_dir data/lra --num_train 20000 --num_val 2000 --num_test 2000

The files go into a folder of the task's name, where `s3bert lra` looks. Pathfinder's are drawn by the description of the released
ones: accuracies on them are not comparable to the last point. After a kill the same command goes on with Pathfinder's images, and
writes ListOps' rows, a matter of seconds, again.
"""

from dataclasses import dataclass
from pathlib import Path

from s3bert.arguments import Arguments, option, parse_arguments
from s3bert.commands import run


TASKS = ("listops", "pathfinder")


@dataclass
class PrepareArguments(Arguments):
    """Task, and how much of it to generate."""

    task_name: str = option(help="listops or pathfinder")
    output_dir: str = option(help="folder for the task's own folder", default="data/lra")
    num_train: int | None = option(least=1, help="training examples; as many as officially by default", default=None)
    num_val: int | None = option(least=1, help="validation examples", default=None)
    num_test: int | None = option(least=1, help="test examples", default=None)
    seed: int = option(least=0, below=2**32, help="of all draws", default=0)
    num_workers: int | None = option(
        least=1, most=1024, help="processes that draw images; all cores by default", default=None
    )

    def __post_init__(self):
        super().__post_init__()
        if self.task_name not in TASKS:
            raise ValueError(
                f"Unknown task {self.task_name!r}: {' and '.join(TASKS)} are generated, the others are read from "
                "files (see s3bert lra --help)."
            )


def main(argv: list[str] | None = None) -> Path:
    """Runs the command; returns the task's folder."""
    (arguments,) = parse_arguments((PrepareArguments,), argv, __doc__)
    from s3bert.folder_lock import locked_folder
    from s3bert.tasks import listops, pathfinder_files

    folder = Path(arguments.output_dir) / arguments.task_name
    generated = {"listops": listops, "pathfinder": pathfinder_files}[arguments.task_name]
    sizes = {split: getattr(arguments, f"num_{split}") or usual for split, usual in generated.OFFICIAL_SIZES.items()}
    with locked_folder(folder):
        if arguments.task_name == "listops":
            listops.write_listops(folder, sizes, arguments.seed)
        else:
            pathfinder_files.write_pathfinder(folder, sizes, arguments.seed, arguments.num_workers)
    print(f"{folder}: {', '.join(f'{name} {count:,}' for name, count in sizes.items())}")
    return folder


if __name__ == "__main__":
    run("prepare-lra")
