"""Repeats the paper's Table 3 under one budget: BERT, FNet, PoNet, S3BERT.

    s3bert table3 --config table3/smoke --output_dir runs/table3-smoke
    s3bert table3 --config table3/paper --output_dir runs/table3

Every model reads the same packed corpus in the same batches with the same mask draws at every step, and the same GLUE
batches. Each run is a job, `s3bert pretrain` or `s3bert glue` in a folder of its own under the output folder.
A finished job is never run again, and one that was cut off goes on from its checkpoint: give the same command again.
Whenever a job ends the output folder's `report/` is written again: `results.json` (with what each job wrote, which every number comes
from), `results.md` (measured, the paper's, and both as percentages of BERT), `results.png`, and a model card for each model.

A model is a name as in `configs/model/NAME-SIZE.json`, with changes to that configuration if need be, as in
`s3bert:num_segments=4,smoother_norm=layer`: an ablation is one more entry.
"""

import shlex
import sys
from typing import Any

from s3bert.arguments import parse_arguments
from s3bert.commands import run
from s3bert.experiments.budget import Budget


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Runs the command; returns the content of `results.json`."""
    (budget,) = parse_arguments((Budget,), argv, __doc__)
    from s3bert.experiments.table3 import Comparison
    from s3bert.folder_lock import locked_folder

    words = sys.argv[1:] if argv is None else argv
    comparison = Comparison(budget, shlex.join(["s3bert", "table3", *words]))
    with locked_folder(comparison.folder):
        comparison.claim()
        if budget.pack:
            comparison.pack()
            return comparison.results()
        comparison.run()
        results = comparison.report()
        print((comparison.reported / "results.md").read_text(encoding="utf-8"))
        print(f"Tables, plots and model cards are in {comparison.reported}.")
    return results


if __name__ == "__main__":
    run("table3")
