"""s3bert finetune end to end on made-up documents whose class a late word decides: what it learns and leaves, errors; lengthening."""

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertModel,
    BertTokenizer,
    DebertaV2Config,
    DebertaV2Model,
    DistilBertConfig,
    DistilBertModel,
    FNetConfig,
    FNetModel,
    ModernBertConfig,
    ModernBertModel,
    RobertaConfig,
    RobertaModel,
    pipeline,
)

from s3bert import PoNetConfig, PoNetModel, S3BertConfig, S3BertForMaskedLM
from s3bert.commands import report_runs, run_finetuning
from s3bert.experiments.longer_positions import lengthen
from s3bert.reports.repository import validate_repository


POSITIONS, WORDS = 16, 40
FILLERS = [f"w{i}" for i in range(20)]


def document(number: int) -> str:
    """Forty words, of which one between the 20th and the last says what class the document is."""
    draw = np.random.default_rng(number)
    words = draw.choice(FILLERS, WORDS).tolist()
    words[draw.integers(20, WORDS)] = ("dull", "fine")[number % 2]
    return " ".join(words)


def write(file: Path, numbers: range, **columns: list) -> Path:
    columns = {"text": [document(i) for i in numbers], "label": [("bad", "good")[i % 2] for i in numbers]} | columns
    with file.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return file


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory) -> Path:
    """A folder of tiny models of 16 positions by type, with a tokenizer of the documents' words."""
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *FILLERS, "dull", "fine"]
    tokenizer = BertTokenizer(vocab={name: i for i, name in enumerate(names)}, model_max_length=POSITIONS)
    sizes = {"vocab_size": len(names), "max_position_embeddings": POSITIONS, "hidden_size": 32, "num_hidden_layers": 1}
    sizes |= {
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "hidden_dropout_prob": 0,
        "attention_probs_dropout_prob": 0,
    }
    torch.manual_seed(0)
    models = {
        "bert": BertForMaskedLM(BertConfig(**sizes)),
        "s3bert": S3BertForMaskedLM(S3BertConfig(num_segments=4, smoother_dropout_prob=0.0, **sizes)),
    }
    folder = tmp_path_factory.mktemp("checkpoints")
    for name, model in models.items():
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return folder


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("files")
    ranges = {"train": range(400), "validation": range(1000, 1060), "test": range(2000, 2041)}
    return {split: write(folder / f"{split}.csv", numbers) for split, numbers in ranges.items()}


def words(checkpoint: Path, files: dict[str, Path], output_dir: Path, *more: str) -> list[str]:
    found = ["--model_name_or_path", str(checkpoint), "--output_dir", str(output_dir), "--learning_rate", "1e-2"]
    for split, file in files.items():
        found += [f"--{split}_file", str(file)]
    return [*found, "--per_device_train_batch_size", "20", "--max_seq_length", "48", "--num_train_epochs", "4", *more]


def test_who_reads_whole_documents_learns_what_who_cuts_them_cannot(checkpoints, files, tmp_path, caplog):
    with caplog.at_level("INFO"):
        whole = run_finetuning.main(words(checkpoints / "bert", files, tmp_path / "whole"))
    windows = ["--sliding_window", "16", "--window_stride", "10"]
    windowed = run_finetuning.main(words(checkpoints / "bert", files, tmp_path / "windows", *windows))
    cut = run_finetuning.main(words(checkpoints / "bert", files, tmp_path / "cut", "--max_seq_length", "16"))
    for name in ("eval_accuracy", "eval_macro_f1", "eval_test_accuracy"):
        assert whole[name] > 0.9
        assert windowed[name] > 0.9
        assert cut[name] < 0.7
    assert whole["documents_cut"] == windowed["documents_cut"] == {"train": 0, "validation": 0, "test": 0}
    assert cut["documents_cut"] == {"train": 400, "validation": 60, "test": 41}
    assert "pretrained with 16 positions, is lengthened in place to 48" in caplog.text
    assert whole["eval_seconds_per_document"] > 0
    positions = [
        AutoModelForSequenceClassification.from_pretrained(tmp_path / name).config.max_position_embeddings
        for name in ("whole", "windows", "cut")
    ]
    assert positions == [48, 16, 16]

    results = tmp_path / "results" / "documents"
    runs = [str(tmp_path / name) for name in ("whole", "windows", "cut")]
    report_runs.main(["--results_dir", str(results), "--title", "Documents", "--add", *runs])
    page = (results / "results.md").read_text()
    assert "Of the test documents" in page
    score = 100 * cut["eval_test_accuracy"]
    assert re.search(rf"\| cut \| bert \| 16 \| {score:.2f} \| .* \| 41 of 41 \| 1 \|", page)
    assert "| windows | bert, windows of 16 | 48 |" in page
    best = f"bert {100 * whole['eval_test_accuracy']:.2f} (48), bert, windows of 16 "
    assert f"| 16 to 48 tokens | best accuracy (tokens): {best}" in (results.parent / "README.md").read_text()
    assert str(tmp_path) not in (results / "results.json").read_text()
    assert (results / "results.png").stat().st_size > 10_000


