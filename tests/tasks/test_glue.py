"""GLUE: metrics worked out by hand, what loading refuses, and batches that depend on nothing but their step."""

import gzip
import json
import math
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from datasets import Dataset
from sklearn.metrics import accuracy_score
from transformers import BertTokenizer

from s3bert.data.shuffled import ShuffledBatches
from s3bert.tasks.glue import GLUE_TASKS, TABLE_3, GlueMetric, MissingSplitError, average, load_task, shortfall, summary
from s3bert.tasks.glue_batches import EncodedRows, GlueEvaluation


WORDS = [f"w{i}" for i in range(40)]
SHARED = Path(os.environ.get("S3BERT_DATA", Path(__file__).parents[2] / "../shared/data")) / "glue"


@pytest.fixture(scope="module")
def tokenizer() -> BertTokenizer:
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    return BertTokenizer(vocab={name: i for i, name in enumerate(names)}, model_max_length=32)


def pairs(number: int, seed: int = 0) -> Dataset:
    """Rows of MRPC's columns, of 1 to 19 words a sentence."""
    random = np.random.default_rng(seed)
    texts = [" ".join(random.choice(WORDS, random.integers(1, 20))) for _ in range(2 * number)]
    return Dataset.from_dict(
        {"sentence1": texts[:number], "sentence2": texts[number:], "label": random.integers(0, 2, number).tolist()}
    )


def write_rows(file: Path, rows: list[dict]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(file, "wt", encoding="utf-8") as stream:
        stream.writelines(json.dumps(row) + "\n" for row in rows)


def compute(task: str, predictions: list[float], references: list[float]) -> dict[str, float]:
    return GlueMetric(task).compute(predictions=np.array(predictions), references=np.array(references))


def test_classification_metrics_are_those_worked_out_by_hand():
    """Of 8 rows 3 are true positives, 1 a false one, 2 are false negatives and 2 true ones."""
    predictions, references = [1, 1, 1, 1, 0, 0, 0, 0], [1, 1, 1, 0, 1, 1, 0, 0]
    accuracy, f1 = 5 / 8, 6 / 9
    mean = (accuracy + f1) / 2
    expected = {"accuracy": accuracy, "f1": f1, "combined_score": mean, "score": mean}
    assert compute("mrpc", predictions, references) == pytest.approx(expected)
    matthews = (3 * 2 - 1 * 2) / math.sqrt(4 * 5 * 3 * 4)
    expected = {"matthews_correlation": matthews, "score": matthews}
    assert compute("cola", predictions, references) == pytest.approx(expected)


def test_correlations_are_those_worked_out_by_hand_and_equal_scores_share_their_rank():
    """Deviations are -2, -2, 0, 4 and -3, -1, 0, 4; ranks 1.5, 1.5, 3, 4 and 1, 2, 3, 4."""
    pearson, spearman = 24 / math.sqrt(24 * 26), 4.5 / math.sqrt(4.5 * 5)
    mean = (pearson + spearman) / 2
    expected = {"pearson": pearson, "spearmanr": spearman, "combined_score": mean, "score": spearman}
    assert compute("stsb", [0.5, 0.5, 2.5, 6.5], [0.0, 2.0, 3.0, 7.0]) == pytest.approx(expected)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("task", "predictions", "references"),
    [
        ("mrpc", [0, 0, 0], [1, 1, 1]),
        ("mrpc", [0, 0, 0], [1, 1, 0]),
        ("cola", [1, 1, 1], [0, 1, 0]),
        ("cola", [1, 0, 1], [0, 0, 0]),
        ("stsb", [2.5, 2.5, 2.5], [0.0, 1.0, 5.0]),
        ("stsb", [0.0, 1.0, 5.0], [2.5, 2.5, 2.5]),
    ],
)
def test_a_metric_without_a_value_is_zero_and_says_nothing(task, predictions, references):
    """A model that gives every row the same answer, say."""
    found = compute(task, predictions, references)
    assert all(found[name] == 0 for name in GLUE_TASKS[task].metrics if name != "accuracy")


def test_only_the_eight_tasks_of_table_3_make_the_glue_average():
    eight = dict.fromkeys(TABLE_3, 0.5)
    assert average(eight) == ("glue_average", 0.5)
    assert average({"sst2": 0.8, "cola": 0.4}) == ("mean_of_cola_sst2", pytest.approx(0.6))
    assert average(eight | {"wnli": 0.5})[0] != "glue_average"
    result = {
        "score_is": "accuracy",
        "score_mean": 0.8,
        "score_std": None,
        "score_best": 0.8,
        "not_the_official_data": [],
    }
    figures, table = summary({"sst2": result}, {"qnli": "no training split"})
    assert "glue_average" not in table
    assert figures["mean_of_sst2"] == 0.8
    assert "| qnli | not run |  |  |  | no training split |" in table


