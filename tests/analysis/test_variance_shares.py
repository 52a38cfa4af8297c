"""What S3 makes of its inputs: shares of variance and effective ranks, at values that are known or written out otherwise."""

import math

import pytest
import torch
from accelerate.utils import set_seed
from torch import nn
from transformers.modeling_outputs import BaseModelOutput

from s3bert.analysis.variance_shares import (
    effective_rank,
    landmark_tokens,
    layer_measures,
    settle_statistics,
    share_of_tokens,
    variance_shares,
)
from s3bert.models.configuration_lra import LraConfig
from s3bert.models.modeling_lra import LraModel


def encoder(length: int = 32, mixer: str = "s3", **settings) -> LraModel:
    set_seed(0)
    own = {"num_segments": 4, "num_row_samples": 3, "smoother_dropout_prob": 0.5} | settings if mixer == "s3" else {}
    sizes = dict(hidden_size=16, intermediate_size=16, num_attention_heads=2, vocab_size=20)
    return LraModel(LraConfig(mixer=mixer, mixer_settings=own, max_position_embeddings=length, **sizes))


class Weighted(nn.Module):
    """A pooled vector whose parts are known: the mean of weights times ids, in one channel."""

    def forward(self, input_ids, mask):
        weights = torch.tensor([3.0, 0.0, 1.0, 2.0])
        return BaseModelOutput(last_hidden_state=(weights * input_ids)[..., None])


def test_the_share_of_tokens_is_that_of_their_variance_where_each_adds_its_own():
    ids = torch.randint(0, 9, (20_000, 4), generator=torch.Generator().manual_seed(0))
    for tokens, share in (([0], 9 / 14), ([1], 0.0), ([2, 3], 5 / 14), ([0, 1, 2, 3], 1.0)):
        assert share_of_tokens(Weighted(), ids, torch.tensor(tokens), 512) == pytest.approx(share, abs=0.02)


def test_the_effective_rank_counts_directions_by_their_weight():
    assert effective_rank(torch.eye(5)).item() == pytest.approx(5)
    assert effective_rank(torch.ones(7, 3)).item() == pytest.approx(1, abs=1e-6)
    values = [4.0, 2.0, 2.0]
    expected = math.exp(-sum(value / 8 * math.log(value / 8) for value in values))
    rotations = [torch.linalg.qr(torch.randn(n, n).double()).Q for n in (6, 3)]
    matrix = rotations[0][:, :3] * torch.tensor(values) @ rotations[1]
    assert effective_rank(torch.stack([matrix, 9 * matrix])).tolist() == pytest.approx([expected] * 2)


def test_landmark_tokens_are_those_that_row_attention_reads_and_the_stems_neighbours():
    model = encoder()
    places = [layer.mixer.attention.row_positions for layer in model.layers]
    expected = {token + step for rows in places for token in rows.tolist() for step in (-1, 0, 1)} & set(range(32))
    assert landmark_tokens(model, 32).tolist() == sorted(expected)
    halves = {(2 * token + 1) // 4 for token in places[0].tolist() + places[1].tolist()}
    assert landmark_tokens(encoder(use_convolution_stem=False), 16).tolist() == sorted(halves)


@torch.no_grad()
def test_row_attention_and_the_fourier_branch_are_measured_by_their_definitions():
    model = encoder(implementation="direct").eval()
    ids = torch.randint(1, 20, (6, 32))
    kept = []
    model.layers[1].mixer.smoother.register_forward_pre_hook(lambda module, inputs: kept.append(inputs[0]))
    measures = layer_measures(model, ids)[1]
    (states,) = kept
    smoother, attention = model.layers[1].mixer.smoother, model.layers[1].mixer.attention
    query, key, value = (
        attention.heads(linear(smoother(states))) for linear in (attention.query, attention.key, attention.value)
    )
    rows = attention.row_positions
    weights = (query @ key[:, :, rows].transpose(2, 3) / 8**0.5).softmax(3)
    row = (weights @ value[:, :, rows]).transpose(1, 2).flatten(2).double()  # (B, S, H)
    constant, shared = row.mean((0, 1), keepdim=True), row.mean(1, keepdim=True)
    parts = [constant.expand_as(row), (shared - constant).expand_as(row), row - shared]
    squares = [part.square().mean() / row.square().mean() for part in parts]
    found = [measures[name] for name in ("row_constant", "row_shared", "row_token")]
    assert found == pytest.approx([square.item() for square in squares], rel=1e-4)
    assert sum(found) == pytest.approx(1)
    assert measures["row_rms"] == pytest.approx(row.square().mean().sqrt().item(), rel=1e-5)
    assert measures["row_normed_rms"] == pytest.approx(1, rel=1e-5)
    nothing = torch.zeros_like(states)
    branches = [(smoother.fourier_convolution(states), nothing), (nothing, states)]
    outputs = [smoother.stem(torch.cat(pair, 2).transpose(1, 2)).double() for pair in branches]
    fourier, direct = (output.transpose(0, 1).flatten(1).var(1).sum() for output in outputs)
    assert measures["fourier_share"] == pytest.approx((fourier / (fourier + direct)).item(), rel=1e-4)


def test_a_layer_without_a_part_lacks_its_measures():
    ids = torch.randint(1, 20, (4, 32))
    without_row = layer_measures(encoder(use_row_attention=False), ids)[0]
    assert set(without_row) == {"fourier_share", "token_rank"}
    assert "fourier_share" not in layer_measures(encoder(use_convolution_stem=False), ids)[0]


@torch.no_grad()
def test_settled_statistics_are_those_of_the_inputs_and_rates_stay():
    model = encoder()
    ids = torch.randint(1, 20, (16, 32))
    rates = [module.p for module in model.modules() if isinstance(module, nn.Dropout)]
    settle_statistics(model, ids)
    assert [module.p for module in model.modules() if isinstance(module, nn.Dropout)] == rates
    assert max(rates) == 0.5
    norm = model.layers[0].mixer.smoother.norm
    assert norm.momentum == 0.1
    assert not model.training
    kept = []
    norm.register_forward_hook(lambda module, inputs, output: kept.append(output))
    model(ids)
    (normalised,) = kept
    assert torch.allclose(normalised.mean((0, 2)), torch.zeros(32), atol=1e-4)
    assert torch.allclose(normalised.var((0, 2), correction=0), torch.ones(32), atol=1e-2)


def test_at_first_values_the_pooled_vector_hangs_on_the_landmarks_and_not_without_row_attention():
    """Section 4 of the design, small: what the measures are for."""
    ids = torch.randint(1, 20, (128, 128))
    found = []
    for settings in ({}, {"use_row_attention": False}):
        model = encoder(128, **settings)
        settle_statistics(model, ids)
        found.append(variance_shares(model, ids))
    assert found[0]["landmark_tokens"] == found[1]["landmark_tokens"] <= 18
    assert found[0]["landmark_share"] > 0.7 > 0.3 > found[1]["landmark_share"]
    assert found[0]["other_share"] < 0.2
    assert all(1 <= each["pooled_rank"] <= 16 for each in found)


def test_another_mixer_is_refused():
    with pytest.raises(ValueError, match="mixer = linear: only S3 has landmark tokens"):
        variance_shares(encoder(mixer="linear"), torch.ones(2, 32, dtype=torch.long))
