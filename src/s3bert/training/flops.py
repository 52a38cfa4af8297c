"""Arithmetic: the FLOPs of a training step, and what a device could do."""

import copy
import time

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode


# Dense bf16 tensor-core peaks from NVIDIA's data sheets, FLOP/s, by a part of the device's name.
_BF16_PEAKS = {"H200": 989e12, "H100 PCIe": 756e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "L4": 121e12}


def training_flops(model: nn.Module, batch: dict[str, torch.Tensor]) -> float:
    """FLOPs of one training step on `batch`: three times the forward's (backward costs two), counted by operator.

    Matrix products, convolutions and attention kernels count, two FLOPs a multiply-add; FFTs and element-wise work do
    not. It is the arithmetic of the form that runs at this batch's shape: a form that needs less for the same outputs is
    faster at a lower MFU, so compare models by tokens per second. What activation checkpointing computes again does not
    count. The model is left as it was (a copy runs, because a forward in training mode updates BatchNorm).
    """
    twin = copy.deepcopy(model).train()
    with torch.no_grad(), torch.random.fork_rng(), FlopCounterMode(display=False) as counter:
        twin(**batch)
    return 3.0 * counter.get_total_flops()


def peak_flops(device: torch.device) -> tuple[float, str]:
    """FLOP/s the device could reach, and where the figure comes from: its data sheet (bf16, dense) or a large float32
    matrix product timed here and now."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        for part, peak in _BF16_PEAKS.items():
            if part in name:
                return peak, f"{name} data sheet, dense bf16"
    size, best = 1024, float("inf")
    left, right = torch.randn(2, size, size, device=device).unbind()
    for _ in range(5):
        start = time.perf_counter()
        product = left @ right
        product[0, 0].item()  # a host-device sync
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best, f"best of 5 float32 products of {size} x {size} matrices"
