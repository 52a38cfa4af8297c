"""What a step of a given model costs: arithmetic (and how much the device could do), seconds, peak memory."""

import copy
import ctypes
import gc
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode


Mode = Literal["inference", "training", "training_step"]
Step = Callable[[], None]

# Dense bf16 tensor-core peaks from NVIDIA's data sheets, FLOP/s, by a part of the device's name.
_BF16_PEAKS = {"H200": 989e12, "H100 PCIe": 756e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "L4": 121e12}
_SPAN = 0.02  # seconds that one timing lasts at least
_CLEAR_REFERENCES = Path("/proc/self/clear_refs")
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4  # mallopt's options, malloc.h


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
        product[0, 0].item()  # waits for the device
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best, f"best of 5 float32 products of {size} x {size} matrices"


def make_step(model: nn.Module, batch: dict[str, torch.Tensor], mode: Mode) -> Step:
    """One step of an encoder on `batch`, as a function to call again and again.

    Args:
        model: returns `last_hidden_state` (B, S, H); left in the state of training or evaluation that the mode needs.
        mode: "inference" is a forward without gradients; "training" a forward and the backward of a random weighted sum
            of the last hidden states; "training_step" also clips the gradients and takes a step of fused AdamW.
    """
    if mode == "inference":
        model.eval()

        @torch.no_grad()
        def infer():
            model(**batch)

        return infer

    model.train()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    direction = None
    optimizer = torch.optim.AdamW(parameters, lr=1e-6, fused=True) if mode == "training_step" else None

    def train():
        nonlocal direction
        states = model(**batch).last_hidden_state
        if direction is None:  # the same for every step; a constant one has no gradient under a LayerNorm
            direction = torch.randn_like(states) / states.numel() ** 0.5
        states.backward(direction)
        if optimizer is not None:
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
        for parameter in parameters:
            parameter.grad = None

    return train


def interleaved_seconds(
    steps: dict[str, Step], device: torch.device, rounds: int, min_seconds: float, seed: int = 0
) -> dict[str, list[float]]:
    """Wall-clock seconds of a call of each step in every round, the steps in a random order each round.

    What disturbs the machine for longer than a round disturbs all alike, so the steps compare round by round. There are at
    least `rounds` rounds, and so many that each step ran for `min_seconds` in all; a step that takes less than 20 ms is
    called several times in a row and the mean counts. Call each step before: a first call loads, compiles, allocates.
    """

    def seconds_of(name: str, calls: int) -> float:
        synchronize(device)
        start = time.perf_counter()
        for _ in range(calls):
            steps[name]()
        synchronize(device)
        return time.perf_counter() - start

    order, generator = list(steps), random.Random(seed)
    calls = {name: max(1, round(_SPAN / min(seconds_of(name, 1) for _ in range(2)))) for name in steps}
    spans = {name: [] for name in steps}
    gc.collect()
    gc.freeze()  # so that a collection before each round looks at what the rounds left, not at all that is loaded
    gc.disable()
    try:
        while len(spans[order[0]]) < rounds or min(map(sum, spans.values())) < min_seconds:
            generator.shuffle(order)
            gc.collect()
            for name in order:
                spans[name].append(seconds_of(name, calls[name]))
    finally:
        gc.enable()
        gc.unfreeze()
    return {name: [span / calls[name] for span in spans[name]] for name in steps}


def synchronize(device: torch.device) -> None:
    """Waits for the work queued on an accelerator."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def keep_freed_memory() -> None:
    """Lets glibc keep what is freed for the next allocation, for the rest of the process: on a CPU fresh pages for every tensor
    cost a quarter of a training step's time, and are most of the noise in it. The peak grows by 10 to 30%."""
    _set_malloc({_MMAP_MAX: 0, _TRIM_THRESHOLD: 2**31 - 1})


def release_memory() -> None:
    """Gives back to the system and to other processes what was freed, on the CPU and on the GPU."""
    gc.collect()
    if trim := _libc("malloc_trim"):
        trim(0)
    torch.cuda.empty_cache()  # nothing where there is no GPU


def peak_memory(step: Step, device: torch.device) -> tuple[int, str]:
    """Bytes that one call of `step` takes at its peak above what is allocated before, and how they were measured.

    For one figure per process: what earlier work left behind would be used again and not be seen. The step runs once
    before, so kernels, their scratch memory and an optimiser's state are not counted.

    Raises:
        ValueError: an accelerator whose allocator does not tell.
    """
    if device.type == "cuda":
        step()
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        step()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before, "by torch's allocator"
    if device.type != "cpu":
        raise ValueError(f"peak memory is measured on cpu and cuda, not on {device.type}")
    try:
        _CLEAR_REFERENCES.write_text("5")  # forgets the peak so far
    except OSError:
        return _growth(step), "growth of the process's largest resident size, without /proc a lower bound"
    _set_malloc({_MMAP_MAX: 2**16, _MMAP_THRESHOLD: 2**14, _TRIM_THRESHOLD: 0})  # so that what is freed goes back
    step()
    release_memory()
    before = _status_bytes("VmRSS")
    _CLEAR_REFERENCES.write_text("5")
    step()
    return _status_bytes("VmHWM") - before, "resident memory"


def _growth(step: Step) -> int:
    import resource  # not on Windows

    unit = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes, others kilobytes
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    step()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * unit


def _status_bytes(entry: str) -> int:
    """An entry of /proc/self/status, which counts in kB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(entry)).split()[1]) * 1024


def _set_malloc(options: dict[int, int]) -> None:
    if mallopt := _libc("mallopt"):
        for option, value in options.items():
            mallopt(option, value)


def _libc(name: str) -> Callable | None:
    """A function of glibc; None on other systems."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
