"""GLUE: the tasks as a table, their data, their metrics, and what may be called their average.

Metrics and average are those of the S3Attention paper's Table 3: the mean of accuracy and F1 for QQP and MRPC, Matthews'
correlation for CoLA, Spearman's for STS-B, accuracy for the others, MNLI on the matched split. Scikit-learn and SciPy compute
them; nothing is fetched from the Hub. A new task is one entry of `GLUE_TASKS`.
"""

import difflib
import functools
import json
import logging
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import datasets
import evaluate
import numpy as np
from datasets import Dataset
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from s3bert.data.sources import load_source, parse_sources
from s3bert.data.synthetic import synthetic_acceptability
from s3bert.files import replacing, table

from .labels import check_labels


logger = logging.getLogger(__name__)


def _correlation(coefficient: Callable, references: np.ndarray, predictions: np.ndarray) -> float:
    """A coefficient of SciPy's, or 0 where a constant leaves it undefined: a constant tells nothing of the other variable."""
    constant = np.ptp(references) == 0 or np.ptp(predictions) == 0
    return 0.0 if constant else coefficient(references, predictions).statistic


# Of references and predictions, both (N,). F1 is that of class 1.
METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "accuracy": accuracy_score,
    "f1": functools.partial(f1_score, zero_division=0),
    "matthews_correlation": matthews_corrcoef,
    "pearson": functools.partial(_correlation, pearsonr),
    "spearmanr": functools.partial(_correlation, spearmanr),
}


@dataclass(frozen=True)
class GlueTask:
    """A task: which columns are read, what is predicted, how that is scored.

    Args:
        columns: one text column, or two for pairs.
        label_names: by label number; None for regression on the float column `label`.
        rows: of the official splits by name, `train` first; what a run used is held against them.
        metrics: names in `METRICS`, as Transformers' scripts report them.
        score: those whose mean is the task's score in Table 3.
        evaluation_splits: split -> suffix of its metrics' names. The first is what settings are chosen by.
        generate: makes a split, for a task that is not read from a source.
        test_files: by unlabelled split, the file that GLUE's server takes its predictions in. submits_names: whether they are names
            of labels there, rather than numbers.
    """

    columns: tuple[str, ...]
    label_names: tuple[str, ...] | None
    rows: Mapping[str, int]
    metrics: tuple[str, ...] = ("accuracy",)
    score: tuple[str, ...] = ("accuracy",)
    evaluation_splits: Mapping[str, str] = field(default_factory=lambda: {"validation": ""})
    generate: Callable[[str], Dataset] | None = None
    test_files: Mapping[str, str] = field(default_factory=dict)
    submits_names: bool = False

    @property
    def num_labels(self) -> int:
        """Outputs of the classifier; 1 for regression."""
        return len(self.label_names) if self.label_names else 1


