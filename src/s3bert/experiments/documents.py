"""Finetuning on one's own documents: the trials, and what they publish."""

import functools
import json
import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from accelerate import Accelerator

import s3bert  # noqa: F401  (registers S3BERT and PoNet with the auto classes)
from s3bert.data.shuffled import ShuffledBatches
from s3bert.files import as_markdown, mean_and_deviation, table, write_text
from s3bert.models.sparse_baselines import transform_in_float32
from s3bert.reports.learning_curves import plot_learning_curves
from s3bert.reports.model_card import Metric, write_model_card
from s3bert.tasks.document_batches import DocumentEvaluation, EncodedDocuments
from s3bert.tasks.documents import Documents
from s3bert.tasks.glue import rows_crc32
from s3bert.training.arguments import GridConfig, TrainingConfig
from s3bert.training.finetuning import StartingPoint
from s3bert.training.grid import Setting, grid_results, publish_model, run_grid, settings_table, with_test_metrics
from s3bert.training.log import read_log
from s3bert.training.loop import TrainingResult, train
from s3bert.training.settings import changes_in_words

from .longer_positions import lengthen, lengthening


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Reading:
    """How a model reads documents: as in `EncodedDocuments`; `group_by_length`, batches of similar lengths."""

    max_seq_length: int
    window: int | None = None
    stride: int | None = None
    pad_to_max_length: bool = False
    group_by_length: bool = True

    @property
    def tokens_at_once(self) -> int:
        """What the model has to take."""
        return self.window or self.max_seq_length

    def __str__(self) -> str:
        windows = f" in windows of {self.window:,}, whose logits are averaged" if self.window else ""
        return f"up to {self.max_seq_length:,} tokens of a document{windows}"


def finetune(
    documents: Documents, start: StartingPoint, grid: GridConfig, reading: Reading, settings: dict[str, Any]
) -> list[Setting]:
    """Trains the grid's trials; returns its settings, the best first. A model with fewer positions is lengthened.

    Each trial's metrics are of the validation rows, `test_...` of the test rows, and `cut_<split>`, how many documents were cut.

    Args:
        settings: of the command, as `training/settings.py` says.
    """
    if start.needs_fixed_length and not reading.pad_to_max_length:
        logger.info("%s has no attention mask: every batch is padded to %d tokens.", start, reading.tokens_at_once)
        reading = replace(reading, pad_to_max_length=True)
    if longer := lengthening(str(start), start.positions, reading.tokens_at_once):
        logger.info("%s", longer)

    @functools.cache  # documents are tokenised only when a trial is left to train, and once
    def encoded(split: str) -> EncodedDocuments:
        multiple = 8 if grid.mixed_precision in ("fp16", "bf16") else 1
        how = (reading.max_seq_length, reading.window, reading.stride, reading.pad_to_max_length, multiple)
        rows = EncodedDocuments(documents.splits[split], documents.task, start.tokenizer, *how)
        told = (split, rows.documents_cut, len(documents.splits[split]), reading.max_seq_length)
        logger.info("%s: %d of %d documents are longer than %d tokens, and their ends are cut.", *told)
        return rows

    def train_trial(trial: TrainingConfig) -> TrainingResult:
        model = start.classifier(documents.label_names, trial.seed)
        lengthen(model, reading.tokens_at_once)
        model = transform_in_float32(model)
        batches = ShuffledBatches(encoded("train"), trial.sequences_per_step, trial.seed, reading.group_by_length)
        evaluations = {
            split: DocumentEvaluation(
                encoded(split),
                documents.label_names,
                trial.per_device_eval_batch_size,
                Path(trial.output_dir) / f"predict_results_{split}.txt",
            )
            for split in documents.splits
            if split != "train"
        }
        trial = replace(trial, save_steps=trial.save_steps or len(batches))
        result = train(model, batches, trial, evaluations["validation"], start.tokenizer, settings=settings)
        if trial.load_best_model_at_end:  # its predictions, where the last evaluation left others
            evaluations["validation"](model.eval(), Accelerator())
        if "test" in evaluations:
            result = with_test_metrics(result, model, evaluations["test"])
        cut = {f"cut_{split}": encoded(split).documents_cut for split in documents.splits}
        return replace(result, metrics=result.metrics | cut)

    settings = settings | {
        "classes": list(documents.label_names),
        "rows": {split: len(rows) for split, rows in documents.splits.items()},
        "crc32": {split: rows_crc32(rows) for split, rows in documents.splits.items()},
        "weights": start.weights,
        "pad_to_max_length": reading.pad_to_max_length,
    }
    return run_grid(grid, settings, train_trial)


