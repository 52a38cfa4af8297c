"""Draws the losses of pretraining runs on one picture, training and held out, against optimiser steps.

python scripts/plot_losses.py losses.png runs/s3bert-mini runs/bert-mini
"""

import argparse
import json
from pathlib import Path

from s3bert.arguments import run_as_script
from s3bert.reports.losses import plot_losses
from s3bert.training.log import read_log


def main(argv: list[str] | None = None) -> None:
    """Reads each run's `log.jsonl` and the unigram entropy of its `all_results.json`, where it has one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("picture", type=Path, help="the PNG to write")
    parser.add_argument("runs", type=Path, nargs="+", help="output folders of pretrain_mlm.py")
    arguments = parser.parse_args(argv)
    runs = {run.name: read_log(run / "log.jsonl") for run in arguments.runs}
    for run, records in runs.items():
        if not records:
            raise FileNotFoundError(
                f"The run {run} has no log.jsonl with records: name output folders of pretrain_mlm.py."
            )
    results = [run / "all_results.json" for run in arguments.runs if (run / "all_results.json").exists()]
    entropies = {json.loads(file.read_text()).get("unigram_entropy") for file in results}
    plot_losses(arguments.picture, runs, entropies.pop() if len(entropies) == 1 else None)


if __name__ == "__main__":
    run_as_script(main)
