"""Finetunes a checkpoint on GLUE: one task, several, or all of the paper's Table 3, over a grid of settings and seeds.

    accelerate launch scripts/run_glue.py --config configs/glue/paper.yaml --model_name_or_path runs/base \\
        --task_name all --output_dir runs/base-glue
    python scripts/run_glue.py --config configs/glue/small.yaml --model_name_or_path runs/small --task_name sst2 cola \\
        --dataset_name path/to/glue --seed 1 2 3 --output_dir runs/small-glue

`--learning_rate`, `--per_device_train_batch_size`, `--num_train_epochs` and `--seed` take several values. The setting with
the best mean over seeds is reported, beside the best seed, the spread and every trial, in `all_results.json` and
`results.md`; the best trial's model, predictions and model card make the output folder a complete Hub repository. The
same call again goes on where it was stopped. Several tasks get a folder each, and a summary.
"""

import functools
import json
import logging
import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers.hf_argparser import HfArg

import s3bert  # noqa: F401  (registers S3BERT and PoNet with the auto classes)
from s3bert.arguments import parse_arguments, run_as_script, save_arguments
from s3bert.data.shuffled import ShuffledBatches
from s3bert.files import write_text
from s3bert.reports.model_card import Metric, write_model_card
from s3bert.reports.repository import push_folder
from s3bert.tasks.glue import (
    GLUE_TASKS,
    TABLE_3,
    MissingSplitError,
    find_task,
    glue_dataset,
    load_task,
    shortfall,
    summary,
)
from s3bert.tasks.glue_batches import EncodedRows, GlueEvaluation
from s3bert.training.finetuning import StartingPoint
from s3bert.training.grid import GridConfig, Setting, grid_results, publish_model, run_grid, settings_table
from s3bert.training.loop import TrainingConfig, TrainingResult, process_state, train


logger = logging.getLogger(__name__)


@dataclass
class ModelArguments:
    """What to finetune."""

    model_name_or_path: str = HfArg(help="checkpoint to start from: a folder or a Hub id")
    tokenizer_name: str | None = HfArg(help="tokenizer, if it is not in the checkpoint", default=None)
    from_finetuned: bool = HfArg(
        help="start from a finetuned checkpoint (as RTE, MRPC, STS-B from MNLI); the results say so", default=False
    )
    trust_remote_code: bool = HfArg(help="run modelling code that comes with a checkpoint", default=False)


@dataclass
class GlueArguments:
    """The tasks, how their rows become batches, and publishing."""

    task_name: list[str] = HfArg(help="cola, sst2, ... (a wrong name lists them); `all` for the eight of Table 3")
    dataset_name: str = HfArg(help="a Hub dataset, or a folder with one subfolder a task", default="nyu-mll/glue")
    max_seq_length: int = HfArg(help="longer inputs are cut to so many tokens", default=128)
    pad_to_max_length: bool = HfArg(help="pad every batch to max_seq_length", default=False)
    group_by_length: bool = HfArg(help="batches of rows of similar length, so that little is padded", default=True)
    max_train_samples: int | None = HfArg(help="train on the first rows only", default=None)
    max_eval_samples: int | None = HfArg(help="evaluate on the first rows only", default=None)
    push_to_hub: bool = HfArg(help="upload each task's finished folder", default=False)
    hub_model_id: str | None = HfArg(
        help="repository to upload to (of several tasks: its beginning); the folder's name by default", default=None
    )


def finetune(
    name: str, splits: dict[str, Dataset], start: StartingPoint, glue: GlueArguments, grid: GridConfig
) -> tuple[list[Setting], dict[str, int]]:
    """Trains the grid's trials on one task; returns its settings, the best first, and the rows used of each split."""
    limits = dict.fromkeys(splits, glue.max_eval_samples) | {"train": glue.max_train_samples}
    splits = {split: rows.select(range(min(len(rows), limits[split] or len(rows)))) for split, rows in splits.items()}
    pad_to_max_length = glue.pad_to_max_length or start.needs_fixed_length
    if start.needs_fixed_length and not glue.pad_to_max_length:
        logger.info("%s has no attention mask: every batch is padded to %d tokens.", start, start.max_seq_length)

    if grid.torch_compile:
        torch.compiler.reset()  # a task's trials share what is compiled; other tasks' would count against dynamo's limit

    @functools.cache  # rows are tokenised only when a trial is left to train, and once
    def encoded(split: str) -> EncodedRows:
        multiple = 8 if grid.mixed_precision in ("fp16", "bf16") else 1
        return EncodedRows(
            splits[split], GLUE_TASKS[name], start.tokenizer, start.max_seq_length, pad_to_max_length, multiple
        )

    def train_trial(trial: TrainingConfig) -> TrainingResult:
        model = start.classifier(GLUE_TASKS[name].label_names, trial.seed)
        batches = ShuffledBatches(encoded("train"), trial.global_batch_size(), trial.seed, glue.group_by_length)
        held_out = {split: encoded(split) for split in splits if split != "train"}
        evaluation = GlueEvaluation(name, held_out, trial.per_device_eval_batch_size, Path(trial.output_dir))
        trial = replace(trial, save_steps=trial.save_steps or len(batches))
        return train(model, batches, trial, evaluation, start.tokenizer)

    rows = {split: len(part) for split, part in splits.items()}
    identity = {
        "task": name,
        "dataset": glue.dataset_name,
        "rows": rows,
        "started_from": str(start),
        "weights": start.identity,
        "max_seq_length": start.max_seq_length,
        "pad_to_max_length": pad_to_max_length,
        "group_by_length": glue.group_by_length,
    }
    return run_grid(grid, identity, train_trial), rows


