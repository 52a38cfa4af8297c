"""Memory: what a step takes at its peak, and keeping or giving back what was freed."""

import ctypes
import gc
import sys
from collections.abc import Callable
from pathlib import Path

import torch


Step = Callable[[], None]


_CLEAR_REFERENCES = Path("/proc/self/clear_refs")


_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4  # mallopt's options, malloc.h


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
