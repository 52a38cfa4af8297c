"""`s3bert compare-clm`: kinds of attention trained alike, scored and compared."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM

from s3bert import FmmConfig
from s3bert.commands import compare_clm, report_runs
from s3bert.experiments.arguments import ATTENTIONS
from s3bert.experiments.causal_comparison import attention_config, build_model
from s3bert.reports.published import PERPLEXITIES


MODEL = {"model_type": "fmmformer", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
MODEL |= {"intermediate_size": 16, "adaptive_cutoffs": [20]}
ARGUMENTS = "--vocabulary words --vocab_size 60 --max_seq_length 16 --bandwidth 3 --stride 8 --max_train_steps 12 --eval_steps 4 --save_steps 4 "
ARGUMENTS += "--per_device_train_batch_size 4 --per_device_eval_batch_size 16 --learning_rate 2e-2 --seed 1 2 --document_start ^=$"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("compare")
    generator = np.random.default_rng(0)
    for name, articles in (("train", 60), ("validation", 9)):
        rows = []
        for _ in range(articles):
            words = generator.integers(40, size=12)
            rows += ["=", *(" ".join(f"w{word}" for word in words) for _ in range(3))]
        (folder / f"{name}.txt").write_text("\n".join(rows) + "\n")
    (folder / "model.json").write_text(json.dumps(MODEL))
    return folder


def compare(folder: Path, *words: str) -> dict:
    sources = ["--dataset_name", str(folder), "--config_name", str(folder / "model.json")]
    return compare_clm.main([*sources, *ARGUMENTS.split(), "--output_dir", str(folder / "run"), *words])


def test_without_a_validation_split_only_rows_that_were_held_out_are_scored(folder, tmp_path):
    (tmp_path / "all.txt").write_text((folder / "train.txt").read_text())
    total = len((folder / "train.txt").read_text().split()) + 240  # an end after each row
    words = [
        "--dataset_name",
        str(tmp_path / "all.txt"),
        "--validation_split_percentage",
        "20",
        "--output_dir",
        str(tmp_path / "run"),
    ]
    short = ["--max_train_steps", "4", "--attention", "softmax", "--seed", "1"]
    compare(folder, *words, *short)
    (scored,) = re.findall(r"those of ([\d,]+) held-out tokens", (tmp_path / "run" / "results.md").read_text())
    assert int(scored.replace(",", "")) == pytest.approx(0.2 * total, rel=0.1)
    with pytest.raises(ValueError, match=r"held-out text is 1 document, and intervals are over documents: give a"):
        compare(folder, *words[:-1], str(tmp_path / "one"), *short, "--max_eval_samples", "4")
    assert not list((tmp_path / "one").rglob("log.jsonl"))


def test_kinds_of_attention_are_compared_on_the_same_tokens_and_more_can_be_added(folder, tmp_path):
    first = compare(folder, "--attention", "softmax", "band")
    results = compare(folder, "--attention", "softmax", "band", "fast-weight+linear+band")
    for name in ("softmax", "band"):
        assert results["attentions"][name]["settings"] == first["attentions"][name]["settings"], "not trained again"
    losses = {}
    for name, result in results["attentions"].items():
        trials = sorted((folder / "run").glob(f"{name.replace('+', '-')}/trials/*"))
        assert len(trials) == 2
        losses[name] = np.mean([load_file(trial / "sliding.safetensors")["losses"] for trial in trials], 0)
        assert result["perplexity"] == pytest.approx(np.exp(losses[name].mean(dtype=np.float64)))
        low, high = result["interval"]
        assert low < result["perplexity"] < high
        assert [span["most"] for span in result["loss_by_context"]] == [1, 2, 4, 8, 16]
        weights = [trial for trial in trials if (trial / "model.safetensors").exists()]
        assert AutoModelForCausalLM.from_pretrained(weights[0]).config.kernels == (ATTENTIONS[name] or [[]])[0]
    for one, result in results["attentions"].items():
        for other, (found, low, high) in result["against"].items():
            assert found == pytest.approx((losses[one] - losses[other]).mean(), abs=1e-6)
            assert low <= found <= high
    assert "over 9 documents" in results["description"]
    page = (folder / "run" / "results.md").read_text()
    assert "published" not in page, "the paper's bands are of 20"
    assert (folder / "run" / "losses.png").read_bytes().startswith(b"\x89PNG")
    report_runs.main(
        ["--results_dir", str(tmp_path / "clm"), "--title", "Language models", "--add", str(folder / "run")]
    )
    assert "against softmax" in (tmp_path / "clm" / "results.md").read_text()
    with pytest.raises(ValueError, match="stride"):
        compare(folder, "--attention", "softmax", "--stride", "4")


def test_the_papers_kinds_are_all_there_and_share_their_first_values():
    assert set(ATTENTIONS) == set(PERPLEXITIES)
    base = FmmConfig(vocab_size=30, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, adaptive_cutoffs=[10])
    softmax = build_model(attention_config(base, "softmax", 4), 7).state_dict()
    for name in ATTENTIONS:
        config = attention_config(base, name, 4)
        state = build_model(config, 7).state_dict()
        assert set(softmax) <= set(state)
        assert all(torch.equal(state[key], value) for key, value in softmax.items())
        assert config.bandwidth == (None if name == "softmax" else 4 * ("band" in name))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--attention sofmax", "attention: unknown 'sofmax'. Did you mean softmax"),
        ("--attention band band", "attention = band band: one is named twice"),
        ("--stride 17", "stride = 17: a window reads 16 tokens"),
        ("--streaming", "give a text that fits the disk"),
        ("--config_name model/bert-tiny", "is of a bert: give an FMMformer's"),
    ],
)
def test_mistakes_are_named(words, message, folder, tmp_path):
    with pytest.raises(ValueError, match=re.escape(message)):
        compare(folder, *words.split(), "--output_dir", str(tmp_path / "run"))
