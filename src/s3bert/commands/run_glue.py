"""Finetunes a checkpoint on GLUE, over a grid of settings and seeds.

    s3bert glue --config glue/paper --model_name_or_path runs/base --task_name all --output_dir runs/base-glue
    s3bert glue --config glue/small --model_name_or_path runs/small --task_name sst2 cola --dataset_name path/to/glue \\
        --seed 1 2 3 --output_dir runs/small-glue

One task, several, or `all` of the paper's Table 3. `--learning_rate`, `--per_device_train_batch_size`, `--num_train_epochs` and
`--seed` take several values. The setting with the best mean over seeds is reported, beside the best seed, the spread and every
trial, in `all_results.json` and `results.md`; the best trial's model, predictions and model card make the output folder a complete
Hub repository. The same call again goes on where it was stopped. Several tasks get a folder each, and a summary. Files of your own,
texts or pairs of texts, are for `s3bert finetune`.
"""

import json
import logging
import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from s3bert.arguments import Arguments, option, parse_arguments, save_arguments
from s3bert.commands import run
from s3bert.files import write_text
from s3bert.training.arguments import GridConfig


logger = logging.getLogger(__name__)


@dataclass
class ModelArguments(Arguments):
    """Model: what to finetune."""

    model_name_or_path: str = option(free=True, help="checkpoint to start from: a folder or a Hub id")
    tokenizer_name: str | None = option(help="tokenizer, if it is not in the checkpoint", default=None)
    from_finetuned: bool = option(
        help="start from a finetuned checkpoint (as RTE, MRPC, STS-B from MNLI); the results say so", default=False
    )
    trust_remote_code: bool = option(help="run modelling code that comes with a checkpoint", default=False)


@dataclass
class GlueArguments(Arguments):
    """Tasks, how their rows become batches, and publishing."""

    task_name: list[str] = option(
        free=True, help="cola, sst2, ... (a wrong name lists them); `all` for the eight of Table 3"
    )
    dataset_name: str = option(
        free=True, help="a Hub dataset, or a folder with one subfolder a task", default="nyu-mll/glue"
    )
    max_seq_length: int = option(least=3, help="longer inputs are cut to so many tokens", default=128)
    pad_to_max_length: bool = option(help="pad every batch to max_seq_length", default=False)
    group_by_length: bool = option(help="batches of rows of similar length, so that little is padded", default=True)
    max_train_samples: int | None = option(free=True, least=1, help="train on the first rows only", default=None)
    max_eval_samples: int | None = option(free=True, least=1, help="evaluate on the first rows only", default=None)
    do_predict: bool = option(
        free=True,
        help="also predict the test splits with the best model, into submission/, in the files that GLUE's server takes",
        default=False,
    )
    push_to_hub: bool = option(free=True, help="upload each task's finished folder", default=False)
    hub_model_id: str | None = option(
        free=True,
        help="repository to upload to (of several tasks: its beginning); the folder's name by default",
        default=None,
    )


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Runs the command; returns the content of the output folder's `all_results.json`."""
    model, glue, grid = parse_arguments((ModelArguments, GlueArguments, GridConfig), argv, __doc__)
    from s3bert.training.processes import locked_for_run

    command = shlex.join(["s3bert", "glue", *(sys.argv[1:] if argv is None else argv)])
    with locked_for_run(Path(grid.output_dir)):
        return _finetune(model, glue, grid, command)


def _finetune(model: ModelArguments, glue: GlueArguments, grid: GridConfig, command: str) -> dict[str, Any]:
    from s3bert.experiments.glue import finetune, publish, submit
    from s3bert.reports.repository import push_folder
    from s3bert.tasks.glue import TABLE_3, MissingSplitError, find_task, load_task, load_tests, summary
    from s3bert.training.finetuning import StartingPoint
    from s3bert.training.processes import main_process_first, process_state
    from s3bert.training.settings import settings_of

    everything = "all" in glue.task_name
    names = list(TABLE_3) if everything else list(dict.fromkeys(glue.task_name))
    for name in names:
        find_task(name)
    # All is read and checked before anything is trained.
    start = StartingPoint(
        model.model_name_or_path,
        glue.max_seq_length,
        model.tokenizer_name,
        model.from_finetuned,
        model.trust_remote_code,
    )
    tasks, tests, not_run = {}, {}, {}
    with main_process_first():
        for name in names:
            try:
                splits = load_task(name, glue.dataset_name)
                tests[name] = load_tests(name, glue.dataset_name) if glue.do_predict else {}
                tasks[name] = splits
            except (MissingSplitError, FileNotFoundError) as error:
                if not everything:
                    raise
                logger.warning("Not run: %s", error)
                not_run[name] = str(error)
    if not tasks:
        raise ValueError(f"None of the tasks can be run; {names[0]}, for one: {not_run[names[0]]}")

    top, results = Path(grid.output_dir), {}
    for name, splits in tasks.items():
        folder = top if len(names) == 1 else top / name
        limits = dict.fromkeys(splits, glue.max_eval_samples) | {"train": glue.max_train_samples}
        splits = {
            split: data.select(range(min(len(data), limits[split] or len(data)))) for split, data in splits.items()
        }
        how = (settings_of(model, glue), glue.pad_to_max_length, glue.group_by_length)
        settings = finetune(name, splits, start, replace(grid, output_dir=str(folder)), *how)
        if process_state().is_main_process:
            rows = {split: len(data) for split, data in splits.items()}
            results[name] = publish(name, settings, rows, start, folder, command)
            save_arguments(folder / "arguments.yaml", model, replace(glue, task_name=[name]), grid)
        process_state().wait_for_everyone()  # for the published model
        if tests[name]:
            batch_size = grid.per_device_eval_batch_size
            submit(name, tests[name], start, folder, top / "submission", batch_size, glue.pad_to_max_length)
        if process_state().is_main_process and glue.push_to_hub:
            end = f"-{name}" if len(names) > 1 else ""
            push_folder(folder, glue.hub_model_id + end if glue.hub_model_id else None)
    if process_state().is_main_process and len(names) > 1:
        content, table = summary(results, not_run)
        write_text(top / "results.md", table + "\n")
        save_arguments(top / "arguments.yaml", model, replace(glue, task_name=list(tasks)), grid)
        write_text(top / "all_results.json", json.dumps(content, indent=1) + "\n")
        print(f"\n{table}\n")
    if process_state().is_main_process:
        several = ", a folder for each task" if len(names) > 1 else ""
        print(f"The best model, results.md and the model card are in {top}{several}.")
    process_state().wait_for_everyone()
    return json.loads((top / "all_results.json").read_text())


if __name__ == "__main__":
    run("glue")
