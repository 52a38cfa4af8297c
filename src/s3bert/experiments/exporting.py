"""A model's folder as files for other runtimes, each compared with the model before any of them is kept."""

import logging
import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from transformers import AutoConfig, PreTrainedModel

import s3bert
from s3bert.files import reading, table
from s3bert.models.exporting import (
    Tensors,
    export_program,
    input_names,
    input_shape,
    onnx_runner,
    require_onnx,
    save_int8,
    save_onnx,
)
from s3bert.training.checkpoints import check_finite
from s3bert.training.finetuning import longest_input
from s3bert.training.pretrained import check_no_decoder


logger = logging.getLogger(__name__)

FILES = {"pt2": "model.pt2", "onnx": "model.onnx", "int8": "model-int8.onnx"}  # by format
# The relative error that an export may have, or, where that is more, so many times the model's own in float32.
_ALLOWED, _FACTOR = 1e-5, 3
_SEED = 0

Runner = Callable[..., Tensors]


@dataclass
class File:
    """A file with a model: its bytes, and the largest relative error of an output."""

    name: str
    size: int
    error: float


def export_folder(folder: Path, output_dir: Path, formats: Sequence[str], max_seq_length: int | None) -> list[File]:
    """Writes the files of some of `FILES` and returns them, behind the original; in float32, whatever the original's file is in.

    A relative error is |a - b| / |b| over an output, b of the original in float64. It is measured on random tokens in batches of one,
    a third of, and all of the longest length; where the model takes a mask, all sequences but the first are padded, on the right
    and on the left, and in our models one is nothing but padding.

    Raises:
        ValueError: no model is in the folder, or one that has no such export; a length beyond the model's; the file is there; an
            export that computes something else, or in int8 no numbers: nothing is kept.
        ModuleNotFoundError: the extra `export` is needed and not installed.
    """
    for name in formats:
        if (output_dir / FILES[name]).exists():
            raise ValueError(f"{output_dir / FILES[name]} exists: remove it, or name another --output_dir.")
    if {"onnx", "int8"} & {*formats}:
        require_onnx()
    load = _loader(folder)
    model = load()
    check_finite(model, str(folder))
    names, longest = input_names(model), _longest(model, max_seq_length)
    aside = output_dir / ".unfinished"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    try:
        runners = _write(model, load, aside, formats, longest)
        errors = _largest_errors(model, load().double(), runners, names, longest)
        _check(errors, folder)
        files = [File("model.safetensors", _bytes(_weights(folder)), max(errors["original"]))]
        for name in dict.fromkeys(formats):
            written = [*aside.glob(f"{FILES[name]}*")]
            files.append(File(FILES[name], _bytes(written), max(errors[name])))
            for file in written:
                file.rename(output_dir / file.name)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return files


def size_table(files: Sequence[File]) -> str:
    """Markdown: a line for each file."""
    rows = [[file.name, f"{file.size / 2**20:,.1f}", f"{file.error:.1e}"] for file in files]
    return table(["file", "MiB", "relative error"], rows)


def _weights(folder: Path) -> list[Path]:
    return sorted(folder.glob("model*.safetensors"))


def _bytes(files: Sequence[Path]) -> int:
    return sum(file.stat().st_size for file in files)


def _loader(folder: Path) -> Callable[..., PreTrainedModel]:
    """A function that loads the folder's model in float32, under the head that it was saved with; keywords change its configuration.

    Raises:
        ValueError: there is no model, one of an unknown class, or an encoder-decoder.
    """
    if not (folder / "config.json").is_file():
        raise ValueError(f"{folder} has no config.json: name the folder of a finished run.")
    if not _weights(folder):
        raise ValueError(f"{folder} has no model.safetensors: the run is not finished; name one of its checkpoints.")
    with reading(str(folder / "config.json")):
        config = AutoConfig.from_pretrained(folder)
        (name,) = config.architectures or ["None"]
    check_no_decoder(folder, config)
    model_class = getattr(s3bert, name, None) or getattr(transformers, name, None)
    if model_class is None:
        raise ValueError(f"{folder}: its config.json names a model {name}, which neither s3bert nor Transformers has.")

    def load(**fields: str) -> PreTrainedModel:
        with reading(f"The model {folder}"):
            model = model_class.from_pretrained(folder, dtype="float32", **fields).eval()
        model.config.use_cache = False  # a program returns no cache of a language model
        return model

    return load