def publish(
    name: str, settings: list[Setting], rows: dict[str, int], start: StartingPoint, folder: Path, command: str
) -> dict[str, Any]:
    """Makes the output folder: the best model, `all_results.json` (returned), `results.md` (printed), the model card."""
    task, trial = GLUE_TASKS[name], settings[0].best_trial
    scored = next(iter(task.evaluation_splits))
    missing = shortfall(name, rows)
    results = grid_results(settings) | {
        "task": name,
        "score_is": ("mean of " if len(task.score) > 1 else "") + " and ".join(task.score),
        "started_from": str(start),
        "train_samples": rows["train"],
        "eval_samples": rows[scored],
        "not_the_official_data": missing,
    }
    publish_model(folder / "trials" / trial.name, folder)
    data = f"Not the official data: {', '.join(missing)}." if missing else "Trained and evaluated on all official rows."
    table = settings_table(settings, f"{results['score_is']} on {scored}, x 100")
    text = f"## {name}\n\n{table}\n\nStarted from {start}. {data}\n"
    write_text(folder / "results.md", text)
    print(f"\n{text}")

    figures = [
        Metric(
            "text-classification",
            split,
            metric,
            trial.metrics[metric + suffix],
            *glue_dataset(name),
            "; ".join(missing),
        )
        for split, suffix in task.evaluation_splits.items()
        if split in rows
        for metric in task.metrics
    ]
    facts = {
        "finetuned from": start,
        "score of this checkpoint": f"{trial.score:.4f} ({results['score_is']}), best seed of the best of {len(settings)} settings",
        "mean over its setting's seeds": f"{results['score_mean']:.4f} ({results['num_seeds']} seeds)",
        "learning rate": f"{trial.learning_rate:g}",
        "batch, epochs, seed": f"{trial.batch_size}, {trial.num_train_epochs:g}, {trial.seed}",
        "training rows": f"{rows['train']:,}",
    }
    local = Path(start.name).exists()
    about = f"{Path(start.name).name} finetuned on {name}; setting and seed were chosen on {scored}."
    base_model = None if local else start.name
    write_model_card(
        folder / "README.md", folder.name, start.model_type, f"{about} {data}", figures, facts, command, base_model
    )
    write_text(folder / "all_results.json", json.dumps(results, indent=1) + "\n")  # last: it says that all is there
    return results


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Runs the script; returns the content of the output folder's `all_results.json`."""
    model, glue, grid = parse_arguments((ModelArguments, GlueArguments, GridConfig), argv, __doc__)
    words = sys.argv[1:] if argv is None else argv
    command = shlex.join(["accelerate", "launch", "scripts/run_glue.py", *words])
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
    tasks, not_run = {}, {}
    with process_state().local_main_process_first():
        for name in names:
            try:
                tasks[name] = load_task(name, glue.dataset_name)
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
        settings, rows = finetune(name, splits, start, glue, replace(grid, output_dir=str(folder)))
        if process_state().is_main_process:
            results[name] = publish(name, settings, rows, start, folder, command)
            save_arguments(folder / "arguments.yaml", model, replace(glue, task_name=[name]), grid)
            if glue.push_to_hub:
                end = f"-{name}" if len(names) > 1 else ""
                push_folder(folder, glue.hub_model_id + end if glue.hub_model_id else None)
    if process_state().is_main_process and len(names) > 1:
        figures, table = summary(results, not_run)
        write_text(top / "results.md", table + "\n")
        write_text(top / "all_results.json", json.dumps(figures, indent=1) + "\n")
        print(f"\n{table}\n")
    process_state().wait_for_everyone()
    return json.loads((top / "all_results.json").read_text())


if __name__ == "__main__":
    run_as_script(main)