def test_a_grid_leaves_a_complete_repository_and_the_same_call_trains_nothing(checkpoints, files, tmp_path):
    more = ["--num_train_epochs", "1", "--seed", "1", "2", "--max_train_samples", "40"]
    argv = words(checkpoints / "s3bert", files, tmp_path, *more)
    results = run_finetuning.main(argv)
    assert results == json.loads((tmp_path / "all_results.json").read_text())
    assert results["samples"] == {"train": 40, "validation": 60, "test": 41}
    assert not validate_repository(tmp_path)
    assert {"arguments.yaml", "learning_curves.png", "modeling_s3bert.py"} <= {file.name for file in tmp_path.iterdir()}
    accuracies = [100 * trial["metrics"]["accuracy"] for trial in results["settings"][0]["trials"]]
    assert f"| {sum(accuracies) / 2:.2f} | {np.std(accuracies, ddof=1):.2f} |" in (tmp_path / "results.md").read_text()

    model = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert (model.config.id2label, model.config.max_position_embeddings) == ({0: "bad", 1: "good"}, 48)
    assert AutoTokenizer.from_pretrained(tmp_path).model_max_length == 48
    predictions = pipeline("text-classification", model=str(tmp_path))([document(i) for i in range(2000, 2041)])
    lines = (tmp_path / "predict_results_test.txt").read_text().splitlines()
    assert lines == ["index\tprediction", *(f"{i}\t{found['label']}" for i, found in enumerate(predictions))]

    logs = {file: file.stat().st_mtime_ns for file in tmp_path.glob("trials/*/log.jsonl")}
    assert len(logs) == 2
    assert run_finetuning.main(argv) == results
    assert {file: file.stat().st_mtime_ns for file in logs} == logs
    with pytest.raises(ValueError, match="finished with other settings than this call's, sliding_window: None -> 16"):
        run_finetuning.main([*argv, "--sliding_window", "16"])


def test_a_test_file_without_labels_is_predicted_and_validation_rows_are_held_out(checkpoints, files, tmp_path):
    unlabelled = tmp_path / "test.jsonl"
    unlabelled.write_text("".join(json.dumps({"text": document(i)}) + "\n" for i in range(5)))
    chosen = {"train": files["train"], "test": unlabelled}
    results = run_finetuning.main(words(checkpoints / "bert", chosen, tmp_path / "out", "--max_train_steps", "1"))
    assert results["samples"] == {"train": 360, "validation": 40, "test": 5}
    assert "eval_test_accuracy" not in results
    assert len((tmp_path / "out" / "predict_results_test.txt").read_text().splitlines()) == 6


