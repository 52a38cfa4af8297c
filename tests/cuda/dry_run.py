"""Models on fake CUDA tensors: no number is computed, but devices, dtypes and autocast are CUDA's, on any machine.

    LD_PRELOAD=guard.so python dry_run.py encoders|mixers    # prints a JSON record for each case

Not run on a GPU: it finds tensors on a wrong device, dtypes that CUDA refuses, and reads of device values, and counts launches.
"""

import itertools
import json
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import BertConfig, FNetConfig

from s3bert import (
    LraConfig,
    LraForSequenceClassification,
    PoNetConfig,
    PoNetForMaskedLM,
    S3BertConfig,
    S3BertForMaskedLM,
    S3ForecastConfig,
    S3ForecastModel,
)
from s3bert.models.mixers import MIXERS
from s3bert.models.sparse_baselines import SPARSE_BASELINES


BATCH, LENGTH, VARIABLES = 32, 512, 3
SIZES = dict(hidden_size=768, num_attention_heads=12, intermediate_size=3072, max_position_embeddings=LENGTH)
PRECISIONS = {  # dtype of autocast, and of weights
    "float32": (None, None),
    "bfloat16": (torch.bfloat16, None),
    "float16": (torch.float16, None),
    "bfloat16 weights": (None, torch.bfloat16),
}
# Operators that launch more than one kernel, about; views and empty tensors launch none.
_KERNELS = {
    "_fft_r2c": 2, "_fft_c2c": 2, "_fft_c2r": 3, "native_layer_norm_backward": 3, "convolution": 2,
    "convolution_backward": 5, "sort": 4,
}  # fmt: skip
_NOTHING = {"_unsafe_view", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}


class Watch(TorchDispatchMode):
    """Counts launches on the device and the host's waits for it; refuses what CUDA would and fake tensors let pass."""

    def __init__(self):
        super().__init__()
        self.launches, self.syncs = 0, []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        if operator.namespace == "prim":
            return operator(*args)
        name = operator._schema.name.removeprefix("aten::")
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        on_device = any(tensor.is_cuda for tensor in tensors)
        if on_device and name.startswith(("_fft_", "linalg_")):
            halves = {torch.float16, torch.bfloat16, torch.complex32} & {tensor.dtype for tensor in tensors}
            assert not halves, f"CUDA has no {name} of {halves}"
        if name == "_local_scalar_dense":
            self.syncs += [name] * on_device
            return tensors[0].dtype == torch.bool or 1
        result = operator(*args, **(kwargs or {}))
        results = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        devices = {tensor.device.type for tensor in (*tensors, *results) if tensor.dim()}
        assert len(devices) < 2 or name in ("_to_copy", "copy_"), f"{name} mixes devices"
        waits = name == "nonzero" or (name == "index" and any(t.dtype == torch.bool for t in tensors[1:]))
        if len(devices) > 1 or (waits and on_device):
            self.syncs.append(name)
        if "cuda" in devices and not operator.is_view and name not in _NOTHING:
            self.launches += _KERNELS.get(name, 1)
        return result


@contextmanager
def autocast(dtype: torch.dtype | None) -> Iterator[None]:
    """`torch.autocast("cuda", dtype)`, which itself turns itself off where there is no GPU."""
    torch.set_autocast_enabled("cuda", dtype is not None)
    torch.set_autocast_dtype("cuda", dtype or torch.bfloat16)
    torch.autocast_increment_nesting()
    try:
        yield
    finally:
        torch.autocast_decrement_nesting()
        torch.clear_autocast_cache()
        torch.set_autocast_enabled("cuda", False)