def test_a_folder_of_gzipped_lines_loads_and_says_what_it_lacks(tmp_path, caplog):
    rows = [{"premise": "w1 w2", "hypothesis": "w3", "label": i % 3, "idx": i} for i in range(6)]
    write_rows(tmp_path / "mnli/validation_matched.jsonl.gz", rows)
    with pytest.raises(MissingSplitError, match="no 'train' split to train on, only validation_matched"):
        load_task("mnli", str(tmp_path))
    write_rows(tmp_path / "mnli/train.jsonl.gz", rows * 2)
    splits = load_task("mnli", str(tmp_path))
    assert {split: len(part) for split, part in splits.items()} == {"train": 12, "validation_matched": 6}
    assert "no 'validation_mismatched' split" in caplog.text
    with pytest.raises(FileNotFoundError, match="no subfolder 'cola'"):
        load_task("cola", str(tmp_path))
    with pytest.raises(ValueError, match=r"Unknown GLUE task 'mnil': did you mean mnli\?"):
        load_task("mnil", str(tmp_path))
    with pytest.raises(MissingSplitError, match="not a synthetic task"):
        load_task("mnli", "synthetic")
    with pytest.raises(ConnectionError, match=r"a folder with mnli/train\.jsonl and mnli/validation_matched\.jsonl"):
        load_task("mnli", "nyu-mll/glue")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"sentence": "w1", "label": -1}, r"row 2: label -1, .* one of 0 to 1 \(.*\); -1 marks an unlabelled test set"),
        ({"sentence": "w1", "label": 2}, "row 2: label 2, which must be one of 0 to 1"),
        ({"sentence": None, "label": 1}, "1 rows have no 'sentence'"),
    ],
)
def test_rows_a_task_cannot_use_are_refused(tmp_path, row, message):
    good = [{"sentence": "w1 w2", "label": 0}, {"sentence": "w3", "label": 1}]
    write_rows(tmp_path / "cola/train.jsonl.gz", [*good, row])
    write_rows(tmp_path / "cola/validation.jsonl.gz", good)
    with pytest.raises(ValueError, match=message):
        load_task("cola", str(tmp_path))


def test_numbers_in_place_of_text_are_named(tmp_path):
    for split in ("train", "validation"):
        write_rows(tmp_path / f"sst2/{split}.jsonl.gz", [{"sentence": 3, "label": 1}])
    with pytest.raises(ValueError, match="column 'sentence' holds int64, which must be text"):
        load_task("sst2", str(tmp_path))


def test_a_score_that_is_no_finite_number_is_refused(tmp_path):
    for score, shown in ((math.inf, "inf"), (True, "True")):
        for split in ("train", "validation"):
            write_rows(tmp_path / f"stsb/{split}.jsonl.gz", [{"sentence1": "w1", "sentence2": "w2", "label": score}])
        with pytest.raises(ValueError, match=f"row 0: label {shown}, which must be a finite number"):
            load_task("stsb", str(tmp_path))


def test_a_missing_column_and_labels_in_words_are_named(tmp_path):
    for text, label, message in (
        ("text", 1, "no column sentence"),
        ("sentence", "good", r"row 0: label 'good', which must be one of 0 to 1 \(negative, positive\)"),
    ):
        for split in ("train", "validation"):
            write_rows(tmp_path / f"sst2/{split}.jsonl.gz", [{text: "w1", "label": label}])
        with pytest.raises(ValueError, match=message):
            load_task("sst2", str(tmp_path))


def test_the_synthetic_task_needs_no_source():
    splits = load_task("synthetic_acceptability", "a/source/that/is/not/there")
    assert shortfall("synthetic_acceptability", {split: len(rows) for split, rows in splits.items()}) == []


@pytest.mark.skipif(not SHARED.exists(), reason=f"no real GLUE data in {SHARED}")
def test_real_tasks_load_and_partial_ones_are_reported_as_such():
    for name in ("cola", "sst2", "mrpc", "rte", "stsb"):
        rows = {split: len(part) for split, part in load_task(name, str(SHARED)).items()}
        assert shortfall(name, rows) == []
    with pytest.raises(MissingSplitError, match=r"qnli: .* no 'train' split"):
        load_task("qnli", str(SHARED))
    rows = {split: len(part) for split, part in load_task("qqp", str(SHARED)).items()}
    assert shortfall("qqp", rows) == ["20,497 of 363,846 train rows", "3,000 of 40,430 validation rows"]


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("padding", ["longest", "max_length"])
def test_a_batch_is_what_the_tokenizer_itself_would_pad(tokenizer, side, padding):
    rows = pairs(30)
    tokenizer.padding_side = side
    encoded = EncodedRows(rows, GLUE_TASKS["mrpc"], tokenizer, 24, pad_to_max_length=padding == "max_length")
    chosen = np.array([3, 29, 0, 11])
    batch = encoded.batch(chosen)
    texts = [[rows[column][int(i)] for i in chosen] for column in ("sentence1", "sentence2")]
    expected = tokenizer(*texts, truncation=True, max_length=24, padding=padding, return_tensors="pt")
    tokenizer.padding_side = "right"
    assert set(batch) == {*expected, "labels"}
    for name in expected:
        assert torch.equal(batch[name], expected[name]), name
    assert batch["labels"].tolist() == [rows["label"][int(i)] for i in chosen]
    assert (encoded.lengths == 24).any(), "the premise: some rows are cut"


