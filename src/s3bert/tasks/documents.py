"""One's own documents: files of texts and their classes, read and checked before anything is trained on them."""

import csv
import gzip
import logging
import math
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from datasets import ClassLabel, Dataset

from s3bert.arguments import close_match
from s3bert.data.sources import COUNTED, Source, load_files, load_source, local_files, parse_sources

from .glue import GlueTask


logger = logging.getLogger(__name__)

UNLABELLED = -100  # the label of rows to predict, where a test set has no column of labels


@dataclass(frozen=True)
class Documents:
    """Splits `train`, `validation` and perhaps `test` with the columns `text`, of pairs `text_pair` too, and `label`, the number of a class.

    Args:
        label_names: of the classes, by number. title: what a reader elsewhere can make sense of. held_out: whether the rows of
            `validation` are a share of the training rows.
    """

    splits: dict[str, Dataset]
    label_names: tuple[str, ...]
    title: str
    held_out: bool

    @property
    def task(self) -> GlueTask:
        """How the rows are encoded."""
        columns = [name for name in ("text", "text_pair") if name in self.splits["train"].column_names]
        return GlueTask(tuple(columns), self.label_names, {})


def load_documents(
    files: Mapping[str, str],
    dataset_name: str | None = None,
    text_column: str = "text",
    label_column: str = "label",
    validation_split_percentage: int = 10,
    limits: Mapping[str, int | None] | None = None,
    text_pair_column: str | None = None,
) -> Documents:
    """Reads and checks documents with strings or integers as labels.

    The classes are those of the training rows, integers in their order, strings in that of the alphabet. Without validation rows, a
    share of the training rows is held out, the same in every call, each class in proportion.

    Args:
        files: a file or glob by split, which comes before the split of the dataset. dataset_name: a folder with a file for each
            split, or a dataset of the Hub.
        validation_split_percentage: the share. limits: take the first so many rows of a split, by name.
        text_pair_column: of texts that are read after those of `text_column`.

    Raises:
        ValueError: a missing column, text or label; a label that is no class; fewer than two classes, with file, row and remedy.
        OSError: a file that is not there or cannot be read.
    """
    if not dataset_name and "train" not in files:
        raise ValueError("Name the documents, as --train_file FILE or as --dataset_name FOLDER_OR_HUB_ID.")
    found: dict[str, tuple[str, Dataset]] = {}
    if dataset_name:
        (source, *others) = parse_sources(dataset_name)
        if others or source.weight:
            raise ValueError(
                f"--dataset_name {dataset_name}: name one folder or dataset; several are files of --train_file."
            )
        for file in local_files(source):
            _check_table(file)
        found = {split: (f"{source}, {split}", rows) for split, rows in load_source(source).items()}
        unused = [split for split in found if split not in _SPLITS] + _left_aside(source)
        if unused:
            logger.warning("%s: %s is not read, only train, validation and test.", source, ", ".join(unused))
    found |= {split: (name, _read_file(name, split)) for split, name in files.items()}
    if "train" not in found:
        raise ValueError(
            f"{dataset_name} has no 'train' split, only {', '.join(found)}: name its file as --train_file."
        )

    arguments = {"text": ("text_column", text_column), "text_pair": ("text_pair_column", text_pair_column)}
    texts = {
        split: {name: _texts(rows, column, where, argument) for name, (argument, column) in arguments.items() if column}
        for split, (where, rows) in found.items()
        if split in _SPLITS
    }
    labels = {
        split: _labels(rows, label_column, where)
        for split, (where, rows) in found.items()
        if split in texts and (split != "test" or _has_labels(rows, label_column))
    }
    where, rows = found["train"]
    names = _classes(labels["train"], rows.features[label_column])
    if len(names) < 2:
        raise ValueError(
            f"{where}: every row has the label {names[0]!r}, so there is nothing to learn. Add rows of another class, or name "
            "another --label_column."
        )
    numbers = {name: number for number, name in enumerate(names)}
    splits = {}
    for split, columns in texts.items():
        unknown = [UNLABELLED] * len(columns["text"])
        known = _numbers(labels[split], numbers, found[split][0]) if split in labels else unknown
        splits[split] = Dataset.from_dict(columns | {"label": known})
    held_out = "validation" not in splits
    if held_out:
        splits |= _hold_out(splits["train"], validation_split_percentage, where)
    splits = {
        split: rows.take(min(len(rows), (limits or {}).get(split) or len(rows))) for split, rows in splits.items()
    }
    if len(set(splits["train"]["label"][:])) < 2:
        raise ValueError(
            f"{where}: the first {len(splits['train'])} rows are of one class, {names[splits['train'][0]['label']]!r}. Give more of "
            "them as --max_train_samples, or a file whose rows are shuffled."
        )
    title = Path(files["train"]).name if "train" in files else parse_sources(str(dataset_name))[0].title
    return Documents({split: splits[split] for split in _SPLITS if split in splits}, tuple(names), title, held_out)