def publish(
    documents: Documents,
    settings: list[Setting],
    start: StartingPoint,
    reading: Reading,
    batch_size: int,
    folder: Path,
    command: str,
) -> dict[str, Any]:
    """Makes the output folder: the best model, `all_results.json` (returned), `results.md`, plot and model card.

    Args:
        batch_size: rows of an evaluation batch on one process, at which seconds were taken.
    """
    best, trial = settings[0], settings[0].best_trial
    rows = {split: len(part) for split, part in documents.splits.items()}
    cut = {split: int(trial.metrics[f"cut_{split}"]) for split in rows}
    results = grid_results(settings) | {
        "score_is": "accuracy",
        "started_from": str(start),
        "classes": list(documents.label_names),
        "samples": rows,
        "crc32": {split: rows_crc32(part) for split, part in documents.splits.items()},
        "documents_cut": cut,
        "max_seq_length": reading.max_seq_length,
        "sliding_window": reading.window,
        "window_stride": reading.stride,
        "per_device_eval_batch_size": batch_size,
    }
    publish_model(folder / "trials" / trial.name, folder)
    trials = [one for setting in settings for one in setting.trials]
    logs = {one.name: read_log(folder / "trials" / one.name / "log.jsonl") for one in trials}
    plot_learning_curves(folder / "learning_curves.png", logs, "accuracy")

    held_out = " (held out of the training file)" if documents.held_out else ""
    names = {"accuracy": ".4f", "macro_f1": ".4f", "loss": ".4f", "seconds_per_document": ".2g"}
    measured = [
        [
            f"{split}, {rows[split]:,} documents",
            name,
            mean_and_deviation([one.metrics[prefix + name] for one in best.trials], style),
        ]
        for split, prefix in (("validation", ""), ("test", "test_"))
        for name, style in names.items()
        if prefix + name in trial.metrics
    ]
    several = f"mean ± deviation of {len(best.trials)} seeds" if len(best.trials) > 1 else "one seed"
    longer = ", ".join(f"{number:,} of {rows[split]:,} {split}" for split, number in cut.items())
    about = f"The model reads {reading}; longer, and cut: {longer} documents. {as_markdown(lengthening(str(start), start.positions, reading.tokens_at_once))}".rstrip()
    text = "\n\n".join(
        [
            f"## {as_markdown(documents.title)}",
            settings_table(settings, f"accuracy on validation{held_out}, x 100"),
            f"The best setting, {several}; seconds are of inference in batches of {batch_size}:",
            table(["split", "metric", "value"], measured),
            "![learning curves](learning_curves.png)",
            f"Started from {as_markdown(start)}, {rows['train']:,} documents to train on. {about}\n",
        ]
    )
    write_text(folder / "results.md", text)

    metrics = [
        Metric("text-classification", split, name, trial.metrics[prefix + name], documents.title)
        for split, prefix in (("validation", ""), ("test", "test_"))
        for name in ("accuracy", "macro_f1")
        if prefix + name in trial.metrics
    ]
    facts = {
        "finetuned from": start,
        "accuracy of this checkpoint": f"{trial.score:.4f}, best seed of the best of {len(settings)} settings",
        "mean over its setting's seeds": f"{results['score_mean']:.4f} ({results['num_seeds']} seeds)",
        "learning rate": f"{trial.learning_rate:g}",
        "batch, epochs, seed": f"{trial.batch_size}, {trial.num_train_epochs:g}, {trial.seed}",
        "training documents": f"{rows['train']:,}",
        "seconds per document": f"{trial.metrics['seconds_per_document']:.2g}, in batches of {batch_size}",
        **changes_in_words(trial.changes),
    }
    local = Path(start.name).exists()
    summary = (
        f"{as_markdown(Path(start.name).name)} finetuned to tell {len(documents.label_names)} classes of documents apart "
        f"({as_markdown(documents.title)}); setting and seed were chosen on validation{held_out}. {about}"
    )
    write_model_card(
        folder / "README.md",
        folder.name,
        start.model_type,
        summary,
        metrics,
        facts,
        command,
        None if local else start.name,
        "learning_curves.png",
    )
    write_text(folder / "all_results.json", json.dumps(results, indent=1) + "\n")  # last: it says that all is there
    return results
