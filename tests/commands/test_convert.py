"""`s3bert convert`: weights of every kind of BERT arrive, the smoother begins as an identity, attention near BERT's, mistakes are named."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_pretraining import tokenizer as tiny_tokenizer
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    BertConfig,
    BertForMaskedLM,
    BertModel,
    DistilBertConfig,
    DistilBertForMaskedLM,
    GPT2Config,
    PreTrainedModel,
    RobertaConfig,
    RobertaForMaskedLM,
    T5Config,
    pipeline,
)

import s3bert
from s3bert.commands import convert, errors_in_a_line
from s3bert.models import conversion


LENGTH = 12
SIZE = {"vocab_size": 99, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 40}
KINDS = {
    "bert": lambda: BertForMaskedLM(BertConfig(**SIZE, max_position_embeddings=LENGTH)),
    "roberta": lambda: RobertaForMaskedLM(
        RobertaConfig(**SIZE, max_position_embeddings=LENGTH + 2, pad_token_id=1, type_vocab_size=1)
    ),
    "distilbert": lambda: DistilBertForMaskedLM(
        DistilBertConfig(vocab_size=99, dim=24, n_layers=2, n_heads=2, hidden_dim=40, max_position_embeddings=LENGTH)
    ),
}


def tiny(kind: str) -> PreTrainedModel:
    """With gains, biases and weights of a size that shows where each went."""
    model = KINDS[kind]().eval()
    for parameter in model.parameters():
        parameter.data += torch.randn_like(parameter) * 0.2
    return model


def saved(model: PreTrainedModel, folder: Path) -> Path:
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def run(folder: Path, *words: str) -> tuple[dict, Path]:
    output = folder.parent / "converted"
    return convert.main(["--model_name_or_path", str(folder), "--output_dir", str(output), *words]), output


def token_ids(count: int) -> torch.Tensor:
    return torch.randint(5, 99, (count, LENGTH))


@pytest.mark.parametrize("kind", KINDS)
def test_every_weight_arrives(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(conversion, "SHIFT", 5.0)  # |n| is below 24 ** 0.5: nothing is lost
    source = tiny(kind)
    record, folder = run(saved(source, tmp_path / kind))
    model = AutoModelForMaskedLM.from_pretrained(folder).eval()
    ours, theirs = model.state_dict(), source.state_dict()
    rewritten = ("query", "key", "value")
    for name, origin in record["taken"].items():
        expected = theirs[origin]
        if kind == "roberta" and "position_embeddings" in name:
            expected = expected[2:]
        assert torch.equal(ours[name], expected) or any(part in name for part in rewritten), name
    offset = ["roberta.embeddings.position_embeddings.weight[:2]"]
    assert record["left_out"] == (offset if kind == "roberta" else [])
    assert {*record["taken"]} | {*record["new"]} == {*ours}
    assert {*record["taken"].values()} == {*theirs}
    types = ["s3bert.embeddings.token_type_embeddings.weight"] * (kind == "distilbert")
    assert [name for name in record["new"] if "smoother" not in name and "attention.self" not in name] == types

    ids = token_ids(3)
    states = source.base_model(ids, output_hidden_states=True).hidden_states
    torch.testing.assert_close(model.s3bert.embeddings(ids), states[0])
    projections = [
        [getattr(attention, name) for name in names]
        for attention in source.modules()
        for names in (("query", "key", "value"), ("q_lin", "k_lin", "v_lin"))
        if hasattr(attention, names[0])
    ]
    for layer, inputs, theirs in zip(model.s3bert.encoder.layer, states[:-1], projections, strict=True):
        smoothed = layer.attention.smoother(inputs)
        for name, projection in zip(rewritten, theirs, strict=True):
            projected = getattr(layer.attention.self, name)(smoothed)
            torch.testing.assert_close(projected, projection(inputs), rtol=1e-4, atol=1e-4)
    head = dict(source.named_children())
    hidden = states[-1]
    if kind == "distilbert":
        expected = head["vocab_projector"](
            head["vocab_layer_norm"](torch.nn.functional.gelu(head["vocab_transform"](hidden)))
        )
    else:
        expected = head["cls" if kind == "bert" else "lm_head"](hidden)
    torch.testing.assert_close(model.cls(hidden), expected)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"smoother_norm": "layer", "stem": "depthwise"},
        {"stem": "pointwise", "stem_activation": "elu", "num_segments": 24},
        {"use_fourier_convolution": False},
    ],
    ids=str,
)
@pytest.mark.parametrize("training", [False, True])
@torch.no_grad()
def test_the_smoother_begins_as_an_identity(settings, training):
    """Of a normal n the share (SHIFT^2 + 1) F(-SHIFT) - SHIFT f(SHIFT) = 0.0058 of its variance lies below the kink."""
    source = tiny("bert")
    config = conversion.converted_config(source.config)
    for name, value in settings.items():
        setattr(config, name, value)
    model = s3bert.S3BertForMaskedLM(config)
    conversion.take_weights(model, source)
    conversion.start_near_identity(model)
    norm, smoother = model.s3bert.embeddings.LayerNorm, model.s3bert.encoder.layer[0].attention.smoother
    states = norm(torch.randn(64, LENGTH, 24))
    smoothed = smoother.train(training)(states)
    passed = norm.weight * (smoothed - conversion.SHIFT) + norm.bias
    assert float((passed - states).square().mean() / (states - norm.bias).square().mean()) < 0.01


def test_attention_is_the_least_squares_fit(tmp_path):
    source = tiny("bert")
    model = s3bert.S3BertForMaskedLM(conversion.converted_config(source.config)).eval()
    conversion.take_weights(model, source)
    conversion.start_near_identity(model)
    ids = token_ids(40)
    conversion.fit_attention(model, source, ids.split(16))
    layer, inner = model.s3bert.encoder.layer[1], source.bert.encoder.layer[1].attention
    states = source.bert(ids, output_hidden_states=True).hidden_states[1]
    context = inner.self(states)[0].flatten(0, 1)
    mixed = layer.attention.self(layer.attention.smoother(states))[0].flatten(0, 1)
    parts = [layer.attention.self.row_norm, layer.attention.self.column_norm]
    features = [
        ((part - norm.bias) / norm.weight).flatten(0, 1)
        for part, norm in zip(conversion._normalised(layer.attention, states), parts, strict=True)
    ]
    for channel in (0, 7, 23):
        columns = torch.stack([part[:, channel] for part in features] + [torch.ones(len(context))], 1).detach().double()
        target = context[:, channel].detach().double()
        best, *_ = np.linalg.lstsq(columns, target)
        np.testing.assert_allclose(mixed[:, channel].detach(), columns @ best, atol=1e-3 * float(target.std()))


def test_text_brings_the_model_near_and_is_reported(tmp_path, capsys):
    source = saved(tiny("bert"), tmp_path / "bert")
    words = np.random.default_rng(0).integers(94, size=(600, 20))
    (tmp_path / "text.txt").write_text("\n".join(" ".join(f"w{i}" for i in line) for line in words))
    record, folder = run(
        source, "--dataset_name", str(tmp_path / "text.txt"), "--config_overrides", f"num_row_samples={LENGTH}"
    )
    assert all(layer["explained"] > 0.5 and layer["correlation"] > 0.7 for layer in record["layers"])
    assert record == json.loads((folder / "conversion.json").read_text())
    printed = capsys.readouterr().out
    assert all(words in printed for words in ("Left out: nothing.", "| 0 | 0.", "Held-out loss: "))
    (filled, *_) = pipeline("fill-mask", str(folder), device="cpu")("w1 w2 [MASK] w4")
    assert filled["token_str"].startswith("w")


def test_a_folder_with_files_of_others_stays_as_it_is_and_long_text_is_refused_before_it_is_read(tmp_path):
    source = saved(tiny("bert"), tmp_path / "bert")
    (tmp_path / "text.txt").write_text("w1 w2\n" * 50)
    with pytest.raises(
        ValueError, match=r"sequences of 64 tokens is too long for .*, which takes up to 12: give --max_seq_length 12"
    ):
        run(source, "--dataset_name", str(tmp_path / "text.txt"), "--max_seq_length", "64")
    folder = tmp_path / "converted"
    assert not (folder / "corpus").exists()
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"has tokenizer.json, which no such run wrote"):
        run(source)
    assert (folder / "tokenizer.json").read_text() == "{}"


def test_a_bare_encoder_gives_its_pooler_to_classifiers_and_gets_a_new_head(tmp_path):
    source = BertModel(BertConfig(**SIZE, max_position_embeddings=LENGTH))
    record, folder = run(saved(source, tmp_path / "bert"))
    classifier = AutoModelForSequenceClassification.from_pretrained(folder)
    assert torch.equal(classifier.s3bert.pooler.dense.weight, source.pooler.dense.weight)
    assert "cls.predictions.transform.dense.weight" in record["new"]
    assert not record["left_out"]


def damaged(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4096])


@pytest.mark.parametrize(
    ("spoil", "words", "message"),
    [
        (
            lambda folder: T5Config().save_pretrained(folder),
            [],
            "type 't5' cannot be converted: S3BERT takes .*bert, roberta",
        ),
        (lambda folder: GPT2Config().save_pretrained(folder), [], "type 'gpt2' cannot be converted"),
        (damaged, [], "The checkpoint .* cannot be read .*damaged"),
        (lambda folder: (folder / "tokenizer.json").unlink(), [], "no tokenizer.*give --tokenizer_name"),
        (None, ["hidden_size=48"], "hidden_size = 48: the checkpoint has 24"),
        (None, ["max_position_embeddings=64"], "the checkpoint has 12.*resize_position_embeddings"),
        (None, ["num_segments=7"], "cannot be split into num_segments = 7"),
        (None, ["use_convolution_stem=false"], "8 segments alone.*num_segments = 24"),
    ],
)
def test_mistakes_are_named(spoil, words, message, tmp_path, capsys):
    folder = saved(KINDS["bert"](), tmp_path / "bert")
    if spoil:
        spoil(folder)
    with pytest.raises(SystemExit) as stopped, errors_in_a_line("convert"):
        run(folder, *(["--config_overrides", *words] if words else []))
    assert re.search(message, str(stopped.value)), stopped.value
    assert not (folder.parent / "converted").exists()