_ENTAILMENT = ("entailment", "not_entailment")
GLUE_TASKS: dict[str, GlueTask] = {
    "mnli": GlueTask(
        ("premise", "hypothesis"),
        ("entailment", "neutral", "contradiction"),
        {"train": 392_702, "validation_matched": 9_815, "validation_mismatched": 9_832},
        evaluation_splits={"validation_matched": "", "validation_mismatched": "_mm"},
        test_files={"test_matched": "MNLI-m.tsv", "test_mismatched": "MNLI-mm.tsv"},
        submits_names=True,
    ),
    "qqp": GlueTask(
        ("question1", "question2"),
        ("not_duplicate", "duplicate"),
        {"train": 363_846, "validation": 40_430},
        metrics=("accuracy", "f1"),
        score=("accuracy", "f1"),
        test_files={"test": "QQP.tsv"},
    ),
    "qnli": GlueTask(
        ("question", "sentence"),
        _ENTAILMENT,
        {"train": 104_743, "validation": 5_463},
        test_files={"test": "QNLI.tsv"},
        submits_names=True,
    ),
    "sst2": GlueTask(
        ("sentence",), ("negative", "positive"), {"train": 67_349, "validation": 872}, test_files={"test": "SST-2.tsv"}
    ),
    "cola": GlueTask(
        ("sentence",),
        ("unacceptable", "acceptable"),
        {"train": 8_551, "validation": 1_043},
        metrics=("matthews_correlation",),
        score=("matthews_correlation",),
        test_files={"test": "CoLA.tsv"},
    ),
    "stsb": GlueTask(
        ("sentence1", "sentence2"),
        None,
        {"train": 5_749, "validation": 1_500},
        metrics=("pearson", "spearmanr"),
        score=("spearmanr",),
        test_files={"test": "STS-B.tsv"},
    ),
    "mrpc": GlueTask(
        ("sentence1", "sentence2"),
        ("not_equivalent", "equivalent"),
        {"train": 3_668, "validation": 408},
        metrics=("accuracy", "f1"),
        score=("accuracy", "f1"),
        test_files={"test": "MRPC.tsv"},
    ),
    "rte": GlueTask(
        ("sentence1", "sentence2"),
        _ENTAILMENT,
        {"train": 2_490, "validation": 277},
        test_files={"test": "RTE.tsv"},
        submits_names=True,
    ),
    "wnli": GlueTask(
        ("sentence1", "sentence2"),
        ("not_entailment", "entailment"),
        {"train": 635, "validation": 71},
        test_files={"test": "WNLI.tsv"},
    ),
    "synthetic_acceptability": GlueTask(
        ("sentence",),
        ("unacceptable", "acceptable"),
        {"train": 4_000, "validation": 500},
        metrics=("matthews_correlation",),
        score=("matthews_correlation",),
        generate=synthetic_acceptability,
    ),
}
TABLE_3 = ("mnli", "qqp", "qnli", "sst2", "cola", "stsb", "mrpc", "rte")


class MissingSplitError(ValueError):
    """A task without the split to train on, or without the one it is scored on."""


def find_task(name: str) -> GlueTask:
    """The task of that name; ValueError naming the close match, or all there are."""
    if name in GLUE_TASKS:
        return GLUE_TASKS[name]
    matches = difflib.get_close_matches(name.lower().replace("-", ""), GLUE_TASKS, n=1)
    hint = f"did you mean {matches[0]}?" if matches else f"there is {', '.join(GLUE_TASKS)}."
    raise ValueError(f"Unknown GLUE task {name!r}: {hint}")


def load_task(name: str, source: str = "nyu-mll/glue") -> dict[str, Dataset]:
    """The training split and the labelled evaluation splits of a task, checked, `train` first.

    Args:
        source: a dataset of the Hub with one configuration a task, or a folder with one subfolder a task (`cola/train.jsonl.gz`,
            `cola/validation.jsonl.gz`, ...). A task that is generated, as synthetic_acceptability, needs none.

    Raises:
        MissingSplitError: no training split, or not the split the task is scored on. A missing further evaluation split
            (mnli's validation_mismatched) is logged and left out.
        ValueError: unknown task, missing column, a text that is missing or none, label that the task does not have.
        OSError: the source cannot be reached or read, or has no such task.
    """
    task = find_task(name)
    if task.generate is not None:
        return {split: task.generate(split) for split in ("train", *task.evaluation_splits)}
    (part, *others) = parse_sources(source)
    if others or part.config or part.weight:
        raise ValueError(
            f"GLUE source {source!r}: name one folder or Hub dataset; its part {name!r} is found by itself."
        )
    if part.name == "synthetic":
        generated = [other for other, entry in GLUE_TASKS.items() if entry.generate]
        raise MissingSplitError(f"{name}: not a synthetic task; those are {', '.join(generated)}.")
    try:
        found = load_source(replace(part, config=name))
    except ConnectionError as error:
        raise ConnectionError(
            f"{name}: cannot reach the Hugging Face Hub for {source}. Name a local copy as --dataset_name, a folder with "
            f"{name}/train.jsonl and {name}/{next(iter(task.evaluation_splits))}.jsonl (or .csv, .parquet, .gz), or take the task "
            "synthetic_acceptability, which needs no data."
        ) from error
    scored, *further = task.evaluation_splits
    for split, purpose in (("train", "train on"), (scored, "evaluate on")):
        if split not in found:
            raise MissingSplitError(
                f"{name}: {source} has no {split!r} split to {purpose}, only {', '.join(found)}. Add it to the task's folder "
                f"(as {name}/{split}.jsonl), take a source that has it (nyu-mll/glue on the Hub), or leave the task out."
            )
    for split in further:
        if split not in found:
            logger.warning("%s: %s has no %r split; evaluated on %r alone.", name, source, split, scored)
    splits = {split: found[split] for split in ("train", *task.evaluation_splits) if split in found}
    for split, rows in splits.items():
        _check_rows(rows, task, f"{name}, {split} of {source}")
    return splits


