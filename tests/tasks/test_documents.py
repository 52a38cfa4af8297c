"""One's own documents: what is read, what is refused with file and row, and windows beside a loop over documents."""

import gzip
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from accelerate import Accelerator
from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

from s3bert.tasks.document_batches import DocumentEvaluation, EncodedDocuments
from s3bert.tasks.documents import load_documents


ROWS = [("one two", "b"), ("three", "a"), ("four five", "b"), ("six", "c"), ("seven", "c"), ("eight", "a")]


def written(folder: Path, name: str, rows: list[tuple], columns: tuple[str, ...] = ("text", "label")) -> str:
    records = [dict(zip(columns, row, strict=True)) for row in rows]
    file, separator = folder / name, "\t" if "tsv" in name else ","
    if name.endswith("parquet"):
        pa.parquet.write_table(pa.Table.from_pylist(records), file)
        return str(file)
    lines = [separator.join("" if value is None else str(value) for value in row) for row in (columns, *rows)]
    text = "\n".join(map(json.dumps, records) if "jsonl" in name else lines) + "\n"
    file.write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    return str(file)


@pytest.mark.parametrize("name", ["train.csv", "train.tsv.gz", "train.jsonl", "train.jsonl.gz", "train.parquet"])
def test_every_kind_of_file_gives_the_same_rows(name, tmp_path):
    files = {split: written(tmp_path, f"{split}-{name}", ROWS) for split in ("train", "validation")}
    documents = load_documents(files)
    assert documents.label_names == ("a", "b", "c")
    assert documents.splits["train"][:] == {"text": [text for text, _ in ROWS], "label": [1, 0, 1, 2, 2, 0]}
    assert (documents.title, documents.held_out) == (f"train-{name}", False)


def test_integers_are_classes_in_their_order_and_columns_have_any_name(tmp_path):
    rows = [("a text", 10), ("another", 9), ("a third", -1)]
    name = written(tmp_path, "train.csv", rows, ("review", "stars"))
    documents = load_documents({"train": name, "validation": name}, text_column="review", label_column="stars")
    assert documents.label_names == ("-1", "9", "10")


def test_a_folder_has_its_splits_and_a_file_comes_before_them(tmp_path):
    for split in ("train", "valid", "test"):
        written(tmp_path, f"{split}.csv", ROWS if split == "train" else ROWS[:4])
    assert {split: len(rows) for split, rows in load_documents({}, str(tmp_path)).splits.items()} == {
        "train": 6, "validation": 4, "test": 4,
    }  # fmt: skip
    own = {"validation": written(tmp_path, "own.csv", ROWS[:2])}
    assert len(load_documents(own, str(tmp_path)).splits["validation"]) == 2


def test_rows_are_held_out_in_proportion_and_none_twice(tmp_path):
    rows = [(f"text {i}", "rare" if i % 10 == 0 else "often") for i in range(200)] + [("alone", "once")]
    documents = load_documents({"train": written(tmp_path, "train.csv", rows)}, validation_split_percentage=20)
    train, validation = (documents.splits[split] for split in ("train", "validation"))
    assert documents.held_out
    assert sorted([*train["text"], *validation["text"]]) == sorted(text for text, _ in rows)
    assert [validation["label"][:].count(number) for number in range(3)] == [36, 0, 4], documents.label_names


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([*ROWS, ("ten", None), ("x", None)], r"rows.csv, row 7 .* has no label in column 'label'.*, nor have 1 more: fill it in, or take"),
        ([*ROWS[:2], (" ", "a")], r"rows.csv, row 3 .* has no text in column 'text' .an empty cell.*: fill it in"),
        ([("one", 1), ("two", 2), ("three", None)], r"rows.csv, row 3 .* has no label"),
        ([("one", 0.5), ("two", 2)], r"rows.csv, row 1 .*: label 0.5 .* must be a string or an integer"),
        ([("one", "a"), ("two", "a")], "rows.csv: every row has the label 'a', so there is nothing to learn"),
        ([(1, "a"), (2, "b")], "rows.csv: column 'text' holds int64, not text; name another as --text_column"),
    ],
)  # fmt: skip
def test_what_cannot_be_learnt_from_is_named(rows, message, tmp_path):
    name = written(tmp_path, "rows.csv", rows)
    with pytest.raises(ValueError, match=message):
        load_documents({"train": name, "validation": name})


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "text,label\ngood,1\nnice, really,0\n", r"a.csv, row 2 .* has 3 fields, the header has 2: put quotes around"),
        ("a.tsv", 'text\tlabel\n"so it began\tpos\nwell\tneg\n"again" he said\tpos\n', r"a.tsv, row 1 .*: .* expected after .*write JSON lines"),
        ("a.jsonl", '{"text": {"de": "a"}, "label": 1}\n{"text": {"de": "b"}, "label": 0}\n', "column 'text' holds .*, not text"),
        ("a.csv", "text,label\n" + "".join(f"text {i},{i}\n" for i in range(20)), "each of the 20 rows has a label of its own, .* as --label_column"),
    ],
)  # fmt: skip
def test_rows_that_would_be_lost_or_misread_are_named(name, content, message, tmp_path):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        load_documents({"train": str(tmp_path / name)})


