"""Skyformer's instability score: its value where it can be worked out, and a model left as it was."""

import pytest
import torch
from transformers.modeling_outputs import SequenceClassifierOutput

from s3bert.analysis.instability import instability
from s3bert.models.configuration_lra import LraConfig
from s3bert.models.mixers import MIXERS
from s3bert.models.modeling_lra import LraForSequenceClassification


class Sum(torch.nn.Module):
    """One logit, weights times ids: noise of size e on n weights changes it by e^2 times the sum of squared ids."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((4,), 3.0))

    def forward(self, input_ids):
        return SequenceClassifierOutput(logits=(input_ids * self.weight).sum(1, keepdim=True))


def test_a_linear_model_changes_by_the_noise_times_its_input():
    score = instability(Sum(), torch.tensor([[1, 2, 0, 0]]), scale=0.01, draws=4000)
    assert score == pytest.approx((0.01 * 3) ** 2 * 5, rel=0.1)


@pytest.mark.parametrize("mixer", MIXERS)
def test_the_model_is_left_as_it_was_and_the_score_repeats(mixer):
    torch.manual_seed(0)
    config = LraConfig(vocab_size=20, hidden_size=16, max_position_embeddings=64, mixer=mixer)
    model = LraForSequenceClassification(config).eval()
    ids = torch.randint(1, 20, (2, 64))
    before = model(ids).logits
    score = instability(model, ids)
    assert score > 0
    assert instability(model, ids) == score
    assert instability(model, ids, scale=0.1) > score
    assert torch.equal(model(ids).logits, before)
