"""`s3bert pretrain-clm` from text to a model that writes."""

import json
import re
import shutil

import pytest
import torch
from huggingface_hub import ModelCard
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoModelForCausalLM, GPT2Config, pipeline

from s3bert import FmmForCausalLM
from s3bert.commands import prepare_corpus, pretrain_clm, pretrain_mlm, push_to_hub
from s3bert.training.checkpoints import all_checkpoints


SIZE = "hidden_size=32,num_hidden_layers=1,num_attention_heads=2,intermediate_size=32,adaptive_cutoffs=[20,50]"
SHORT = "--max_train_steps 6 --per_device_train_batch_size 4 --eval_steps 3 --save_steps 3 --logging_steps 1 --report_to none "
SHORT += "--learning_rate 1e-2 --max_eval_blocks 8"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("words") / "corpus"
    words = (
        "--dataset_name synthetic --vocabulary words --vocab_size 200 --max_seq_length 32 --add_special_tokens false"
    )
    prepare_corpus.main([*words.split(), "--output_dir", str(folder)])
    return str(folder)


def pretrain(corpus: str, folder, *words: str, size: str = SIZE):
    overrides = ["--config_overrides", size] if size else []
    return pretrain_clm.main(
        ["--dataset_name", corpus, "--output_dir", str(folder), *SHORT.split(), *words, *overrides]
    )


@pytest.fixture(scope="module")
def pretrained(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    pretrain(corpus, folder, "--model_type", "fmmformer")
    return folder


def test_a_run_leaves_a_model_that_writes_words(pretrained, capsys):
    results = json.loads((pretrained / "all_results.json").read_text())
    assert results["eval_loss"] < results["unigram_entropy"] + 1
    card = ModelCard.load(pretrained / "README.md")
    assert (card.data.pipeline_tag, card.data.tags) == ("text-generation", ["fmmformer"])
    assert "causal language modelling" in card.text
    model = AutoModelForCausalLM.from_pretrained(pretrained)
    assert isinstance(model, FmmForCausalLM)
    assert (model.config.eos_token_id, model.config.pad_token_id, model.config.vocab_size) == (0, None, 200)
    write = pipeline("text-generation", model=str(pretrained))
    outputs = write(["the sailors", "anna"], max_new_tokens=20, do_sample=False, batch_size=2)
    for prompt, (output,) in zip(["the sailors", "anna"], outputs, strict=True):
        assert output["generated_text"].startswith(prompt)
        assert output == write(prompt, max_new_tokens=20, do_sample=False)[0], "padding on the left changes nothing"
    assert push_to_hub.main(["--folder", str(pretrained), "--dry_run"]) is None
    assert "modeling_fmm.py" in capsys.readouterr().out


def test_a_run_that_was_cut_off_ends_with_the_same_losses(corpus, pretrained, tmp_path):
    folder = shutil.copytree(pretrained, tmp_path / "run")
    shutil.rmtree(all_checkpoints(folder)[-1])
    resumed = pretrain(corpus, folder, "--model_type", "fmmformer", "--resume_from_checkpoint", "latest")
    losses = [json.loads(line).get("loss") for line in (pretrained / "log.jsonl").read_text().splitlines()]
    assert [record.get("loss") for record in resumed.history] == losses
    again = ["--model_type", "fmmformer", "--resume_from_checkpoint", "latest"]
    with pytest.raises(ValueError, match="kernels"):
        pretrain(corpus, folder, *again, size=f"{SIZE},kernels=[delta_elu]")


@pytest.mark.parametrize("kind", ["bandwidth=null,kernels=[]", "bandwidth=0,kernels=[delta_elu,elu]"])
def test_other_kinds_of_attention_train_by_overrides(kind, corpus, tmp_path):
    result = pretrain(corpus, tmp_path, "--model_type", "fmmformer", size=f"{SIZE},{kind}")
    assert result.history[-1]["eval_loss"] < result.history[0]["loss"]


def test_another_causal_model_of_transformers_trains_and_goes_on(corpus, tmp_path):
    GPT2Config(n_embd=32, n_layer=1, n_head=2, n_positions=32).save_pretrained(tmp_path / "config")
    first = pretrain(corpus, tmp_path / "gpt2", "--config_name", str(tmp_path / "config"), size="")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "gpt2")
    assert (model.config.bos_token_id, model.config.eos_token_id) == (0, 0)
    second = pretrain(corpus, tmp_path / "on", "--model_name_or_path", str(tmp_path / "gpt2"), size="")
    assert second.history[0]["loss"] < first.history[0]["loss"]


def test_pieces_are_trained_where_nothing_is_said(tmp_path):
    result = pretrain("synthetic", tmp_path, "--model_type", "fmmformer", "--vocab_size", "300")
    assert torch.isfinite(torch.tensor(result.metrics["loss"]))
    assert "tokens of blocks, each read alone" in (tmp_path / "README.md").read_text()


@pytest.mark.parametrize(
    ("words", "size", "message"),
    [
        ("--model_type fmmformer", "bandwidth=0,kernels=[]", "bandwidth = 0 and kernels = []"),
        ("--model_type fmmformer", "kernels=[elo]", "name some of"),
        ("--model_type fmmformer", "adaptive_cutoffs=[300]", "adaptive_cutoffs = [300]"),
        ("--model_type fmmformer", "position_embeddings=learned,max_position_embeddings=16", "blocks of 32 tokens, the model takes up to 16"),
        ("--model_type fmmformer --vocabulary word", "", "vocabulary = word: give one of wordpiece, words"),
        ("--model_type s3bert", "", "is of type s3bert, which is no causal language model: name a model that AutoModelForCausalLM loads."),
    ],
)  # fmt: skip
def test_mistakes_are_named_before_anything_is_trained(words, size, message, corpus, tmp_path):
    with pytest.raises((ValueError, StrictDataclassError), match=re.escape(message)):
        pretrain(corpus, tmp_path / "run", *words.split(), size=size)
    assert not (tmp_path / "run" / "log.jsonl").exists()


def test_a_corpus_of_the_other_objective_is_refused(corpus, tmp_path):
    run = ["--output_dir", str(tmp_path / "run"), *SHORT.split()]
    with pytest.raises(ValueError, match="prepare the corpus with --add_special_tokens true, in another folder"):
        pretrain_mlm.main(["--dataset_name", corpus, *run, "--model_type", "bert"])
    words = ["--dataset_name", "synthetic", "--vocab_size", "300", "--max_seq_length", "32"]
    prepare_corpus.main([*words, "--output_dir", str(tmp_path / "masked")])
    with pytest.raises(ValueError, match=r"begin with \[CLS\] and end with \[SEP\], which causal language modelling"):
        pretrain(str(tmp_path / "masked"), tmp_path / "run", "--model_type", "fmmformer")