def test_many_lines_in_quotes_are_one_text_and_blanks_around_a_label_are_none_of_it(tmp_path):
    (tmp_path / "a.csv").write_text('text,label\n"one\ntwo, ""three""",pos \nfour,pos\nfive,neg\n')
    documents = load_documents({"train": str(tmp_path / "a.csv"), "validation": str(tmp_path / "a.csv")})
    assert documents.label_names == ("neg", "pos")
    assert documents.splits["train"]["text"][0] == 'one\ntwo, "three"'


def test_each_class_keeps_a_row_to_be_learnt(tmp_path):
    rows = [(f"text {i}", label) for i, label in enumerate("aabb" + "cdefghijklmnopqr")]
    documents = load_documents({"train": written(tmp_path, "train.csv", rows)}, validation_split_percentage=50)
    train, validation = (documents.splits[split] for split in ("train", "validation"))
    assert set(train["label"][:]) == set(range(18))
    assert sorted([*train["text"], *validation["text"]]) == sorted(text for text, _ in rows), "none twice"
    assert 0 < len(validation) <= 2


def test_a_test_split_without_labels_is_predicted_and_files_that_are_not_read_are_named(tmp_path, caplog):
    for name in ("train.csv", "validation.csv", "eval.csv", "train_extra.csv"):
        written(tmp_path, name, ROWS)
    (tmp_path / "own").mkdir()
    unlabelled = written(tmp_path / "own", "rows.csv", [(text, None) for text, _ in ROWS])
    documents = load_documents({"test": unlabelled}, str(tmp_path))
    assert set(documents.splits["test"]["label"][:]) == {-100}
    assert "train_extra, eval.csv is not read, only train, validation and test" in caplog.text


def test_a_class_that_only_validation_has_is_named(tmp_path):
    files = {"train": written(tmp_path, "train.csv", ROWS[:3]), "validation": written(tmp_path, "dev.csv", ROWS)}
    with pytest.raises(
        ValueError, match=r"dev.csv, row 4 .*: label 'c', which no training row has; the classes there are a, b"
    ):
        load_documents(files)
    with pytest.raises(
        ValueError, match=r"the first 1 rows are of one class, 'b'. Give more of them as --max_train_samples"
    ):
        load_documents({"train": files["validation"]}, validation_split_percentage=50, limits={"train": 1})
    with pytest.raises(ValueError, match=r"10% of 3 rows are 0 to evaluate on. Give a --validation_file"):
        load_documents({"train": files["train"]})


VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(30))]


@pytest.fixture(scope="module")
def tokenizer() -> BertTokenizer:
    return BertTokenizer(vocab={name: i for i, name in enumerate(VOCABULARY)})