def test_padding_to_a_multiple_stays_within_the_length_allowed(tokenizer):
    encoded = EncodedRows(pairs(30), GLUE_TASKS["mrpc"], tokenizer, 30, pad_to_multiple_of=8)
    widths = {encoded.batch(np.array([i]))["input_ids"].shape[1] for i in range(30)}
    assert widths <= {8, 16, 24, 30}
    assert 30 in widths


@pytest.mark.parametrize("group_by_length", [True, False])
@pytest.mark.parametrize(("number", "batch_size"), [(37, 8), (640, 8), (3, 8)])
def test_batches_are_full_depend_on_seed_and_step_alone_and_use_all_rows_alike(
    tokenizer, number, batch_size, group_by_length
):
    rows = Dataset.from_dict({"sentence": pairs(number)["sentence1"], "label": list(range(number))})
    encoded = EncodedRows(rows, GLUE_TASKS["cola"], tokenizer, 24)  # labels that name their row
    batches = ShuffledBatches(encoded, batch_size, seed=1, group_by_length=group_by_length)
    assert len(batches) == -(-number // batch_size)
    steps = 2 * batches.window * len(batches)
    seen = [batches[step]["labels"].tolist() for step in range(steps)]
    assert {len(batch) for batch in seen} == {batch_size}
    counts = np.bincount(np.concatenate(seen), minlength=number)
    assert counts.max() - counts.min() <= 1
    assert batches[steps // 3]["labels"].tolist() == seen[steps // 3], "going back gives the same"
    again, other = (ShuffledBatches(encoded, batch_size, seed, group_by_length) for seed in (1, 2))
    assert again[steps - 1]["labels"].tolist() == seen[-1], "so does starting late"
    assert any(other[step]["labels"].tolist() != seen[step] for step in range(steps))


def test_grouping_by_length_saves_most_of_the_padding(tokenizer):
    encoded = EncodedRows(pairs(800), GLUE_TASKS["mrpc"], tokenizer, 48)
    padded = {}
    for group in (True, False):
        batches = ShuffledBatches(encoded, 16, seed=0, group_by_length=group)
        masks = [batches[step]["attention_mask"] for step in range(len(batches))]
        padded[group] = sum(int((mask == 0).sum()) for mask in masks)
        lengths = [mask.shape[1] for mask in masks]
        assert lengths != sorted(lengths), "batches do not come by rising length"
        assert lengths != sorted(lengths, reverse=True)
    assert padded[True] < 0.2 * padded[False]


class FirstWord(torch.nn.Module):
    """Predicts class 1 for rows whose first word is of even number: right rows, wherever sorting by length put them."""

    def forward(self, input_ids, attention_mask, token_type_ids):
        even = (input_ids[:, 1] % 2 == 0).float()
        return SimpleNamespace(logits=torch.stack([-even, even - 0.5], 1))


@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_evaluation_keeps_the_order_of_rows_and_writes_predictions(tokenizer, tmp_path, batch_size):
    rows = pairs(50)
    encoded = EncodedRows(rows, GLUE_TASKS["mrpc"], tokenizer, 24)
    evaluation = GlueEvaluation("mrpc", {"validation": encoded}, batch_size, tmp_path / "new")
    metrics = evaluation(FirstWord(), Accelerator(cpu=True))
    ids = [tokenizer.convert_tokens_to_ids(text.split()[0]) for text in rows["sentence1"]]
    predicted = [int(i % 2 == 0) for i in ids]
    assert metrics["accuracy"] == pytest.approx(accuracy_score(rows["label"], predicted))
    logits = torch.tensor([[-1.0, 0.5] if p else [0.0, -0.5] for p in predicted])
    expected = torch.nn.functional.cross_entropy(logits, torch.tensor(rows["label"][:])).item()
    assert metrics["loss"] == pytest.approx(expected, rel=1e-5)
    lines = (tmp_path / "new/predict_results_mrpc.txt").read_text().splitlines()
    names = GLUE_TASKS["mrpc"].label_names
    assert lines == ["index\tprediction", *(f"{i}\t{names[p]}" for i, p in enumerate(predicted))]


def test_evaluation_refuses_outputs_that_are_not_finite(tokenizer):
    encoded = EncodedRows(pairs(5), GLUE_TASKS["mrpc"], tokenizer, 24)

    def broken(**inputs):
        return SimpleNamespace(logits=torch.full((len(inputs["input_ids"]), 2), float("nan")))

    with pytest.raises(FloatingPointError, match="mrpc, validation"):
        GlueEvaluation("mrpc", {"validation": encoded}, 8)(broken, Accelerator(cpu=True))