def _longest(model: PreTrainedModel, asked: int | None) -> int:
    own = longest_input(model.config)
    longest = asked or (own if own < math.inf else getattr(model.config, "max_position_embeddings", None))
    if longest is None:
        raise ValueError(f"{type(model).__name__} does not say how long its sequences may be: give --max_seq_length.")
    if longest > own:
        raise ValueError(
            f"max_seq_length = {asked}: the model takes up to {own} tokens. Give at most that, or lengthen it first (S3BERT: "
            "resize_position_embeddings)."
        )
    return int(longest)


def _write(
    model: PreTrainedModel, load: Callable[..., PreTrainedModel], aside: Path, formats: Sequence[str], longest: int
) -> dict[str, Runner]:
    """Writes the files of the formats, and returns what runs each."""
    if hasattr(model.config, "implementation"):
        model = load(implementation="export")
    logger.info("Tracing %s for up to %s tokens.", type(model).__name__, f"{longest:,}")
    program = export_program(model, longest)
    runners: dict[str, Runner] = {}
    if "pt2" in formats:
        torch.export.save(program, aside / FILES["pt2"])
        runners["pt2"] = torch.export.load(aside / FILES["pt2"]).module()
    if {"onnx", "int8"} & {*formats}:
        logger.info("Translating it to ONNX; a model of many layers takes minutes.")
        save_onnx(program, aside / FILES["onnx"])
    if "int8" in formats:
        save_int8(aside / FILES["onnx"], aside / FILES["int8"])
    return runners | {
        name: onnx_runner(aside / FILES[name], torch.get_num_threads()) for name in formats if name != "pt2"
    }


@torch.no_grad()
def _largest_errors(
    model: PreTrainedModel, exact: PreTrainedModel, runners: dict[str, Runner], names: Sequence[str], longest: int
) -> dict[str, list[float]]:
    """Relative errors of the original in float32 and of each format, the largest of an output for each batch."""
    runners = {"original": lambda **inputs: dict(model(**inputs)), **runners}
    errors: dict[str, list[float]] = {name: [] for name in runners}
    for batch in _batches(model, names, longest):
        expected = exact(**batch)
        for name, run in runners.items():
            outputs = run(**batch)
            found = [float((outputs[key] - value).norm() / value.norm()) for key, value in expected.items()]
            errors[name].append(max(found))
    return errors


def _batches(model: PreTrainedModel, names: Sequence[str], longest: int) -> Iterator[Tensors]:
    generator = torch.Generator().manual_seed(_SEED)
    for batch_size, length in ((3, 1), (2, longest // 3 + 1), (2, longest)):
        shape = input_shape(model, batch_size, length)
        values = {"input_ids": model.config.vocab_size, "token_type_ids": getattr(model.config, "type_vocab_size", 1)}
        inputs = {name: torch.randint(values[name], shape, generator=generator) for name in names if name in values}
        if "attention_mask" not in names:
            yield inputs
            continue
        lengths = torch.randint(1, length + 1, (*shape[:-1], 1), generator=generator)
        lengths[0] = length
        mask = (torch.arange(length) < lengths).long()
        masks = [mask, mask.flip(-1)]
        if type(model).__module__.startswith("s3bert."):  # for others an empty sequence has no defined output
            masks.append(mask.clone())
            masks[-1][0] = 0
        for padded in masks:
            yield inputs | {"attention_mask": padded}


def _check(errors: dict[str, list[float]], folder: Path) -> None:
    # Of the model's own errors the largest counts: in a batch of few numbers rounding may cancel by chance.
    own = max(errors["original"])
    for name in errors.keys() - {"original"}:
        allowed = math.inf if name == "int8" else max(_ALLOWED, _FACTOR * own)
        for error in errors[name]:
            if not error < allowed:  # nor is NaN
                raise ValueError(
                    f"{FILES[name]} does not compute what {folder} does: an output has a relative error of {error:.1e}, and the "
                    f"model in float32 one of {own:.1e}. Nothing was kept; give other --formats."
                )
