"""What is measured: arguments of commands, which import no torch."""

from dataclasses import dataclass
from typing import Literal, get_args

from s3bert.arguments import Arguments, close_match, option


# What runs an encoder, and in which precision.
ENGINES = {
    "torch": "PyTorch in the benchmark's dtype",
    "bf16": "PyTorch, weights and activations in bfloat16",
    "autocast": "PyTorch, float32 weights under autocast to bfloat16",
    "onnx": "ONNX Runtime on the CPU, float32, of the file that `s3bert export` writes",
    "int8": "ONNX Runtime on the CPU, weights and their products in int8, activations quantised in each call",
}


@dataclass
class BenchmarkConfig(Arguments):
    """Measurements: of what, on which batches and how often."""

    models: list[str] = option(
        help="names; a wrong one lists them. By default all encoders but lra-*, the mixers in Long Range Arena's",
        default_factory=list,
    )
    lengths: list[int] = option(least=1, help="tokens of a sequence", default_factory=lambda: [128, 512, 2048])
    modes: list[str] = option(
        help="inference: forward; training: forward and backward; training_step: with clipping and AdamW; generation: a "
        "language model's next token after so many",
        default_factory=lambda: ["inference", "training"],
    )
    engines: list[Literal["torch", "bf16", "autocast", "onnx", "int8"]] = option(
        help="what runs the models: torch in --dtype, torch in bf16 or under autocast to it, ONNX Runtime in float32 or int8",
        default_factory=lambda: ["torch"],
    )
    baseline: str = option(help="the model the others' speeds in the same engine are divided by", default="bert")
    tokens_per_batch: int = option(
        least=1, help="sequences of a batch times their length; one sequence at least", default=4096
    )
    batch_size: int | None = option(least=1, help="sequences of a batch at every length, instead", default=None)
    padding: float = option(
        least=0,
        below=1,
        help="share of padding in the batches, on the right of sequences of random lengths; 0: no mask at all",
        default=0.0,
    )
    device: str = option(help="cpu, cuda, ...", default="cpu")
    torch_compile: bool = option(help="compile the models", default=False)
    num_threads: int | None = option(least=1, help="threads on the CPU; torch's choice by default", default=None)
    rounds: int = option(least=1, help="timed calls of each model at each length, at least", default=10)
    min_seconds: float = option(least=0, help="timed seconds of each model at each length, at least", default=1.0)
    profile: bool = option(
        help="write profile-<model>.md: where the time of a step goes, at the first length", default=False
    )
    memory: bool = option(help="measure peak memory too, each in a process of its own", default=True)
    seed: int = option(least=0, below=2**32, help="of weights, batches and the order of the models", default=0)
    output_dir: str = option(help="folder of the results; a run goes on from what is there", default="runs/benchmark")

    def __post_init__(self):
        super().__post_init__()
        # Not at the top: these import torch, and `--help` has no need of it.
        from .encoders import BASELINES, ENCODERS
        from .measure import Mode

        self.models = self.models or list(ENCODERS)
        for name in (*self.models, self.baseline):
            if name not in BASELINES:
                raise ValueError(f"There is no model {name!r} to measure.{close_match(name, BASELINES)}")
        if "generation" in self.modes and (self.torch_compile or self.padding):
            raise ValueError(
                "generation is measured uncompiled and without padding: leave out --torch_compile and --padding."
            )
        for mode in self.modes:
            if mode not in get_args(Mode):
                raise ValueError(f"There is no mode {mode!r}.{close_match(mode, get_args(Mode))}")

    def batch_size_at(self, length: int) -> int:
        """Sequences in a batch of this length."""
        return self.batch_size or max(1, self.tokens_per_batch // length)