def load_tests(name: str, source: str = "nyu-mll/glue") -> dict[str, Dataset]:
    """The unlabelled rows of a task by the file that their predictions go into; MNLI's with those of AX, GLUE's diagnostics, where
    the source has them.

    Args:
        source: as in `load_task`.

    Raises:
        MissingSplitError: the task is none of GLUE's, or the source has not all its test splits.
        ValueError, OSError: as `load_task`.
    """
    task = find_task(name)
    if not task.test_files:
        raise MissingSplitError(f"{name} is no task of GLUE's server: leave --do_predict out, or the task.")
    (part, *_) = parse_sources(source)
    found = load_source(replace(part, config=name))
    if missing := [split for split in task.test_files if split not in found]:
        raise MissingSplitError(
            f"{name}: {source} has no {missing[0]!r} split to predict, only {', '.join(found)}. Add it to the task's folder (as "
            f"{name}/{missing[0]}.jsonl), or leave --do_predict out."
        )
    tests = {file: found[split] for split, file in task.test_files.items()}
    if name == "mnli":
        try:
            tests["AX.tsv"] = load_source(replace(part, config="ax"))["test"]
        except (FileNotFoundError, KeyError):
            logger.warning("%s has no test split of ax: AX.tsv is not written.", source)
    for file, rows in tests.items():
        _check_texts(rows, task.columns, f"{name}, {file} of {source}")
    return tests


def save_tasks(names: Sequence[str], source: str, folder: Path, max_train_samples: int | None = None) -> list[str]:
    """Copies the rows of tasks into a folder that `load_task` takes; returns the tasks that are there.

    Args:
        names, source: as in `load_task`; `all` in `names` is those of Table 3 whose rows can be had. Tasks that are
            generated need no copy. max_train_samples: of each task.

    Raises:
        MissingSplitError, FileNotFoundError: a task that was named has no rows.
    """
    saved = []
    for name in TABLE_3 if "all" in names else names:
        if find_task(name).generate is not None:
            continue
        try:
            splits = load_task(name, source)
        except (MissingSplitError, FileNotFoundError) as error:
            if "all" not in names:
                raise
            logger.warning("Left out: %s", error)
            continue
        for split, rows in splits.items():
            chosen = rows.take(min(len(rows), max_train_samples)) if split == "train" and max_train_samples else rows
            with replacing(folder / name / f"{split}.jsonl.gz") as aside:
                chosen.to_json(aside, compression="gzip")
        saved.append(name)
    return saved


def _check_rows(rows: Dataset, task: GlueTask, where: str) -> None:
    _check_texts(rows, (*task.columns, "label"), where)
    names = task.label_names
    check_labels(rows["label"][:], names and len(names), where, names=names or ())


def _check_texts(rows: Dataset, columns: Sequence[str], where: str) -> None:
    """Makes sure that the columns are there, filled, and of text but for `label`."""
    missing = [column for column in columns if column not in rows.column_names]
    if missing:
        raise ValueError(
            f"{where}: no column {' and '.join(missing)}, only {', '.join(rows.column_names)}; rename the columns."
        )
    for column in columns:
        if nulls := rows.data.column(column).null_count:
            raise ValueError(f"{where}: {nulls} rows have no {column!r}; take them out.")
    for column in columns:
        if column != "label" and (found := getattr(rows.features[column], "dtype", "no single value")) not in (
            "string",
            "large_string",
        ):
            raise ValueError(f"{where}: column {column!r} holds {found}, which must be text; quote it, in JSON lines.")


