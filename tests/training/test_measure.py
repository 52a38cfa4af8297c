"""FLOPs of a training step, and the peak they are measured against."""

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM

from s3bert import S3BertConfig, S3BertForMaskedLM, S3BertModel
from s3bert.training.flops import peak_flops, training_flops


SIZES = dict(vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)


def test_berts_flops_are_three_forwards_of_its_matrix_products():
    batch, length, hidden = 3, 16, 32
    model = BertForMaskedLM(BertConfig(**SIZES, max_position_embeddings=length))
    inputs = {"input_ids": torch.randint(0, 50, (batch, length)), "labels": torch.randint(0, 50, (batch, length))}
    layer = 4 * hidden**2 + 2 * hidden * 64 + 2 * length * hidden  # multiply-adds a token
    head = hidden**2 + hidden * 50
    assert training_flops(model, inputs) == 3 * 2 * batch * length * (2 * layer + head)


def test_counting_leaves_weights_statistics_and_generators_alone():
    model = S3BertForMaskedLM(S3BertConfig(**SIZES, max_position_embeddings=16, sparse_prediction=True))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    inputs = torch.randint(0, 50, (2, 16))
    labels = torch.full((2, 16), -100)
    labels[:, 3] = 7
    state = torch.get_rng_state()
    sparse = training_flops(model, {"input_ids": inputs, "labels": labels})
    dense = training_flops(model, {"input_ids": inputs, "labels": labels.clamp(min=0)})
    assert sparse < dense, "the decoder runs on labelled positions only"
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)


def test_what_is_counted_is_the_arithmetic_of_the_implementation_that_runs():
    inputs = {"input_ids": torch.randint(0, 50, (8, 64))}
    flops = []
    for implementation in ("direct", "auto"):
        own = dict(implementation=implementation, num_row_samples=2, num_column_samples=2)
        flops.append(training_flops(S3BertModel(S3BertConfig(**SIZES, max_position_embeddings=64, **own)), inputs))
    assert flops[0] > 1.5 * flops[1], "auto folds the stem and mixes landmarks alone"


def test_a_cpus_peak_is_timed_and_says_so():
    peak, source = peak_flops(torch.device("cpu"))
    assert 1e8 < peak < 1e14
    assert source.startswith("best of 5 float32 products")


@pytest.mark.gpu
def test_a_gpus_peak_comes_from_its_data_sheet_or_a_measurement():
    peak, source = peak_flops(torch.device("cuda"))
    assert peak > 1e12
    assert source