def on_cuda(model: nn.Module, dtype: torch.dtype | None) -> nn.Module:
    """Moved, and cast but for what the model keeps in float32."""
    kept = tuple(getattr(model, "_keep_in_fp32_modules_strict", None) or ())
    moved: dict[int, torch.Tensor] = {}  # tied ones stay tied
    for name, module in model.named_modules():
        for key, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is None:
                continue
            if id(tensor) not in moved:
                casts = dtype is not None and tensor.is_floating_point() and not any(p in f"{name}.{key}" for p in kept)
                new = torch.empty_like(tensor, dtype=dtype if casts else None, device="cuda", requires_grad=False)
                moved[id(tensor)] = nn.Parameter(new, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else new
            setattr(module, key, moved[id(tensor)])
    return model


def text(masked: bool) -> dict:
    ids = torch.zeros(BATCH, LENGTH, dtype=torch.long, device="cuda")
    mask = {"attention_mask": torch.ones_like(ids)} if masked else {}
    return {"input_ids": ids, "labels": torch.zeros_like(ids), "max_predictions": 2560} | mask


def classes(masked: bool) -> dict:
    batch = text(masked) | {"labels": torch.zeros(BATCH, dtype=torch.long, device="cuda")}
    return {name: value for name, value in batch.items() if name != "max_predictions"}


def series(masked: bool) -> dict:
    past, future = (torch.zeros(BATCH, steps, VARIABLES, device="cuda") for steps in (96, 24))
    return {"past_values": past, "future_values": future} | ({"past_observed_mask": past > 0} if masked else {})


def encoders() -> dict[str, tuple[Callable[[int], nn.Module], Callable[[bool], dict]]]:
    """By name: the model with so many layers, and its batch."""

    def s3bert(**own) -> Callable[[int], nn.Module]:
        return lambda layers: S3BertForMaskedLM(
            S3BertConfig(**SIZES, num_hidden_layers=layers, sparse_prediction=True, **own)
        )

    without_heads = {name: size for name, size in SIZES.items() if name != "num_attention_heads"}
    return {
        "s3bert": (s3bert(), text),
        "s3bert direct": (s3bert(implementation="direct"), text),
        "bert": (lambda n: SPARSE_BASELINES["bert"](BertConfig(**SIZES, num_hidden_layers=n)), text),
        "fnet": (lambda n: SPARSE_BASELINES["fnet"](FNetConfig(**without_heads, num_hidden_layers=n)), text),
        "ponet": (lambda n: PoNetForMaskedLM(PoNetConfig(**SIZES, num_hidden_layers=n, sparse_prediction=True)), text),
    }


def mixers() -> dict[str, tuple[Callable[[int], nn.Module], Callable[[bool], dict]]]:
    """The same, of the arena's encoder with each mixer, and of the forecaster."""

    def arena(mixer: str) -> Callable[[int], nn.Module]:
        return lambda layers: LraForSequenceClassification(LraConfig(**SIZES, num_hidden_layers=layers, mixer=mixer))

    def forecaster(layers: int) -> nn.Module:
        lengths = dict(context_length=96, prediction_length=24, num_input_channels=VARIABLES)
        return S3ForecastModel(S3ForecastConfig(**lengths, num_hidden_layers=layers))

    return {mixer: (arena(mixer), classes) for mixer in MIXERS} | {"forecaster": (forecaster, series)}


def step(model: nn.Module, batch: dict, dtype: torch.dtype | None) -> Watch:
    """What a forward sees under autocast, and in training the backward."""
    with Watch() as watch, torch.set_grad_enabled(model.training):
        with autocast(dtype):
            loss = model(**batch).loss
        if model.training:
            loss.backward()
    return watch


def main() -> None:
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)  # errors are told in the records
    for name, (build, make_batch) in {"encoders": encoders, "mixers": mixers}[sys.argv[1]]().items():
        masks = (False,) if name == "fnet" else (False, True)
        with FakeTensorMode():
            models = {dtype: on_cuda(build(1), dtype) for dtype in (None, torch.bfloat16)}
            deeper = on_cuda(build(2), None)
            for precision, training, masked in itertools.product(PRECISIONS, (True, False), masks):
                dtype, weights = PRECISIONS[precision]
                record = {"model": name, "precision": precision, "training": training, "masked": masked}
                try:
                    watch = step(models[weights].train(training), make_batch(masked), dtype)
                    record["syncs"] = watch.syncs
                    if precision == "bfloat16" and not masked:
                        two = step(deeper.train(training), make_batch(masked), dtype)
                        record["launches"] = two.launches - watch.launches
                except Exception as error:
                    record["error"] = f"{type(error).__name__}: {error}"
                print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
