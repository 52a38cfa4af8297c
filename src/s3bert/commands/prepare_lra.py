"""Makes the data of the Long Range Arena tasks that are generated: ListOps and Pathfinder.

    python scripts/prepare_lra.py --task_name listops --output_dir data/lra
    python scripts/prepare_lra.py --task_name pathfinder --output_dir data/lra --num_train 20000 --num_val 2000 --num_test 2000

The files go into a folder of the task's name, where scripts/run_lra.py looks. Pathfinder's are drawn anew by the description of
the released ones: figures on them are not comparable to the last point. After a kill the same command goes on with Pathfinder's
pictures, and makes ListOps' rows, a matter of seconds, anew.
"""

from dataclasses import dataclass
from pathlib import Path

from transformers.hf_argparser import HfArg

from s3bert.arguments import parse_arguments, run_as_script
from s3bert.tasks import listops, pathfinder_files


OFFICIAL_SIZES = {"listops": listops.OFFICIAL_SIZES, "pathfinder": pathfinder_files.OFFICIAL_SIZES}


@dataclass
class PrepareArguments:
    """What to make, and how much of it."""

    task_name: str = HfArg(help="listops or pathfinder")
    output_dir: str = HfArg(help="folder for the task's own folder", default="data/lra")
    num_train: int | None = HfArg(help="training examples; as many as officially by default", default=None)
    num_val: int | None = HfArg(help="validation examples", default=None)
    num_test: int | None = HfArg(help="test examples", default=None)
    seed: int = HfArg(help="of all draws", default=0)
    num_workers: int | None = HfArg(help="processes that draw pictures; all cores by default", default=None)

    def __post_init__(self):
        if self.task_name not in OFFICIAL_SIZES:
            raise ValueError(
                f"Unknown task {self.task_name!r}: {' and '.join(OFFICIAL_SIZES)} are generated, the others are read from "
                "files (see scripts/run_lra.py)."
            )
        for name in ("num_train", "num_val", "num_test"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}: give at least 1.")


def main(argv: list[str] | None = None) -> Path:
    """Runs the script; returns the task's folder."""
    (arguments,) = parse_arguments((PrepareArguments,), argv, __doc__)
    folder = Path(arguments.output_dir) / arguments.task_name
    official = OFFICIAL_SIZES[arguments.task_name]
    sizes = {split: getattr(arguments, f"num_{split}") or usual for split, usual in official.items()}
    if arguments.task_name == "listops":
        listops.write_listops(folder, sizes, arguments.seed)
    else:
        pathfinder_files.write_pathfinder(folder, sizes, arguments.seed, arguments.num_workers)
    print(f"{folder}: {', '.join(f'{name} {count:,}' for name, count in sizes.items())}")
    return folder


if __name__ == "__main__":
    run_as_script(main)
