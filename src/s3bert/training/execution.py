"""How a model runs on its device: precision, compilation, sharding, the same bits every time."""

import contextlib
import functools
import logging
import os
from collections.abc import Iterator

import torch
from accelerate import Accelerator
from torch import nn
from torch.distributed.fsdp import fully_shard

from .flops import product_flops


logger = logging.getLogger(__name__)


@contextlib.contextmanager
def deterministic_algorithms() -> Iterator[None]:
    """Within it torch takes only algorithms whose results have the same bits every time.

    Raises:
        RuntimeError: by torch, where an operation has none; its message names the operation.
    """
    cudnn, mode = torch.backends.cudnn, torch.get_deterministic_debug_mode()
    before = cudnn.deterministic, cudnn.benchmark
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it once, so it stays
    torch.use_deterministic_algorithms(True)
    cudnn.deterministic, cudnn.benchmark = True, False
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        cudnn.deterministic, cudnn.benchmark = before


def compile_in_place(model: nn.Module, device: torch.device, dynamic: bool | None = None) -> None:
    """Compiles in place, with room for a graph for each length of FFT, with and without a mask, in training and evaluation.

    Beyond its limit, 8 by default, torch runs what is new uncompiled. On a CPU dropout is drawn by torch's own generator, as
    uncompiled: the compiler's makes a training step slower than that. The stem's convolution keeps its channels last, as on a CPU: on
    a GPU the compiler turns a graph of 300 operators per convolution to channels first, which copies what the stem reads.

    Args:
        dynamic: torch's; by default a dimension that changes once is taken for one that changes.
    """
    torch._dynamo.config.recompile_limit = max(64, torch._dynamo.config.recompile_limit)
    torch._inductor.config.fallback_random = device.type == "cpu"
    torch._inductor.config.force_layout_optimization = True
    model.compile(dynamic=dynamic)


def shard(model: nn.Module, accelerator: Accelerator) -> nn.Module:
    """FSDP2 in place: each class of `_no_split_modules` in a group of its own and the rest in one, in float32 under autocast.

    `Accelerator.prepare` of accelerate 1.15 cannot train a masked-LM head, Transformers' own included: it puts the decoder and the
    bias that it shares with the head into two groups. Torch refuses the first forward ("Parameter 'cls.predictions.decoder.bias'
    is shared with a parameter already managed by another FSDP group"), and the optimiser knows one of the two biases alone. It
    would also cast to bf16 what S3 keeps in float32.
    """
    plugin = accelerator.state.fsdp_plugin
    settings = {"reshard_after_forward": plugin.reshard_after_forward, "offload_policy": plugin.cpu_offload}
    whole = getattr(model, "_no_split_modules", None) or ()
    for module in (*(module for module in model.modules() if type(module).__name__ in whole), model):
        fully_shard(module, **settings)
    model.forward = accelerator.autocast()(model.forward)
    return model


def mixed_precision(asked: str | None, device: torch.device) -> str | None:
    """What accelerate is told: "auto" is bf16 on a device that gains from it, and accelerate's own configuration elsewhere."""
    if asked != "auto":
        return asked
    return "bf16" if computes_in_bf16(device) else None


def computes_in_bf16(device: torch.device) -> bool:
    """Whether a GPU multiplies in bfloat16, or a processor faster than in float32."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device.type == "cpu" and _processor_gains_from_bf16()


@functools.cache  # one answer for all trials of a process
def _processor_gains_from_bf16() -> bool:
    """By its AVX-512 or AMX, if a product takes less time: an Intel Xeon that has AVX-512 alone takes twice float32's."""
    if not (torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()):
        return False  # emulated, slowly
    cpu, size = torch.device("cpu"), 512
    return product_flops(cpu, size, torch.bfloat16) > product_flops(cpu, size, torch.float32)


@functools.cache  # once, however many trials a process trains
def advise_bf16() -> None:
    """Says that training could be faster."""
    logger.info("This device multiplies faster in bfloat16 than in float32: --mixed_precision auto trains in it.")


def use_tensor_cores(device: torch.device) -> None:
    """What stays in float32 on a GPU is multiplied in TF32: ten bits of mantissa, summed in float32."""
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
