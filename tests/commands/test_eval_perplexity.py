"""s3bert eval-perplexity: any causal model on rows of a text, the same after a kill; its mistakes are named."""

import inspect
import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel, GPT2Model

from s3bert import FmmConfig, FmmForCausalLM, S3BertConfig, S3BertForMaskedLM
from s3bert.commands import eval_perplexity
from s3bert.data.causal_tokenizers import causal_tokenizer, train_words
from s3bert.data.wordpiece import encode_rows, train_wordpiece
from s3bert.experiments import perplexity
from s3bert.experiments.perplexity import LOSSES, read_text


ROWS = [
    " = Rivers = ",
    "",
    "the river runs to the sea",
    "the sea is <eos> wide .",
    " = Hills = ",
    "a hill",
    "",
    "the hill is high",
]
WIKITEXT = Path(os.environ.get("S3BERT_DATA", Path(__file__).parents[2] / "../shared/data")) / "wikitext-2-v1"
ARTICLES = "^ = [^=].* = $"


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("text") / "validation.txt"
    file.write_text("\n".join(12 * ROWS) + "\n", encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    """Folders `fmm` and `gpt2` of tiny models, and of some that are refused, all with a tokenizer of words."""
    folder = tmp_path_factory.mktemp("models")
    words = train_words([ROWS], 30)
    size = dict(vocab_size=len(words), hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
    bert = size | dict(intermediate_size=16, max_position_embeddings=16)
    wide = dict(vocab_size=len(words), n_positions=16, n_embd=16, n_layer=1, n_head=2)
    torch.manual_seed(0)
    made = {
        "fmm": FmmForCausalLM(FmmConfig(**size, intermediate_size=16, bandwidth=3, initializer_range=0.3)),
        "gpt2": GPT2LMHeadModel(GPT2Config(**wide, initializer_range=0.3)),
        "narrow": GPT2LMHeadModel(GPT2Config(**wide | {"vocab_size": 5})),
        "headless": GPT2Model(GPT2Config(**wide, tie_word_embeddings=False)),
        "s3bert": S3BertForMaskedLM(S3BertConfig(**bert)),
        "bert": BertForMaskedLM(BertConfig(**bert)),
    }
    for name, model in made.items():
        model.save_pretrained(folder / name)
        words.save_pretrained(folder / name)
    return folder


def measure(models: Path, name: str, text: Path, output_dir: Path, *words: str):
    names = ["--model_name_or_path", str(models / name), "--dataset_name", str(text), "--output_dir", str(output_dir)]
    return eval_perplexity.main([*names, *words])


@pytest.mark.parametrize("name", ["fmm", "gpt2"])
def test_a_models_perplexity_is_kept_with_each_tokens_loss(name, models, text, tmp_path):
    results = measure(models, name, text, tmp_path, "--max_seq_length", "16", "--document_start", ARTICLES)
    kept = load_file(tmp_path / LOSSES)
    losses = kept["losses"].astype(np.float64)
    assert results["tokens"] == len(losses) == len(kept["context"])
    assert results["documents"] == len(set(kept["document_ids"])) == 24, "articles, not rows"
    assert results["perplexity"] == pytest.approx(math.exp(losses.mean()), rel=1e-6)
    low, high = results["perplexity_interval"]
    assert low < results["perplexity"] < high
    assert results["bits_per_byte"] == pytest.approx(losses.sum() / math.log(2) / text.stat().st_size)
    assert [entry["most"] for entry in results["loss_by_context"]] == [1, 2, 4, 8, 16]
    assert sum(entry["tokens"] for entry in results["loss_by_context"]) == len(losses)
    assert json.loads((tmp_path / "all_results.json").read_text()) == results
    assert (tmp_path / "loss_by_context.png").read_bytes().startswith(b"\x89PNG")
    assert f"| perplexity | {results['perplexity']:.2f} |" in (tmp_path / "results.md").read_text()
    sliding = measure(models, name, text, tmp_path / "sliding", "--max_seq_length", "16", "--stride", "1")
    assert sliding["documents"] == 12 * len(ROWS), "a row each"
    assert sliding["tokens"] == results["tokens"]
    assert not (tmp_path / "sliding" / "loss_by_context.png").exists()


def test_killed_in_the_middle_the_same_command_ends_with_the_same_losses(models, text, tmp_path, monkeypatch):
    words = ["--max_seq_length", "16", "--stride", "4", "--per_device_eval_batch_size", "3"]
    whole = measure(models, "fmm", text, tmp_path / "whole", *words)
    calls = []
    forward = FmmForCausalLM.forward

    def counting(self, *arguments, **keywords):
        calls.append(1)
        if len(calls) == 9:
            raise KeyboardInterrupt
        return forward(self, *arguments, **keywords)

    counting.__signature__ = inspect.signature(forward)
    monkeypatch.setattr(FmmForCausalLM, "forward", counting)
    with pytest.raises(KeyboardInterrupt):
        measure(models, "fmm", text, tmp_path / "killed", *words)
    assert 0 < len(load_file(tmp_path / "killed" / LOSSES)["losses"]) < whole["tokens"]
    assert measure(models, "fmm", text, tmp_path / "killed", *words) == whole
    counts = len(calls)
    assert (tmp_path / "killed" / LOSSES).read_bytes() == (tmp_path / "whole" / LOSSES).read_bytes()
    assert (
        measure(models, "fmm", text, tmp_path / "killed", *words, "--document_start", ARTICLES)["loss"] == whole["loss"]
    )
    assert len(calls) == counts + 2, (
        "a finished measurement is only reported again, after the model is tried for reading ahead"
    )


def test_whatever_was_saved_last_before_a_kill_is_gone_on_from(models, text, tmp_path, monkeypatch):
    saved = []

    def keep(tensors, metadata):
        saved.append((len(tensors["losses"]), save(tensors, metadata)))
        return saved[-1][1]

    monkeypatch.setattr(perplexity, "_SAVE_SECONDS", 0.0)
    monkeypatch.setattr(perplexity, "save_tensors", keep)
    results = measure(models, "gpt2", text, tmp_path / "whole")
    counts = [count for count, _ in saved]
    assert len(counts) > 3
    assert counts[-1] == results["tokens"]
    (tmp_path / "killed").mkdir()
    (tmp_path / "killed" / LOSSES).write_bytes(saved[1][1])
    assert measure(models, "gpt2", text, tmp_path / "killed") == results
    assert (tmp_path / "killed" / LOSSES).read_bytes() == saved[len(counts) - 1][1]
    (tmp_path / "killed" / LOSSES).write_bytes(saved[1][1][:-5])
    with pytest.raises(ValueError, match=f"{LOSSES} cannot be read .*: it is damaged"):
        measure(models, "gpt2", text, tmp_path / "killed")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--stride", "8"], r"stride: 16 -> 8. Give the same, or another --output_dir"),
        (["--max_seq_length", "15"], r"max_seq_length: 16 -> 15; stride: 16 -> 15"),
        (["--dataset_name", "other.txt"], r"text: '\w+' -> '\w+'"),
        (["--model_name_or_path", "fmm"], "model_type: 'gpt2' -> 'fmmformer'.* weights: "),
    ],
)
def test_a_folder_of_other_settings_is_refused_by_the_name_of_the_change(
    words, message, models, text, tmp_path, monkeypatch
):
    monkeypatch.chdir(models)
    Path("other.txt").write_text("the sea\nthe hill\n")
    measure(models, "gpt2", text, tmp_path)
    before = (tmp_path / LOSSES).read_bytes()
    with pytest.raises(ValueError, match=message):
        measure(models, "gpt2", text, tmp_path, *words)
    assert (tmp_path / LOSSES).read_bytes() == before


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        ("gpt2", ["--stride", "17"], "stride = 17: a window reads 16 tokens; give 1 to 16"),
        ("gpt2", ["--max_seq_length", "17"], "max_seq_length = 17: .*gpt2 has learned positions, which end at 16"),
        ("gpt2", ["--split", "test"], "no split 'test': give --split one of validation"),
        ("gpt2", ["--document_start", "^ == "], "no row of the text has it"),
        ("gpt2", ["--document_start", "("], r"document_start = '\(' is no regular expression"),
        ("narrow", [], r"The text has id \d+, .*narrow knows 5: give --tokenizer_name"),
        ("headless", [], r"has no weights for lm_head.weight, which would be random"),
        ("s3bert", [], "is of type s3bert, which is no causal language model"),
        ("bert", [], "bert reads ahead"),
        ("none", [], "There is no model folder"),
    ],
)
def test_mistakes_are_named_before_anything_is_measured(name, words, message, models, text, tmp_path):
    with pytest.raises((ValueError, OSError), match=message):
        measure(models, name, text, tmp_path / "new", *words)
    assert not (tmp_path / "new").exists()