@pytest.mark.parametrize(("limit", "stride"), [(40, None), (40, 3), (22, 5)])
@torch.no_grad()
def test_logits_of_windows_are_those_of_a_loop_over_documents(limit, stride, tokenizer, tmp_path):
    lengths = [1, 7, 8, 9, 20, 21, 38, 39, 60]
    texts = [" ".join(f"w{(5 * i + 3 * n) % 30}" for i in range(n)) for n in lengths]
    rows = [(text, "ab"[i % 2]) for i, text in enumerate(texts)]
    name = written(tmp_path, "rows.csv", rows)
    documents = load_documents({"train": name, "validation": name})
    size = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    model = BertForSequenceClassification(
        BertConfig(vocab_size=35, max_position_embeddings=10, initializer_range=0.5, **size)
    )
    model = model.double().eval()

    expected = []
    for text in texts:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"][: limit - 2]
        windows, start = [], 0
        while not windows or start - (stride or 8) + 8 < len(ids):
            windows.append([2, *ids[start : start + 8], 3])
            start += stride or 8
        expected.append(torch.stack([model(torch.tensor([window])).logits[0] for window in windows]).mean(0))
    encoded = EncodedDocuments(documents.splits["train"], documents.task, tokenizer, limit, 10, stride)
    evaluation = DocumentEvaluation(encoded, ("a", "b"), 4, tmp_path / "predictions.txt")
    logits = evaluation.logits(model, Accelerator(cpu=True))
    torch.testing.assert_close(logits, torch.stack(expected).float())
    assert encoded.documents_cut == sum(length + 2 > limit for length in lengths)
    assert encoded.labels.tolist() == [documents.splits["train"]["label"][i] for i in encoded.documents]

    found = evaluation(model, Accelerator(cpu=True))
    predictions = torch.stack(expected).argmax(-1)
    assert found["accuracy"] == sum(int(p) == i % 2 for i, p in enumerate(predictions)) / len(texts)
    lines = (tmp_path / "predictions.txt").read_text().splitlines()[1:]
    assert lines == [f"{i}\t{'ab'[p]}" for i, p in enumerate(predictions)]


def test_documents_at_once_are_those_of_the_tokenizer(tokenizer, tmp_path):
    rows = [(" ".join(f"w{i}" for i in range(n)), "ab"[n % 2]) for n in (3, 8, 9, 25)]
    name = written(tmp_path, "rows.csv", rows)
    documents = load_documents({"train": name, "validation": name})
    encoded = EncodedDocuments(documents.splits["train"], documents.task, tokenizer, 10)
    batch = encoded.batch(torch.arange(4).numpy())
    whole = tokenizer([text for text, _ in rows], truncation=True, max_length=10, padding=True, return_tensors="pt")
    for key in ("input_ids", "attention_mask", "token_type_ids"):
        assert torch.equal(batch[key], whole[key])
    assert encoded.documents_cut == 2


def test_pairs_are_those_of_the_tokenizer_and_lose_the_end_of_the_longer_text(tokenizer, tmp_path):
    lengths = [(3, 4), (2, 9), (9, 2), (1, 6)]
    texts = [(" ".join(f"w{i}" for i in range(n)), " ".join(f"w{9 + i}" for i in range(m))) for n, m in lengths]
    rows = [(*pair, "ab"[i % 2]) for i, pair in enumerate(texts)]
    name = written(tmp_path, "pairs.csv", rows, ("premise", "hypothesis", "label"))
    columns = {"text_column": "premise", "text_pair_column": "hypothesis"}
    documents = load_documents({"train": name, "validation": name}, **columns)
    encoded = EncodedDocuments(documents.splits["train"], documents.task, tokenizer, 10)
    batch = encoded.batch(np.arange(4))
    whole = tokenizer(*zip(*texts, strict=True), truncation=True, max_length=10, padding=True, return_tensors="pt")
    for key in ("input_ids", "attention_mask", "token_type_ids"):
        assert torch.equal(batch[key], whole[key])
    assert encoded.documents_cut == 2
    assert encoded.documents.tolist() == [0, 1, 2, 3]
    with pytest.raises(ValueError, match=r"no column 'hypotesis'; name it as --text_pair_column. Did you mean hypoth"):
        load_documents({"train": name, "validation": name}, text_column="premise", text_pair_column="hypotesis")
