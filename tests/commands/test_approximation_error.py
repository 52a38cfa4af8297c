"""s3bert approximation: its errors are those of the definitions, its files are there, its mistakes are named."""

import json

import pytest
import torch
from reference import relative_error as difference
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM

from s3bert import S3BertConfig, S3BertModel
from s3bert.analysis.approximation import APPROXIMATIONS, attention_inputs, relative_error
from s3bert.commands import approximation_error, pretrain_mlm


SMALL = "hidden_size=32,num_hidden_layers=2,num_attention_heads=2,intermediate_size=32,max_position_embeddings=64"


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """A folder of a BERT that was trained for two steps."""
    folder = tmp_path_factory.mktemp("runs") / "bert"
    words = ["--dataset_name", "synthetic", "--model_type", "bert", "--config_overrides", SMALL, "--vocab_size", "300"]
    words += ["--max_seq_length", "64", "--max_train_samples", "200", "--max_train_steps", "2", "--report_to", "none"]
    pretrain_mlm.main([*words, "--max_eval_blocks", "2", "--output_dir", str(folder)])
    return folder


def measure(bert, output_dir, *words: str):
    names = ["--model_name_or_path", str(bert), "--dataset_name", str(bert / "corpus"), "--output_dir", str(output_dir)]
    return approximation_error.main(
        [*names, "--lengths", "32", "64", "--sizes", "4", "48", "--num_sequences", "3", *words]
    )


def test_errors_of_trained_weights_and_first_values_are_measured_and_kept(bert, tmp_path):
    errors = measure(bert, tmp_path)
    assert list(errors) == ["trained", "first values"]
    for found in errors.values():
        assert list(found) == list(APPROXIMATIONS), "all of them by default"
        for points in found.values():
            assert [(point["length"], point["size"]) for point in points] == [(32, 4), (64, 4), (64, 48)]
            assert {point["count"] for point in points} == {3 * 2 * 2}
        for name in ("skyformer", "performer", "skeleton_rows"):
            assert found[name][1]["mean"] > found[name][2]["mean"], "more landmarks, features or rows come closer"
    assert errors["trained"] != errors["first values"]
    assert json.loads((tmp_path / "all_results.json").read_text())["errors"] == errors
    assert (tmp_path / "errors.png").read_bytes().startswith(b"\x89PNG")
    assert "| performer | 32 |" in (tmp_path / "results.md").read_text()
    assert measure(bert, tmp_path) == errors, "the same draws"


def test_queries_keys_and_values_are_those_of_the_models_attention():
    """Their softmax attention is what the layer gives to its output projection."""
    model = BertForMaskedLM(BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2)).bert
    seen = []
    for layer in model.encoder.layer:
        layer.attention.output.dense.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    layers = attention_inputs(model, torch.randint(0, 50, (2, 9)))
    for (query, key, value), mixed in zip(layers, seen, strict=True):
        assert query.shape == (2, 2, 9, 8)
        weights = (query @ key.transpose(2, 3) / 8**0.5).softmax(3)
        assert difference((weights @ value).transpose(1, 2).flatten(2), mixed.double()) < 1e-6


def test_an_error_is_the_spectral_norm_of_the_difference_and_skyformers_is_that_of_its_own_formula():
    """A = D_Q^(1/2) C D_K^(1/2) by loops over the equation, C from Nystrom's formula on the drawn landmarks."""
    torch.manual_seed(3)
    query, key, value = torch.randn(3, 1, 1, 12, 8, dtype=torch.float64)
    torch.manual_seed(4)
    approximation = APPROXIMATIONS["skyformer"](query, key, value, 6)[0, 0]
    torch.manual_seed(4)
    torch.nn.Linear(8, 8), torch.nn.Linear(8, 8), torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)  # the mixer's own draws
    numbers = (torch.rand(2, 1, 3) * 12).long()[:, 0]
    points = torch.cat([query[0, 0, numbers[0]], key[0, 0, numbers[1]]])

    def kernel(left, right):
        return torch.tensor([[(-(a - b).square().sum() / (2 * 8**0.5)).exp() for b in right] for a in left])

    gram = kernel(points, points) + 0.1 * torch.eye(6, dtype=torch.float64)
    scores = kernel(query[0, 0], points) @ torch.linalg.solve(gram, kernel(points, key[0, 0]))
    scores = scores * (key[0, 0].square().sum(1) / (2 * 8**0.5)).exp()
    scores = scores * (query[0, 0].square().sum(1, keepdim=True) / (2 * 8**0.5)).exp()
    expected = scores / scores.sum(1, keepdim=True) @ value[0, 0]
    assert difference(approximation, expected) < 1e-9
    exact = (query @ key.transpose(2, 3) / 8**0.5).softmax(3) @ value
    norms = [torch.linalg.svdvals(matrix)[0] for matrix in (expected - exact[0, 0], exact[0, 0])]
    assert relative_error(expected[None, None], exact).item() == pytest.approx((norms[0] / norms[1]).item(), rel=1e-9)


def test_a_landmark_or_a_row_for_each_token_is_exact_and_features_come_close_by_their_number():
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 1, 2, 16, 8, dtype=torch.float64)
    query, key = query / 2, key / 2
    exact = (query @ key.transpose(2, 3) / 8**0.5).softmax(3) @ value
    for name, size, bound in (("skeleton_rows", 16, 1e-12), ("nystrom", 16, 0.1), ("performer", 20_000, 0.1)):
        assert relative_error(APPROXIMATIONS[name](query, key, value, size), exact).max() < bound, name
    assert APPROXIMATIONS["linformer"](query, key, value, 4).shape == exact.shape


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--approximations", "linforme"], "approximations: unknown 'linforme'. Did you mean linformer"),
        (["--sizes", "1"], "sizes = 1: must be at least 2"),
        (["--sizes", "32", "64"], "sizes = \\[32, 64\\]: none is below the length 32"),
        (["--sizes", "4", "7"], "sizes: 7 is odd"),
        (["--num_sequences", "0"], "num_sequences = 0"),
        (["--lengths", "65"], "blocks of this corpus end at 64"),
    ],
)
def test_mistakes_are_named_before_anything_is_measured(words, message, bert, tmp_path):
    with pytest.raises(ValueError, match=message):
        measure(bert, tmp_path / "new", *words)
    assert not (tmp_path / "new").exists()


def test_a_model_without_softmax_attention_is_refused(bert, tmp_path):
    config = S3BertConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, vocab_size=300
    )
    S3BertModel(config).save_pretrained(tmp_path / "s3bert")
    AutoTokenizer.from_pretrained(bert).save_pretrained(tmp_path / "s3bert")
    names = ["--model_name_or_path", str(tmp_path / "s3bert"), "--output_dir", str(tmp_path / "out")]
    with pytest.raises(ValueError, match="A s3bert has no softmax attention of BERT's"):
        measure(bert, tmp_path, *names)