class GlueMetric(evaluate.Metric):
    """A task's metrics and Table 3's `score`, in the interface of `evaluate`; needs neither network nor files.

    Where a task has several metrics their mean is also given as `combined_score`, as Transformers' scripts do.

    Args:
        task_name: a name in `GLUE_TASKS`.
    """

    def __init__(self, task_name: str):
        self.task = find_task(task_name)
        super().__init__(config_name=task_name, keep_in_memory=True)  # files would need locks, which can hang

    def _info(self) -> evaluate.MetricInfo:
        value = datasets.Value("float64" if self.task.label_names is None else "int64")
        return evaluate.MetricInfo(
            description="The metrics of a GLUE task.",
            citation="",
            inputs_description="predictions, references: label numbers (N,), or scores (N,) for regression.",
            features=datasets.Features({"predictions": value, "references": value}),
            format="numpy",
        )

    def _compute(self, predictions: np.ndarray, references: np.ndarray) -> dict[str, float]:
        values = {name: float(METRICS[name](references, predictions)) for name in self.task.metrics}
        if len(values) > 1:
            values["combined_score"] = float(np.mean(list(values.values())))
        return values | {"score": float(np.mean([values[name] for name in self.task.score]))}


def glue_dataset(name: str) -> tuple[str, str | None]:
    """A task's dataset on the Hub and its configuration there; a generated task is its own."""
    return (name, None) if GLUE_TASKS[name].generate else ("nyu-mll/glue", name)


def average(scores: Mapping[str, float]) -> tuple[str, float]:
    """The mean over tasks, under a name that says which: `glue_average` only for the eight of Table 3 and no other."""
    if set(scores) == set(TABLE_3):
        return "glue_average", float(np.mean(list(scores.values())))
    return f"mean_of_{'_'.join(sorted(scores))}", float(np.mean(list(scores.values())))


def rows_crc32(rows: Dataset) -> int:
    """Of the rows' content, wherever they come from."""
    checksum = 0
    for batch in rows.iter(4096):
        checksum = zlib.crc32(json.dumps(batch).encode(), checksum)
    return checksum


def shortfall(name: str, rows: Mapping[str, int]) -> list[str]:
    """How the splits used fall short of the official ones, as ["20,000 of 392,702 train rows"]; [] when they are whole.

    Scores on a part of the evaluation rows, or after training on a part, are not comparable with published ones.
    """
    official = find_task(name).rows
    return [
        f"{rows.get(split, 0):,} of {number:,} {split} rows"
        for split, number in official.items()
        if rows.get(split, 0) != number
    ]


def summary(results: Mapping[str, Mapping[str, Any]], not_run: Mapping[str, str]) -> tuple[dict[str, Any], str]:
    """Several tasks together: their metrics, and a Markdown table of them, scores times 100.

    Args:
        results: by task, with `score_is`, `score_mean`, `score_std`, `score_best` and
            `not_the_official_data`. not_run: reason by task.
    """
    rows = []
    for name, result in results.items():
        std = "" if result["score_std"] is None else f"{100 * result['score_std']:.2f}"
        whole = "official" if GLUE_TASKS[name].generate is None else "generated"
        data = "; ".join(result["not_the_official_data"]) or whole
        scores = [f"{100 * result['score_mean']:.2f}", std, f"{100 * result['score_best']:.2f}"]
        rows.append([name, result["score_is"], *scores, data])
    label, mean = average({name: result["score_mean"] for name, result in results.items()})
    _, best = average({name: result["score_best"] for name, result in results.items()})
    rows.append([label, "", f"{100 * mean:.2f}", "", f"{100 * best:.2f}", ""])
    rows += [[name, "not run", "", "", "", reason] for name, reason in not_run.items()]
    metrics = {label: mean, f"{label}_of_best_seeds": best, "tasks": dict(results), "not_run": dict(not_run)}
    return metrics, table(["task", "score", "mean", "std", "best seed", "data"], rows)
