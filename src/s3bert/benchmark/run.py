"""Speed and peak memory of models side by side, over lengths and modes; every finished measurement is kept on disk.

A measurement is one model at one length in one mode by one engine. The speeds of a length and mode are measured together, round by round in one
process; each memory figure comes from a process of its own. `results.json` is rewritten after each, so a run that was
stopped goes on with the measurements that are missing, and more models, lengths and modes asked for later are just more measurements.
"""

import logging
import signal
import sys
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_all_start_methods, get_context
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from tqdm import tqdm

from s3bert.models.exporting import require_onnx
from s3bert.training.execution import compile_in_place
from s3bert.training.memory import keep_freed_memory, peak_memory, release_memory

from .arguments import BenchmarkConfig
from .encoder_size import EncoderSize
from .encoders import BASELINES, LANGUAGE_MODELS, UnsuitableError, build_baseline
from .engines import OnnxEncoder
from .measure import GenerationStep, Mode, interleaved_seconds, make_step
from .profiling import profile_step
from .results import Record, SpeedResults


logger = logging.getLogger(__name__)

OUT_OF_MEMORY = "out of memory"
# What may be asked for in another call on the same folder.
_FREE = {"models", "engines", "lengths", "modes", "memory", "profile", "output_dir"}


@dataclass(frozen=True)
class Measurement:
    """One model at one length in one mode by one engine, with all that decides its figure; it travels to the process that measures."""

    model: str
    length: int
    mode: Mode
    size: EncoderSize
    config: BenchmarkConfig
    engine: str = "torch"

    @property
    def key(self) -> tuple[str, int, Mode, str]:
        """Model, length, mode, engine."""
        return self.model, self.length, self.mode, self.engine

    def record(self, **figures: Any) -> Record:
        """An entry of `results.json`."""
        batch_size = self.config.batch_size_at(self.length)
        names = dict(zip(("model", "length", "mode", "engine"), self.key))
        return {**names, "batch_size": batch_size, **figures}

    def build(self) -> nn.Module:
        """A new model on the device.

        Raises:
            UnsuitableError: see `build_baseline`; an encoder in generation; ONNX Runtime in training, or on an accelerator.
        """
        if self.mode == "generation" and self.model not in LANGUAGE_MODELS:
            raise UnsuitableError("an encoder, which does not generate")
        if self.engine in ("onnx", "int8"):
            if self.model in LANGUAGE_MODELS:
                raise UnsuitableError("ONNX Runtime is measured with encoders")
            if self.mode != "inference":
                raise UnsuitableError("ONNX Runtime does not train")
            if self.config.device != "cpu":
                raise UnsuitableError("ONNX Runtime is measured on the CPU")
            names, seed = tuple(self.batch()), self.config.seed
            return OnnxEncoder(self.model, self.size, self.length, seed, names, int8=self.engine == "int8")
        torch.manual_seed(self.config.seed)
        size = replace(self.size, dtype="bfloat16") if self.engine == "bf16" else self.size
        model = build_baseline(self.model, size, self.length, self.config.device)
        if self.mode == "inference" and hasattr(model, "fold_filters"):  # S3BERT's preparation for inference
            model.eval().fold_filters(self.length)
        if self.engine == "autocast":
            model.forward = torch.autocast(torch.device(self.config.device).type, torch.bfloat16)(model.forward)
        if self.config.torch_compile:
            compile_in_place(model, torch.device(self.config.device), dynamic=False)
        return model

    def batch(self) -> dict[str, torch.Tensor]:
        """Random `input_ids` (B, S) and, with padding, their `attention_mask`; id 0 is the padding's.

        The sequences' lengths lie evenly around the mean that leaves the share `padding` of the batch unused.
        """
        batch_size, padding = self.config.batch_size_at(self.length), self.config.padding
        generator = torch.Generator().manual_seed(self.config.seed)
        ids = torch.randint(5, self.size.vocab_size, (batch_size, self.length), generator=generator)
        batch = {"input_ids": ids}
        if padding:
            mean = (1 - padding) * self.length
            reach = min(self.length - mean, mean - 1)
            places = (2 * torch.randperm(batch_size, generator=generator) + 1) / batch_size - 1  # evenly in -1..1
            mask = torch.arange(self.length) < (mean + reach * places).round()[:, None]
            batch = {"input_ids": ids * mask, "attention_mask": mask.long()}
        return {name: tensor.to(self.config.device) for name, tensor in batch.items()}


def run_benchmark(size: EncoderSize, config: BenchmarkConfig) -> Record:
    """Measures the measurements that `results.json` in the output folder lacks, and returns its content.

    Raises:
        ValueError: there is no such device; the folder's figures were measured with other settings or on another machine.
    """
    _check_device(config.device)
    if {"onnx", "int8"} & {*config.engines}:
        require_onnx()
    _set_up_process(config)
    keep_freed_memory()
    settings = {name: value for name, value in (asdict(size) | asdict(config)).items() if name not in _FREE}
    results = SpeedResults(Path(config.output_dir) / "results.json", settings, config.device)
    results.content["notes"] |= {model: note for model in config.models if (note := BASELINES[model].note)}
    groups = [
        [
            Measurement(model, length, mode, size, config, engine)
            for model in dict.fromkeys(config.models)
            for engine in dict.fromkeys(config.engines)
        ]
        for length in config.lengths
        for mode in config.modes
    ]
    with tqdm(total=sum(map(len, groups)) * (2 if config.memory else 1), unit="measurement") as bar:
        for measurements in groups:
            bar.set_description(f"speed, {measurements[0].mode} at {measurements[0].length}")
            if missing := [measurement for measurement in measurements if not results.find("speed", *measurement.key)]:
                results.add("speed", measure_speeds(missing))
                release_memory()
            bar.update(len(measurements))
        for measurement in (measurement for measurements in groups for measurement in measurements if config.memory):
            bar.set_description(
                f"memory, {measurement.mode} at {measurement.length}, {measurement.model} by {measurement.engine}"
            )
            if not results.find("memory", *measurement.key):
                empty = results.find("speed", *measurement.key).get("empty", OUT_OF_MEMORY)
                results.add(
                    "memory",
                    [measure_memory(measurement) if empty == OUT_OF_MEMORY else measurement.record(empty=empty)],
                )
            bar.update()
    return results.content


