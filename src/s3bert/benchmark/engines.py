"""What runs an encoder: PyTorch in the benchmark's dtype or in bfloat16, and ONNX Runtime in float32 or int8."""

import functools
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn

from s3bert.models.exporting import Tensors, export_program, onnx_runner, save_int8, save_onnx

from .encoder_size import EncoderSize
from .encoders import build_baseline


class OnnxEncoder(nn.Module):
    """An encoder in ONNX Runtime on the CPU, as `s3bert export` writes it; called as the model is, for inference alone.

    Args:
        model, size, length, seed: what it is built from. names: of its inputs. int8: whether its weights are.
    """

    def __init__(self, model: str, size: EncoderSize, length: int, seed: int, names: tuple[str, ...], int8: bool):
        super().__init__()
        with TemporaryDirectory() as folder:
            file = Path(folder, "model.onnx")
            file.write_bytes(_onnx_file(model, size, length, seed, names))
            if int8:
                save_int8(file, file)
            self.run = onnx_runner(file, torch.get_num_threads())

    def forward(self, **batch: torch.Tensor) -> Tensors:
        return self.run(**batch)


@functools.lru_cache(maxsize=1)  # float32 and int8 are of one export, which takes longer than they are measured for
def _onnx_file(model: str, size: EncoderSize, length: int, seed: int, names: tuple[str, ...]) -> bytes:
    torch.manual_seed(seed)
    program = export_program(build_baseline(model, size, length, exportable=True), length, names)
    with TemporaryDirectory() as folder:
        save_onnx(program, Path(folder, "model.onnx"))
        return Path(folder, "model.onnx").read_bytes()
