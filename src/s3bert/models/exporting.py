"""A model of token ids as a program of its own: a `torch.export` program, an ONNX file, an ONNX file in int8; for any batch and length.

Its inputs are `input_ids` and, where the model takes them, `attention_mask` and `token_type_ids`: int64 (B, S), as a tokenizer gives
them. This module stays in the package, and imports the packages of the extra `export` where it needs them. B batch, S length.
"""

import inspect
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import torch
from torch import nn
from torch.export import Dim, ExportedProgram
from transformers import PreTrainedModel


Tensors = dict[str, torch.Tensor]

_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_EXAMPLE = (3, 9)  # sequences and tokens that a model is traced with; 0 and 1 would be taken for constants
# What is quantised: products with a weight, and embeddings. ONNX Runtime's int8 convolution takes longer than its float32 one.
_OPERATORS = ("MatMul", "Gemm", "Gather")


def require_onnx() -> None:
    """
    Raises:
        ModuleNotFoundError: a package of the extra `export` is not installed.
    """
    for package in ("onnx", "onnxruntime", "onnxscript"):
        import_module(package)


def input_names(model: PreTrainedModel) -> list[str]:
    """The inputs of the model's program.

    Raises:
        ValueError: a model of something else than token ids.
    """
    taken = inspect.signature(model.forward).parameters
    if "input_ids" not in taken:
        raise ValueError(f"{type(model).__name__} takes {next(iter(taken))}: only models of token ids are exported.")
    return [name for name in _INPUTS if name in taken]


def input_shape(model: PreTrainedModel, batch_size: int, length: int) -> tuple[int, ...]:
    """(B, S); (B, 3, S) for multiple choice, (B, 2, S) for a model of pairs."""
    if _of_choices(model):
        return batch_size, 3, length
    return (batch_size, 2, length) if getattr(model.config, "pair_inputs", False) else (batch_size, length)


def export_program(model: PreTrainedModel, longest: int, names: Sequence[str] | None = None) -> ExportedProgram:
    """The forward in evaluation, which returns a dict, for any number of sequences of up to `longest` tokens.

    Args:
        model: an S3BERT with `implementation="export"` gets no complex numbers.
        names: those of its inputs; all by default.
    """
    names = input_names(model) if names is None else names
    batch_size, length = _EXAMPLE
    shape = input_shape(model, batch_size, min(length, longest))
    sizes = {0: Dim("batch", min=1), len(shape) - 1: Dim("length", min=1, max=longest)}
    if _of_choices(model):
        sizes[1] = Dim("choices", min=1)
    inputs = {name: torch.ones(shape, dtype=torch.long) for name in names}
    plain = _PlainOutputs(model.eval())
    return torch.export.export(plain, (), inputs, dynamic_shapes=dict.fromkeys(inputs, sizes))


def save_onnx(program: ExportedProgram, file: Path) -> None:
    """Writes a program as ONNX, its outputs under the names of the model's; beyond 2 GB the weights lie in a file beside it.

    Raises:
        ValueError: an operation that ONNX does not have.
    """
    from onnx_ir.passes.common import ClearMetadataAndDocStringPass

    names = program.call_spec.out_spec.context
    with _quiet():
        try:
            written = torch.onnx.export(program, (), output_names=names, dynamo=True, verbose=False)
        except torch.onnx.OnnxExporterError as error:
            operation = re.search(r"op='([\w.]+)'", str(error))
            if operation is None:
                raise
            raise ValueError(
                f"The model computes {operation[1]}, which ONNX does not have: export it as pt2 alone."
            ) from error
        assert written is not None, "it is only where a file is named"
        ClearMetadataAndDocStringPass()(written.model)  # each node's stack trace, with this machine's paths
        written.save(file)


def save_int8(onnx_file: Path, file: Path) -> None:
    """Writes an ONNX file with int8 weights; what they are multiplied with is quantised as it comes, by its range in each call."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic  # type: ignore[import-untyped]

    model = onnx.load(onnx_file)
    del model.graph.value_info[:]  # inferred anew; those of weights that quantising transposes would be wrong
    with _quiet():
        quantize_dynamic(model, file, list(_OPERATORS), weight_type=QuantType.QInt8)


def onnx_runner(file: Path, num_threads: int) -> Callable[..., Tensors]:
    """A function that runs an ONNX file on the CPU; it is called as the model is, with keywords."""
    import onnxruntime  # type: ignore[import-untyped]

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = num_threads, 1
    # Else its threads spin on for a while after a call, and slow down what runs next.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def run(**inputs: torch.Tensor) -> Tensors:
        arrays = session.run(names, {name: tensor.numpy() for name, tensor in inputs.items()})
        return {name: torch.from_numpy(array) for name, array in zip(names, arrays)}

    return run


class _PlainOutputs(nn.Module):
    """A model that returns a dict, so that its program needs no class of Transformers."""

    def __init__(self, model: PreTrainedModel):
        super().__init__()
        self.model = model

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
    ) -> Tensors:
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
        return dict(self.model(**{name: tensor for name, tensor in inputs.items() if tensor is not None}))


def _of_choices(model: PreTrainedModel) -> bool:
    return type(model).__name__.endswith("ForMultipleChoice")


@contextmanager
def _quiet() -> Iterator[None]:
    """Within it exporters tell nothing of packages that are not needed and of preparations that change nothing."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
