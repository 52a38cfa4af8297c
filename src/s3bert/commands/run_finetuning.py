"""Finetunes a checkpoint to classify your own documents, long ones too.

    s3bert finetune --model_name_or_path runs/base --train_file reviews.csv --max_seq_length 2048 --output_dir runs/reviews
    s3bert finetune --model_name_or_path google-bert/bert-base-uncased --train_file train.jsonl.gz --validation_file dev.jsonl.gz \\
        --max_seq_length 2048 --sliding_window 512 --learning_rate 2e-5 5e-5 --seed 1 2 3 --output_dir runs/windows

Files are CSV, TSV, JSON lines or Parquet, packed as .gz or not, with the columns `text` and `label`: words or integers. Pairs of texts, as
premise and hypothesis, have a second column, `--text_pair_column`. Documents are read up to `--max_seq_length` tokens; the results say
how many were cut. A model with fewer positions is lengthened. With `--sliding_window` it is not: documents are cut into windows, each is
learnt with its document's label, and a document's logits are the mean over its windows. The grid, its trials, and going on where a call
was stopped are those of `s3bert glue`. The output folder is a complete Hub repository with the best trial's model, predictions, learning
curves, `results.md` and model card.
"""

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from s3bert.arguments import Arguments, option, parse_arguments, save_arguments
from s3bert.commands import run
from s3bert.experiments.arguments import HubArguments
from s3bert.training.arguments import GridConfig

from .run_glue import ModelArguments


@dataclass
class DocumentArguments(Arguments):
    """Documents, and how they are read."""

    train_file: str | None = option(free=True, help="file or glob of documents to train on", default=None)
    validation_file: str | None = option(
        free=True,
        help="file or glob of documents to choose settings by; a share of the training rows by default",
        default=None,
    )
    test_file: str | None = option(
        free=True,
        help="file or glob of documents that the finished models are tested on; without a column of labels they are predicted only",
        default=None,
    )
    dataset_name: str | None = option(
        free=True, help="in place of files: a folder with one a split (train.csv, ...), or a Hub dataset", default=None
    )
    text_column: str = option(free=True, help="column of the texts", default="text")
    text_pair_column: str | None = option(
        free=True, help="column of second texts, as of hypotheses, each read after its row's first", default=None
    )
    label_column: str = option(free=True, help="column of the classes, words or integers", default="label")
    validation_split_percentage: int = option(
        free=True,
        least=1,
        below=100,
        help="share of the training rows held out where no validation rows are given, each class in proportion",
        default=10,
    )
    max_seq_length: int = option(least=3, help="tokens that are read of a document, special ones included", default=512)
    sliding_window: int | None = option(
        least=3, help="read documents in windows of so many tokens; at once by default", default=None
    )
    window_stride: int | None = option(
        least=1,
        help="tokens from the start of a window to that of the next; by default windows lie side by side",
        default=None,
    )
    pad_to_max_length: bool = option(help="pad every batch to the longest that a row may be", default=False)
    group_by_length: bool = option(help="batches of rows of similar length, so that little is padded", default=True)
    max_train_samples: int | None = option(free=True, least=1, help="train on the first rows only", default=None)
    max_eval_samples: int | None = option(free=True, least=1, help="evaluate on the first rows only", default=None)

    def __post_init__(self):
        super().__post_init__()
        if self.window_stride and not self.sliding_window:
            raise ValueError(f"window_stride = {self.window_stride}: it is of windows; give --sliding_window too.")
        if self.sliding_window and self.text_pair_column:
            raise ValueError(
                f"sliding_window = {self.sliding_window}: windows are of single texts, and text_pair_column = "
                f"{self.text_pair_column} makes pairs. Leave one of them out."
            )
        if self.sliding_window and self.sliding_window >= self.max_seq_length:
            raise ValueError(
                f"sliding_window = {self.sliding_window}: one window reads all {self.max_seq_length} tokens of max_seq_length. Give "
                "more --max_seq_length, or leave --sliding_window out."
            )


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Runs the command; returns the content of the output folder's `all_results.json`."""
    model, documents, hub, grid = parse_arguments(
        (ModelArguments, DocumentArguments, HubArguments, GridConfig), argv, __doc__
    )
    from s3bert.training.processes import locked_for_run

    command = shlex.join(["s3bert", "finetune", *(sys.argv[1:] if argv is None else argv)])
    with locked_for_run(Path(grid.output_dir)):
        return _finetune(model, documents, hub, grid, command)


def _finetune(
    model: ModelArguments, arguments: DocumentArguments, hub: HubArguments, grid: GridConfig, command: str
) -> dict[str, Any]:
    from s3bert.experiments.documents import Reading, finetune, publish
    from s3bert.reports.repository import push_folder
    from s3bert.tasks.documents import load_documents
    from s3bert.training.finetuning import StartingPoint
    from s3bert.training.grid import read_report
    from s3bert.training.processes import main_process_first, process_state
    from s3bert.training.settings import settings_of

    files = {"train": arguments.train_file, "validation": arguments.validation_file, "test": arguments.test_file}
    limits = {
        "train": arguments.max_train_samples,
        "validation": arguments.max_eval_samples,
        "test": arguments.max_eval_samples,
    }
    reading = Reading(
        arguments.max_seq_length,
        arguments.sliding_window,
        arguments.window_stride,
        arguments.pad_to_max_length,
        arguments.group_by_length,
    )
    start = StartingPoint(
        model.model_name_or_path,
        reading.tokens_at_once,
        model.tokenizer_name,
        model.from_finetuned,
        model.trust_remote_code,
        lengthened=not reading.window,
        length_argument="sliding_window" if reading.window else "max_seq_length",
    )
    with main_process_first():
        documents = load_documents(
            {split: file for split, file in files.items() if file},
            arguments.dataset_name,
            arguments.text_column,
            arguments.label_column,
            arguments.validation_split_percentage,
            limits,
            arguments.text_pair_column,
        )
    settings = finetune(documents, start, grid, reading, settings_of(model, arguments))
    folder = Path(grid.output_dir)
    if process_state().is_main_process:
        publish(documents, settings, start, reading, grid.per_device_eval_batch_size, folder, command)
        save_arguments(folder / "arguments.yaml", model, arguments, hub, grid)
        if hub.push_to_hub:
            push_folder(folder, hub.hub_model_id)
    return read_report(folder)


if __name__ == "__main__":
    run("finetune")