_SPLITS = ("train", "validation", "test")
_EMPTY = "(an empty cell, or NA and the like in a CSV)"


def _read_file(name: str, split: str) -> Dataset:
    source = Source(name)
    files = local_files(source)
    if not files:
        raise FileNotFoundError(f"--{split}_file {name}: there is no such file (seen from {Path.cwd()}).")
    for file in files:
        _check_table(file)
    return load_files({"train": files}, source)["train"]


def _check_table(file: Path) -> None:
    """Makes sure that the reader of CSV and TSV loses nothing: it takes the first of too many fields for a row's name, and lines between two
    quotes that stand in texts for one row.

    Raises:
        ValueError: a row has more fields than the header, or quotes that cannot be.
    """
    name = file.name.removesuffix(".gz")
    if not name.endswith((".csv", ".tsv")):
        return
    opened = gzip.open if file.suffix == ".gz" else open
    remedy = "put quotes around such a text and double those in it, or write JSON lines"
    number, before = 0, csv.field_size_limit(2**31 - 1)
    try:
        with opened(file, "rt", encoding="utf-8", errors="replace", newline="") as stream:
            rows = csv.reader(stream, delimiter="\t" if name.endswith(".tsv") else ",", strict=True)
            head = next(rows, [])
            for number, row in enumerate(rows, 1):
                if len(row) > len(head):
                    raise ValueError(
                        f"{file}, row {number:,} ({COUNTED}) has {len(row)} fields, the header has {len(head)}: {remedy}."
                    )
    except csv.Error as error:
        raise ValueError(f"{file}, row {number + 1:,} ({COUNTED}): {error}; {remedy}.") from error
    except (OSError, EOFError, zlib.error):
        pass  # damaged, which is for the reading to say
    finally:
        csv.field_size_limit(before)


def _left_aside(source: Source) -> list[str]:
    """Names of data files in a local folder that make none of its splits."""
    folder, used = Path(source.name).expanduser() / (source.config or ""), local_files(source)
    if not used or not folder.is_dir():
        return []
    return sorted(file.name for file in folder.iterdir() if file.suffix == used[0].suffix and file not in used)


def _has_labels(rows: Dataset, column: str) -> bool:
    """Whether a column is there with one label at least; -1 of a class is none."""
    if column not in rows.column_names:
        return False
    least = 0 if isinstance(rows.features[column], ClassLabel) else -math.inf
    return any(
        label is not None and label == label and (isinstance(label, str) or label >= least) for label in rows[column][:]
    )


def _check_column(rows: Dataset, column: str, where: str, argument: str) -> None:
    if column not in rows.column_names:
        raise ValueError(
            f"{where}: no column {column!r}; name it as --{argument}.{close_match(column, rows.column_names)}"
        )