def test_a_text_that_is_too_short_and_a_tokenizer_without_an_end_are_told(models, tmp_path):
    (tmp_path / "short.txt").write_text("\n", encoding="utf-8")
    with pytest.raises(ValueError, match="The text has 1 tokens"):
        measure(models, "gpt2", tmp_path / "short.txt", tmp_path / "new")
    tokenizer = AutoTokenizer.from_pretrained(models / "gpt2")
    tokenizer.eos_token = None
    tokenizer.save_pretrained(tmp_path / "endless")
    with pytest.raises(ValueError, match="has neither an eos nor a sep token"):
        measure(models, "gpt2", tmp_path / "short.txt", tmp_path / "new", "--tokenizer_name", str(tmp_path / "endless"))


@pytest.mark.parametrize("pieces", [False, True], ids=["words", "pieces"])
def test_a_text_is_the_one_that_a_causal_corpus_is_cut_from(pieces, text):
    tokenizer = causal_tokenizer(train_wordpiece(ROWS, 200)) if pieces else train_words([ROWS], 30)
    rows = text.read_text(encoding="utf-8").split("\n")[:-1]
    read = read_text(str(text), None, tokenizer, ARTICLES)
    expected = [ids for ids, _ in encode_rows([rows], tokenizer, np.dtype(np.int64), tokenizer.eos_token_id)]
    np.testing.assert_array_equal(read.ids, np.concatenate(expected))
    starts = np.flatnonzero(np.diff(read.document_ids, prepend=-1))
    documents = [tokenizer.decode(ids).lower().replace(" ", "") for ids in np.split(read.ids, starts[1:])]
    assert all(document.startswith(("=rivers=", "=hills=")) for document in documents)
    assert len(documents) == 24


@pytest.mark.skipif(
    not WIKITEXT.is_dir(), reason=f"{WIKITEXT} is not there: set S3BERT_DATA to a folder that holds wikitext-2-v1"
)
def test_wikitexts_validation_split_has_its_words_and_articles():
    tokenizer = train_words([["the"]], 3)
    read = read_text(str(WIKITEXT), "validation", tokenizer, ARTICLES)
    assert len(read.ids) == 217_646, "213,886 words and an end of each of 3,760 lines"
    assert read.document_ids[-1] + 1 == 60