def test_predictions_are_of_the_weights_that_a_run_ends_with(checkpoints, files, tmp_path):
    best = [
        "--load_best_model_at_end",
        "--metric_for_best_model",
        "loss",
        "--greater_is_better",
        "--num_train_epochs",
        "3",
    ]
    results = run_finetuning.main(words(checkpoints / "bert", files, tmp_path, *best))
    losses = [record["eval_loss"] for record in results["settings"][0]["trials"][0]["history"]]
    assert results["eval_loss"] == max(losses) > losses[-1]
    found = pipeline("text-classification", model=str(tmp_path))([document(i) for i in range(1000, 1060)])
    lines = (tmp_path / "predict_results_validation.txt").read_text().splitlines()
    assert lines[1:] == [f"{i}\t{each['label']}" for i, each in enumerate(found)]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--window_stride", "8"], "window_stride = 8: it is of windows; give --sliding_window too"),
        (
            ["--sliding_window", "16", "--text_pair_column", "b"],
            "windows are of single texts, and text_pair_column = b",
        ),
        (["--sliding_window", "48"], "sliding_window = 48: one window reads all 48 tokens of max_seq_length"),
        (
            ["--sliding_window", "17"],
            "^--sliding_window 17 is beyond .*bert, which takes up to 16 tokens: pass --sliding_window 16",
        ),
        (["--sliding_window", "16", "--window_stride", "15"], "--window_stride 15: a window reads 14 tokens of text"),
        (["--label_column", "lable"], r"train.csv: no column 'lable'; name it as --label_column. Did you mean label\?"),
        (["--test_file", "nowhere.csv"], "--test_file nowhere.csv: there is no such file"),
    ],
)
def test_bad_input_is_refused_before_anything_is_trained(checkpoints, files, tmp_path, more, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        run_finetuning.main(words(checkpoints / "bert", files, tmp_path / "out", *more))
    assert not list((tmp_path / "out").rglob("log.jsonl"))


def sizes(**more) -> dict:
    return {"vocab_size": 30, "hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 16, **more}


HEADS = {"num_attention_heads": 2}
LEARNED = {
    "bert": lambda: BertModel(BertConfig(**sizes(**HEADS, max_position_embeddings=12))),
    "roberta": lambda: RobertaModel(RobertaConfig(**sizes(**HEADS, max_position_embeddings=14, pad_token_id=1))),
    "distilbert": lambda: DistilBertModel(
        DistilBertConfig(vocab_size=30, dim=16, n_layers=1, n_heads=2, hidden_dim=16, max_position_embeddings=12)
    ),
    "fnet": lambda: FNetModel(FNetConfig(**sizes(max_position_embeddings=12))),
    "deberta": lambda: DebertaV2Model(
        DebertaV2Config(
            **sizes(**HEADS, max_position_embeddings=12), relative_attention=True, pos_att_type=["p2c", "c2p"]
        )
    ),
    "ponet": lambda: PoNetModel(PoNetConfig(**sizes(**HEADS, max_position_embeddings=12))),
}


@pytest.mark.parametrize("name", LEARNED)
@torch.no_grad()
def test_a_lengthened_model_equals_the_short_one_on_what_that_takes(name, tmp_path):
    model = LEARNED[name]().eval()
    ids = torch.arange(3, 15)[None]  # all twelve positions
    before = model(input_ids=ids).last_hidden_state
    lengthen(model, 31)
    torch.testing.assert_close(model(input_ids=ids).last_hidden_state, before, rtol=0, atol=0)
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path).eval()
    longer = torch.randint(2, 30, (2, 31))
    torch.testing.assert_close(again(input_ids=longer).last_hidden_state, model(input_ids=longer).last_hidden_state)
    assert again(input_ids=longer).last_hidden_state.shape == (2, 31, 16)
    offset = 2 if name == "roberta" else 0
    rows = again.get_input_embeddings().weight.new_tensor(range(31)).long() % 12 + offset
    table = again.embeddings.position_embeddings.weight
    assert torch.equal(table[offset:], table[rows])


@torch.no_grad()
def test_rotary_positions_need_nothing_and_others_are_refused():
    rotary = ModernBertModel(ModernBertConfig(**sizes(**HEADS, max_position_embeddings=12, pad_token_id=0))).eval()
    lengthen(rotary, 40)
    assert rotary(input_ids=torch.randint(1, 30, (1, 40))).last_hidden_state.isfinite().all()
    relative = DebertaV2Model(
        DebertaV2Config(**sizes(**HEADS, max_position_embeddings=12, position_biased_input=False))
    )
    with pytest.raises(
        ValueError,
        match=r"deberta-v2 takes up to 12 tokens, and how to lengthen it is not known: .*--sliding_window 12",
    ):
        lengthen(relative, 40)
