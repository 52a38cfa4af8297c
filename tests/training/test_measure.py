"""FLOPs of a training step, and the peak they are measured against."""

from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertConfig, BertForMaskedLM

from s3bert import (
    S3BertConfig,
    S3BertForMaskedLM,
    S3BertForSequenceClassification,
    S3BertModel,
    S3ForecastConfig,
    S3ForecastModel,
)
from s3bert.training.flops import data_sheet_peak, peak_flops, training_flops


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


def test_counting_computes_nothing():
    model = S3BertForMaskedLM(S3BertConfig(**SIZES, max_position_embeddings=16))
    inputs = []
    model.s3bert.encoder.register_forward_pre_hook(lambda module, given: inputs.append(given[0]))
    training_flops(model, {"input_ids": torch.randint(0, 50, (2, 16)), "labels": torch.randint(0, 50, (2, 16))})
    assert [type(states) for states in inputs] == [FakeTensor]


@pytest.mark.parametrize("task", ["masked tokens", "classes", "series"])
def test_counted_without_values_are_the_flops_of_a_forward_on_a_cpu(task):
    ids = torch.randint(1, 50, (4, 64))
    mask = (torch.arange(64) < torch.tensor([[64], [9], [40], [64]])).long()
    if task == "series":
        model = S3ForecastModel(S3ForecastConfig(context_length=48, prediction_length=24, num_input_channels=2))
        batch = {"past_values": torch.randn(4, 48, 2), "future_values": torch.randn(4, 24, 2)}
    elif task == "classes":
        model = S3BertForSequenceClassification(S3BertConfig(**SIZES, max_position_embeddings=64))
        batch = {"input_ids": ids, "attention_mask": mask, "labels": torch.tensor([0, 1, 0, 1])}
    else:
        model = S3BertForMaskedLM(S3BertConfig(**SIZES, max_position_embeddings=64, sparse_prediction=True))
        batch = {"input_ids": ids, "labels": torch.where(ids < 9, ids, -100)}
    found = training_flops(model, batch)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model.train()(**batch)
    assert found == 3 * counter.get_total_flops() > 0


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


@pytest.mark.parametrize(
    ("name", "teraflops"),
    [
        ("NVIDIA L40", 181),
        ("NVIDIA L40S", 362),
        ("NVIDIA L4", 121),
        ("NVIDIA H100 80GB HBM3", 989.5),
        ("NVIDIA H100 NVL", 835.5),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H200", 989.5),
        ("NVIDIA H20", 148),
        ("NVIDIA B200", 2250),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA A10G", 70),
        ("NVIDIA GeForce RTX 4090", 165.2),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA GeForce RTX 4090 D", None),
        ("NVIDIA GB200", None),
        ("Tesla T4", None),
    ],
)
def test_a_gpus_peak_is_that_of_its_whole_name(name, teraflops):
    assert data_sheet_peak(name) == (teraflops and pytest.approx(teraflops * 1e12))


def test_a_gpu_that_is_not_known_is_timed_on_a_large_bf16_product(monkeypatch):
    asked = []

    def linspace(start, end, steps, device, dtype):
        asked.append((steps, dtype, device.type))
        return SimpleNamespace(view=lambda *shape: torch.ones(2, 4, 4))

    monkeypatch.setattr(torch, "linspace", linspace)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA X1")
    _, source = peak_flops(torch.device("cuda"))
    assert asked == [(2 * 8192**2, torch.bfloat16, "cuda")]
    assert source == "best of 5 bfloat16 products of 8192 x 8192 matrices"


@pytest.mark.gpu
def test_a_gpus_peak_comes_from_its_data_sheet_or_a_measurement():
    peak, source = peak_flops(torch.device("cuda"))
    assert peak > 1e12
    assert source
