"""mu-incoherence: its definition at matrices whose value is known, and what is measured inside a model."""

import pytest
import torch

from s3bert.analysis.incoherence import incoherence, token_incoherence
from s3bert.models.configuration_lra import LraConfig
from s3bert.models.modeling_lra import LraForSequenceClassification


def test_one_token_that_stands_alone_is_the_most_incoherent_and_evenly_spread_tokens_the_least():
    spike = torch.zeros(8, 4)
    spike[3, 1] = 5.0
    assert incoherence(spike, 1) == pytest.approx(8)
    assert incoherence(torch.ones(8, 4), 1) == pytest.approx(1)


def test_a_rotation_of_the_channels_changes_their_part_alone():
    """By Definition 1, written out for a matrix whose singular vectors are known."""
    torch.manual_seed(0)
    left, right = (torch.linalg.qr(torch.randn(n, n).double()).Q for n in (9, 5))
    matrix = left[:, :5] @ torch.diag(torch.tensor([5.0, 4, 3, 2, 1]).double()) @ right.T
    for rank in (1, 3):
        rows = max(9 / rank * (left[i, :rank] ** 2).sum() for i in range(9))
        columns = max(5 / rank * (right[i, :rank] ** 2).sum() for i in range(5))
        assert incoherence(matrix, rank) == pytest.approx(float(max(rows, columns)))
    with pytest.raises(ValueError, match=r"rank = 6: a matrix of \(9, 5\) has ranks 1 to 5"):
        incoherence(matrix, 6)


def test_a_models_tokens_are_measured_without_padding_and_the_model_is_left_as_it_was():
    config = LraConfig(vocab_size=20, hidden_size=16, max_position_embeddings=24, mixer_settings={"num_segments": 4})
    model = LraForSequenceClassification(config).eval()
    ids = torch.randint(1, 20, (2, 10))
    before = model(ids).logits
    alone = token_incoherence(model, ids, (4,))
    padded = token_incoherence(model, torch.cat([ids, torch.zeros(2, 9, dtype=torch.long)], 1), (4,))
    assert set(alone) == {"incoherence_before_4", "incoherence_after_4"}
    assert padded == pytest.approx(alone, rel=1e-4)
    assert all(value >= 1 for value in alone.values())
    assert torch.equal(model(ids).logits, before)
    assert token_incoherence(model, ids, (13,)) == {}, "no sequence has so many tokens"
