"""mu-incoherence: its definition at matrices whose value is known, and what is measured inside a model."""

import math

import pytest
import torch

from s3bert.analysis.incoherence import incoherence, incoherences, token_incoherence
from s3bert.models.configuration_lra import LraConfig
from s3bert.models.modeling_lra import LraForSequenceClassification


def test_one_token_that_stands_alone_is_the_most_incoherent_and_evenly_spread_tokens_the_least():
    spike = torch.zeros(8, 4)
    spike[3, 1] = 5.0
    assert incoherence(spike, 1) == pytest.approx(8)
    assert incoherence(torch.ones(8, 4), 1) == pytest.approx(1)


def test_it_is_that_of_definition_1_written_out_for_each_matrix_down_to_the_smallest_singular_value():
    """Singular values fall to 2e-5 of the largest; rows of zeros are padding."""
    torch.manual_seed(0)
    lengths, ranks = (9, 14), (1, 3, 5)
    matrices = torch.zeros(2, 14, 5, dtype=torch.float64)
    for matrix, length in zip(matrices, lengths, strict=True):
        left, right = (torch.linalg.qr(torch.randn(n, n).double()).Q for n in (length, 5))
        matrix[:length] = left[:, :5] * torch.tensor([1.0, 0.3, 1e-2, 1e-3, 2e-5]).double() @ right.T
    found = incoherences(matrices, ranks, torch.tensor(lengths))
    for number, (matrix, length) in enumerate(zip(matrices, lengths, strict=True)):
        left, _, right = torch.linalg.svd(matrix[:length], full_matrices=False)
        for rank in ranks:
            rows = max(length / rank * (left[i, :rank] ** 2).sum() for i in range(length))
            columns = max(5 / rank * (right[:rank, i] ** 2).sum() for i in range(5))
            assert found[rank][number].item() == pytest.approx(float(max(rows, columns)), rel=1e-5)


def test_a_rank_that_a_matrix_does_not_have_gives_nothing():
    matrix = torch.randn(9, 2) @ torch.randn(2, 5)
    assert incoherence(matrix, 2) >= 1
    assert math.isnan(incoherence(matrix, 3)), "of rank 2"
    with pytest.raises(ValueError, match=r"rank = 6: a matrix of \(9, 5\) has ranks 1 to 5"):
        incoherence(matrix, 6)
    short = incoherences(torch.stack([matrix, matrix]), [3, 6], torch.tensor([9, 9]))
    assert all(values.isnan().all() for values in short.values()), "among many it is left out"


def test_a_models_tokens_are_measured_layer_by_layer_without_padding_and_the_model_is_left_as_it_was():
    config = LraConfig(vocab_size=20, hidden_size=16, max_position_embeddings=24, mixer_settings={"num_segments": 4})
    model = LraForSequenceClassification(config).eval()
    ids = torch.randint(1, 20, (3, 10))
    before = model(ids).logits
    alone = token_incoherence(model, [ids], (4,))
    padded = torch.cat([ids, torch.zeros(3, 9, dtype=torch.long)], 1)
    assert token_incoherence(model, [padded[:2], padded[2:]], (4,)) == pytest.approx(alone, rel=1e-4)
    names = [f"incoherence_{when}_4" for when in ("before", "after")]
    ends = ("", "_layer_1", "_layer_1_std", "_layer_2", "_layer_2_std")
    assert set(alone) == {name + end for name in names for end in ends}
    for name in names:
        assert 1 <= alone[name] == pytest.approx((alone[f"{name}_layer_1"] + alone[f"{name}_layer_2"]) / 2)
        each = [token_incoherence(model, [row], (4,))[f"{name}_layer_2"] for row in ids.split(1)]
        assert alone[f"{name}_layer_2_std"] == pytest.approx(torch.tensor(each).std(correction=0).item(), rel=1e-3)
    assert torch.equal(model(ids).logits, before)
    assert token_incoherence(model, [ids], (13,)) == {}, "no sequence has so many tokens"
