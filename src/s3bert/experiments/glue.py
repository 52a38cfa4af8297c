"""Finetuning on GLUE: the trials of one task, and what they publish."""

import functools
import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from datasets import Dataset
from transformers import AutoModelForSequenceClassification

import s3bert  # noqa: F401  (registers S3BERT and PoNet with the auto classes)
from s3bert.data.shuffled import ShuffledBatches
from s3bert.files import as_markdown, write_text
from s3bert.models.sparse_baselines import transform_in_float32
from s3bert.reports.model_card import Metric, write_model_card
from s3bert.tasks.glue import GLUE_TASKS, glue_dataset, rows_crc32, shortfall
from s3bert.tasks.glue_batches import EncodedRows, GlueEvaluation, write_submission
from s3bert.training.arguments import GridConfig, TrainingConfig
from s3bert.training.finetuning import StartingPoint
from s3bert.training.grid import Setting, grid_results, publish_model, run_grid, settings_table
from s3bert.training.loop import TrainingResult, train
from s3bert.training.settings import changes_in_words


logger = logging.getLogger(__name__)


def finetune(
    name: str,
    splits: dict[str, Dataset],
    start: StartingPoint,
    grid: GridConfig,
    settings: dict[str, Any],
    pad_to_max_length: bool = False,
    group_by_length: bool = True,
) -> list[Setting]:
    """Trains the grid's trials on one task; returns its settings, the best first.

    Args:
        splits: the rows to use. settings: of the command, as `training/settings.py` says.
        pad_to_max_length: pad every batch to the starting point's length. group_by_length: batches of similar lengths.
    """
    if start.needs_fixed_length and not pad_to_max_length:
        logger.info("%s has no attention mask: every batch is padded to %d tokens.", start, start.max_seq_length)
        pad_to_max_length = True

    if grid.torch_compile:
        torch.compiler.reset()  # a task's trials share what is compiled; other tasks' would count against dynamo's limit

    @functools.cache  # rows are tokenised only when a trial is left to train, and once
    def encoded(split: str) -> EncodedRows:
        multiple = 8 if grid.mixed_precision in ("fp16", "bf16") else 1
        return EncodedRows(
            splits[split], GLUE_TASKS[name], start.tokenizer, start.max_seq_length, pad_to_max_length, multiple
        )

    def train_trial(trial: TrainingConfig) -> TrainingResult:
        model = transform_in_float32(start.classifier(GLUE_TASKS[name].label_names, trial.seed))
        batches = ShuffledBatches(encoded("train"), trial.sequences_per_step, trial.seed, group_by_length)
        held_out = {split: encoded(split) for split in splits if split != "train"}
        evaluation = GlueEvaluation(name, held_out, trial.per_device_eval_batch_size, Path(trial.output_dir))
        trial = replace(trial, save_steps=trial.save_steps or len(batches))
        return train(model, batches, trial, evaluation, start.tokenizer, settings=settings)

    settings = settings | {
        "task": name,
        "rows": {split: len(part) for split, part in splits.items()},
        "crc32": {split: rows_crc32(part) for split, part in splits.items()},
        "weights": start.weights,
        "max_seq_length": start.max_seq_length,
        "pad_to_max_length": pad_to_max_length,
        "group_by_length": group_by_length,
    }
    return run_grid(grid, settings, train_trial)


def submit(
    name: str,
    tests: dict[str, Dataset],
    start: StartingPoint,
    model_folder: Path,
    folder: Path,
    batch_size: int,
    pad_to_max_length: bool = False,
) -> None:
    """Writes a finetuned model's predictions for GLUE's server into `folder`, on all processes together.

    Args:
        tests: rows by file name, as `load_tests` gives them. model_folder: of the finetuned model.
    """
    task, accelerator = GLUE_TASKS[name], Accelerator()
    model = AutoModelForSequenceClassification.from_pretrained(
        model_folder, dtype=torch.float32, trust_remote_code=start.trust_remote_code
    )
    model = transform_in_float32(model).to(accelerator.device).eval()
    for file, rows in tests.items():
        unlabelled = rows.select_columns(list(task.columns)).add_column("label", [0] * len(rows))
        fixed = pad_to_max_length or start.needs_fixed_length
        encoded = EncodedRows(unlabelled, task, start.tokenizer, start.max_seq_length, fixed)
        write_submission(folder / file, rows, task, encoded, model, accelerator, batch_size)


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
    data = "Trained and evaluated on all official rows."
    if task.generate is not None:
        data = "Trained and evaluated on generated data, which is no part of GLUE."
    elif missing:
        data = f"Not the official data: {', '.join(missing)}."
    table = settings_table(settings, f"{results['score_is']} on {scored}, x 100")
    text = f"## {name}\n\n{table}\n\nStarted from {as_markdown(start)}. {data}\n"
    write_text(folder / "results.md", text)
    print(f"\n{text}")

    metrics = [
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
        **changes_in_words(trial.changes),
    }
    local = Path(start.name).exists()
    about = f"{as_markdown(Path(start.name).name)} finetuned on {name}; setting and seed were chosen on {scored}."
    base_model = None if local else start.name
    write_model_card(
        folder / "README.md", folder.name, start.model_type, f"{about} {data}", metrics, facts, command, base_model
    )
    write_text(folder / "all_results.json", json.dumps(results, indent=1) + "\n")  # last: it says that all is there
    return results