def _texts(rows: Dataset, column: str, where: str, argument: str) -> list[str]:
    _check_column(rows, column, where, argument)
    feature = rows.features[column]
    if (kind := getattr(feature, "dtype", type(feature).__name__)) not in ("string", "large_string"):
        raise ValueError(f"{where}: column {column!r} holds {kind}, not text; name another as --{argument}.")
    texts = rows[column][:]
    _check_filled(texts, where, f"text in column {column!r} {_EMPTY}")
    return texts


def _labels(rows: Dataset, column: str, where: str) -> list[str]:
    """The labels as text."""
    _check_column(rows, column, where, "label_column")
    feature, labels = rows.features[column], rows[column][:]
    if isinstance(feature, ClassLabel):  # -1 stands for none
        labels = [None if label is None or label < 0 else feature.names[label] for label in labels]
    _check_filled(labels, where, f"label in column {column!r} {_EMPTY}")
    for number, label in enumerate(labels, 1):
        if not isinstance(label, int | str):
            raise ValueError(
                f"{where}, row {number} ({COUNTED}): label {label!r} in column {column!r}, which must be a string or an integer. "
                "Write classes as words, or name another --label_column."
            )
    return [str(label) if isinstance(feature, ClassLabel) else str(label).strip() for label in labels]


def _check_filled(values: Sequence[object], where: str, what: str) -> None:
    """Makes sure that no value is missing, which is None, NaN or blank."""
    empty = [
        number for number, value in enumerate(values, 1) if value is None or value != value or not str(value).strip()
    ]
    if empty:
        more = f", nor have {len(empty) - 1:,} more" if len(empty) > 1 else ""
        raise ValueError(f"{where}, row {empty[0]:,} ({COUNTED}) has no {what}{more}: fill it in, or take the row out.")


def _classes(labels: Sequence[str], feature: object) -> list[str]:
    if isinstance(feature, ClassLabel):
        return list(feature.names)
    integers = str(getattr(feature, "dtype", "")).startswith(("int", "uint"))
    return sorted(set(labels), key=int if integers else str)


def _numbers(labels: Sequence[str], numbers: Mapping[str, int], where: str) -> list[int]:
    for row, label in enumerate(labels, 1):
        if label not in numbers:
            more = f" and {len(numbers) - 10:,} more" if len(numbers) > 10 else ""
            raise ValueError(
                f"{where}, row {row:,} ({COUNTED}): label {label!r}, which no training row has; the classes there are "
                f"{', '.join(list(numbers)[:10])}{more}. Correct it, take the row out, or add such rows to the training file."
            )
    return [numbers[label] for label in labels]


def _hold_out(rows: Dataset, percentage: int, where: str) -> dict[str, Dataset]:
    """Training and held-out rows, in the order of the file: of rows shuffled within classes, those at even distances. A class keeps a row
    to be learnt."""
    count = round(len(rows) * percentage / 100)
    labels = np.array(rows["label"][:])
    rare = [label for label, number in Counter(labels.tolist()).items() if number < 2]
    if not 0 < count < len(rows):
        raise ValueError(
            f"{where}: {percentage}% of {len(rows)} rows are {count} to evaluate on. Give a --validation_file, or another "
            "--validation_split_percentage."
        )
    shuffled = np.random.default_rng(0).permutation(len(rows))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    by_class = by_class[~np.isin(labels[by_class], rare)]  # a class of one row is to be learnt
    if not len(by_class):
        raise ValueError(
            f"{where}: each of the {len(rows)} rows has a label of its own, so none can be held out. Name the column of classes as "
            "--label_column, or give a --validation_file."
        )
    count = min(count, len(by_class))
    chosen = by_class[((np.arange(count) + 0.5) * len(by_class) / count).astype(int)]
    kept = labels[np.setdiff1d(by_class, chosen)]
    whole, first = np.unique(labels[chosen], return_index=True)
    chosen = np.delete(chosen, first[~np.isin(whole, kept)])
    return {
        "train": rows.select(np.setdiff1d(np.arange(len(rows)), chosen)),
        "validation": rows.select(np.sort(chosen)),
    }