def measure_speeds(measurements: list[Measurement]) -> list[Record]:
    """Times measurements of one length and mode side by side, and the baseline's in the same engines beside them.

    A record has the `seconds` of each round and, where the baseline runs, `relative`, the baseline's seconds over its
    own in each round; or `empty`, why there are none.
    """
    config = measurements[0].config
    baselines = {m.engine: replace(m, model=config.baseline) for m in measurements}
    if config.torch_compile:
        torch.compiler.reset()  # what was compiled for other lengths
    steps, empty = {}, {}
    for measurement in {measurement.key: measurement for measurement in (*baselines.values(), *measurements)}.values():
        try:
            step = make_step(measurement.build(), measurement.batch(), measurement.mode)
            step()
            steps[measurement.key] = step
        except Exception as error:  # of whatever kind: the other models go on
            empty[measurement.key] = _reason(error)
            if not isinstance(error, UnsuitableError):
                logger.warning("%s at %d, %s by %s: %s", *measurement.key, empty[measurement.key])
    if not steps:
        return [measurement.record(empty=empty[measurement.key]) for measurement in measurements]
    seconds = interleaved_seconds(steps, torch.device(config.device), config.rounds, config.min_seconds, config.seed)
    records = []
    for measurement in measurements:
        if measurement.key in empty:
            records.append(measurement.record(empty=empty[measurement.key]))
            continue
        own = seconds[measurement.key]
        relative = [other / mine for other, mine in zip(seconds.get(baselines[measurement.engine].key, []), own)]
        records.append(measurement.record(seconds=own, relative=relative))
    return records


def measure_memory(measurement: Measurement) -> Record:
    """Peak memory of a step, in a process of its own: a record with `peak_bytes`, or `empty`, why there is none.

    In generation the cache, `cache_bytes`, is part of the peak.
    """
    context = _fresh_processes()
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send_memory, args=(measurement, sender))
    process.start()
    sender.close()
    try:
        record = receiver.recv()
    except EOFError:  # it ended without a word; where memory runs out the kernel kills
        process.join()
        killed = process.exitcode == -signal.SIGKILL
        record = measurement.record(
            empty=OUT_OF_MEMORY if killed else f"its process ended with status {process.exitcode}"
        )
    process.join()
    return record


def _fresh_processes() -> BaseContext:
    """Starts processes that have imported what they need and done nothing; by a fork server seconds sooner."""
    if "forkserver" not in get_all_start_methods():
        return get_context("spawn")
    context = get_context("forkserver")
    context.set_forkserver_preload([name for name in sys.modules if name.startswith(f"{__package__}.")])
    return context


def _send_memory(measurement: Measurement, sender: Connection) -> None:
    _set_up_process(measurement.config)
    try:
        if measurement.engine in ("onnx", "int8"):
            raise UnsuitableError("ONNX Runtime keeps its memory from call to call")
        model = measurement.build()
        step = make_step(model, measurement.batch(), measurement.mode)
        peak, measured = peak_memory(step, torch.device(measurement.config.device))
    except Exception as error:
        sender.send(measurement.record(empty=_reason(error)))
        return
    model_bytes = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    figures = {"peak_bytes": peak, "model_bytes": model_bytes, "measured": measured}
    if isinstance(step, GenerationStep):
        figures["cache_bytes"] = step.cache_bytes()
        figures["peak_bytes"] += figures["cache_bytes"]
    sender.send(measurement.record(**figures))


def profile_model(model: str, size: EncoderSize, config: BenchmarkConfig) -> str:
    """Markdown: where the time of a step goes, at the first length, in each mode; never compiled.

    Raises:
        UnsuitableError: see `build_baseline`.
    """
    _set_up_process(config)
    length, device = config.lengths[0], torch.device(config.device)
    sections = [f"# {model} at {length} tokens, {config.batch_size_at(length)} sequences a batch\n"]
    for mode in config.modes:
        measurement = Measurement(model, length, mode, size, replace(config, torch_compile=False))
        encoder = measurement.build()
        sections.append(f"## {mode}\n\n{profile_step(encoder, make_step(encoder, measurement.batch(), mode), device)}")
    return "\n".join(sections)


def _reason(error: Exception) -> str:
    """Why a measurement is empty, in one line."""
    if isinstance(error, UnsuitableError):
        return str(error)
    text = str(error).strip().partition("\n")[0]
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate memory" in text:
        return OUT_OF_MEMORY
    return f"{type(error).__name__}: {text}"


def _check_device(name: str) -> None:
    try:
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        there = "cpu" if accelerator is None else f"cpu, {accelerator.type}"
        raise ValueError(f"There is no device {name!r} here. There is: {there}.") from error


def _set_up_process(config: BenchmarkConfig) -> None:
    transformers.logging.set_verbosity_error()  # BigBird tells of its full attention again and again
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    if config.torch_compile:
        # Dynamo counts all models as one function.
        torch._dynamo.config.fail_on_recompile_limit_hit = True
