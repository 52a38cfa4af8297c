"""Arithmetic: the FLOPs of a training step, and what a device could do."""

import inspect
import logging
import re
import time
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensorMode
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.flop_counter import FlopCounterMode


logger = logging.getLogger(__name__)

_TRIES = 5  # of a measured product

# Dense bf16 tensor-core peaks of NVIDIA's data sheets, FLOP/s, by words of the device's name; the first that fits counts.
_BF16_PEAKS = {
    "B200": 2250e12,
    "H200 NVL": 835.5e12,
    "H200": 989.5e12,
    "H100 NVL": 835.5e12,
    "H100 PCIe": 756e12,
    "H100": 989.5e12,
    "H20": 148e12,
    "A100": 312e12,
    "A10G": 70e12,
    "A10": 125e12,
    "L40S": 362e12,
    "L40": 181e12,
    "L4": 121e12,
    "RTX 4090": 165.2e12,
}


class _Affirm(TorchDispatchMode):
    """Answers whatever is asked about a fake tensor's values with yes."""

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        asked = operator is torch.ops.aten._local_scalar_dense.default
        return True if asked else operator(*args, **(kwargs or {}))


def training_flops(model: nn.Module, batch: dict[str, torch.Tensor]) -> float | None:
    """FLOPs of one training step on `batch`: three times the forward's (backward costs two), counted by operator.

    Matrix products, convolutions and attention kernels count, two FLOPs a multiply-add; FFTs and element-wise work do
    not. It is the arithmetic of the form that runs at this batch's shape: a form that needs less for the same outputs is
    faster at a lower MFU, so compare models by tokens per second. What activation checkpointing computes again does not
    count. Nothing is computed and the model stays as it is: its forward runs on fake tensors. To what a forward asks of their
    values the answer is yes: padding, where there is a mask, is on one side, and a series has no gaps. None where the number of operations
    depends on values, as an adaptive softmax's does.
    """
    inputs: dict[str, Any] = dict(batch)
    if "labels" in batch and takes_max_predictions(model):
        inputs["max_predictions"] = int((batch["labels"] != -100).sum())
    state, training = {**dict(model.named_parameters()), **dict(model.named_buffers())}, model.training
    model.train()
    with FakeTensorMode() as mode, _Affirm(), torch.no_grad(), FlopCounterMode(display=False) as counter:
        fakes, fake_inputs = (tree_map_only(torch.Tensor, mode.from_tensor, tensors) for tensors in (state, inputs))
        try:
            functional_call(model, fakes, kwargs=fake_inputs)
        except DynamicOutputShapeException:
            return None
        finally:
            model.train(training)
    return 3.0 * counter.get_total_flops()


def mfu_per_speed(model: nn.Module, batch: dict[str, torch.Tensor], tokens: int) -> float | None:
    """The share of its device's peak that a model needs for one token a second in training, all `tokens` of a batch counted: its shape
    decides what a model computes, and arithmetic on padding is nobody's token. None where `training_flops` cannot count."""
    flops = training_flops(model, batch)
    if flops is None:
        logger.info("How much this model computes depends on its input: there is no MFU.")
        return None
    peak, source = peak_flops(next(model.parameters()).device)
    logger.info("MFU is measured against %.3g FLOP/s a device: %s.", peak, source)
    return flops / tokens / peak


def takes_max_predictions(model: nn.Module) -> bool:
    """Whether it takes a bound of the labels of a batch, and need not count them on the device."""
    return "max_predictions" in inspect.signature(model.forward).parameters


def peak_flops(device: torch.device) -> tuple[float, str]:
    """FLOP/s the device could reach, and where the number comes from: its data sheet (bf16, dense), or a matrix product
    timed here and now, a large one in bf16 on an accelerator and a smaller one in float32 on a CPU."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        if (peak := data_sheet_peak(name)) is not None:
            return peak, f"{name} data sheet, dense bf16"
    size, dtype = (1024, torch.float32) if device.type == "cpu" else (8192, torch.bfloat16)
    flops = product_flops(device, size, dtype)
    return flops, f"best of {_TRIES} {str(dtype).removeprefix('torch.')} products of {size} x {size} matrices"


def product_flops(device: torch.device, size: int, dtype: torch.dtype) -> float:
    """FLOP/s of the fastest of a few products of two square matrices, here and now."""
    # Spread values, without a generator, whose state is left alone.
    left, right = torch.linspace(-1, 1, 2 * size**2, device=device, dtype=dtype).view(2, size, size).unbind()
    best = float("inf")
    for _ in range(_TRIES):
        start = time.perf_counter()
        product = left @ right
        if device.type != "cpu":
            product[0, 0].item()  # a host-device sync
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best


def data_sheet_peak(name: str) -> float | None:
    """Of a device by its name, whole words of it; None of one that is not known, as a laptop's, which is another chip."""
    if "Laptop" in name or re.search(r"4090 D\b", name):
        return None
    return next((peak for words, peak in _BF16_PEAKS.items() if re.search(rf"\b{words}\b", name)), None)
