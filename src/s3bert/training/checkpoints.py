"""Checkpoint folders that are atomic: written aside, sealed with a manifest, renamed, verified on resume.

A checkpoint is `checkpoint-N/`, N optimiser steps: a model folder as `from_pretrained` takes it, the optimiser's tensors
in `optimizer.safetensors`, everything else the run needs in `training_state.json`, and `manifest.json` with the size and
checksum of each file. No pickles. Nothing in it depends on the number of processes.
"""

import errno
import json
import logging
import os
import re
import shutil
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from s3bert.files import replacing


logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"
OPTIMIZER = "optimizer.safetensors"
STATE = "training_state.json"
WEIGHTS = "model.safetensors"
_PUBLISHED = ("README.md", "config.json", "tokenizer.json", WEIGHTS)


@contextmanager
def written_aside(folder: Path) -> Iterator[Path]:
    """Gives a temporary folder beside `folder` to write into, and renames it to `folder` when the block succeeds.

    Raises:
        OSError: the block could not write, for instance on a full disk; `folder` and all beside it are as before.
    """
    aside = folder.with_name(f".{folder.name}.unfinished")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        aside.mkdir(parents=True)
        yield aside
        _seal(aside)
        if folder.exists():  # an earlier checkpoint of the same step, kept until the new one is complete
            shutil.rmtree(folder)
        aside.rename(folder)
        _flush_to_disk(folder.parent)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise OSError(
            f"Could not write {folder}: {error}. {_remedy(error)}, then resume with --resume_from_checkpoint latest; "
            f"earlier checkpoints are whole: {', '.join(f.name for f in all_checkpoints(folder.parent)) or 'none yet'}."
        ) from error
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def _remedy(error: Exception) -> str:
    """What to do about a file that could not be written; safetensors does not say why, but for the disk."""
    full = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
    return "Mend that" if isinstance(error, OSError) and error.errno not in full else "Free some space"


def _seal(folder: Path) -> None:
    """Writes the manifest and flushes every file to the disk."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    entries = {str(path.relative_to(folder)): {"bytes": path.stat().st_size, "crc32": _crc32(path)} for path in files}
    (folder / MANIFEST).write_text(json.dumps({"files": entries}, indent=1))
    for path in (*files, folder / MANIFEST, folder):
        _flush_to_disk(path)


def _flush_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _crc32(path: Path) -> int:
    checksum = 0
    with path.open("rb") as file:
        while chunk := file.read(1 << 22):
            checksum = zlib.crc32(chunk, checksum)
    return checksum


def validate_checkpoint(folder: Path) -> str | None:
    """What is wrong with a checkpoint folder, or None when it is whole; whatever the damage, a sentence and no exception."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return f"{MANIFEST} is missing"
    except (ValueError, RecursionError, OSError) as error:
        return f"{MANIFEST} cannot be read ({error})"
    files = manifest.get("files") if isinstance(manifest, dict) else None
    if not isinstance(files, dict):
        return f"{MANIFEST} holds no list of files"
    if absent := [name for name in (WEIGHTS, OPTIMIZER, STATE) if name not in files]:
        return f"{MANIFEST} does not list {', '.join(absent)}"
    for name, entry in files.items():
        size, checksum = (entry.get("bytes"), entry.get("crc32")) if isinstance(entry, dict) else (None, None)
        if type(size) is not int or type(checksum) is not int:
            return f"{MANIFEST} holds no size and checksum of {name}"
        try:
            found = (folder / name).stat().st_size
            if found != size:
                return f"{name} has {found:,} bytes instead of {size:,}"
            if _crc32(folder / name) != checksum:
                return f"{name} does not match its checksum"
        except FileNotFoundError:
            return f"{name} is missing"
        except (ValueError, OSError) as error:  # of a name that no file can have, or of the disk
            return f"{name!r} cannot be read ({error})"
    return None


def all_checkpoints(output_dir: Path) -> list[Path]:
    """The checkpoint folders of a run, whole or not, by rising step."""
    found = [path for path in output_dir.glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", path.name)]
    return sorted(found, key=lambda path: int(path.name.split("-")[1]))


def find_checkpoint(output_dir: Path, which: str) -> Path | None:
    """The checkpoint to resume from: `which` is "latest" (None when the run has none yet) or a folder.

    A damaged folder is named in a warning, and "latest" goes on to the one before it.

    Raises:
        ValueError: the folder that was asked for is not a whole checkpoint, or none of the run's is.
    """
    if which != "latest":
        folder = Path(which)
        if problem := validate_checkpoint(folder):
            others = ", ".join(path.name for path in all_checkpoints(output_dir)) or "none"
            raise ValueError(f"Cannot resume from {folder}: {problem}. Checkpoints in {output_dir}: {others}.")
        return folder
    checkpoints = all_checkpoints(output_dir)
    for folder in reversed(checkpoints):
        problem = validate_checkpoint(folder)
        if problem is None:
            return folder
        logger.warning("%s is damaged (%s): taking the checkpoint before it.", folder, problem)
    if checkpoints:
        raise ValueError(
            f"All checkpoints in {output_dir} are damaged ({', '.join(path.name for path in checkpoints)}): start again "
            "in another --output_dir."
        )
    return None


def rotate(output_dir: Path, limit: int | None, kept: int | None = None) -> None:
    """Removes the oldest checkpoints, and what an interrupted write left behind, so that `limit` remain; that of the step
    `kept` remains besides."""
    for leftover in output_dir.glob(".checkpoint-*.unfinished"):
        shutil.rmtree(leftover, ignore_errors=True)
    if limit:
        for folder in all_checkpoints(output_dir)[:-limit]:
            if folder.name != f"checkpoint-{kept}":
                shutil.rmtree(folder)


def publish(folder: Path, output_dir: Path, left_out: Collection[str] = (MANIFEST, OPTIMIZER, STATE)) -> None:
    """Copies the model's files of a folder to the run's own, each aside first, so that none is ever half there.

    Raises:
        OSError: a file could not be written; what was there before is whole.
    """
    for file in sorted(path for path in folder.iterdir() if path.is_file() and path.name not in left_out):
        try:
            with replacing(output_dir / file.name) as aside:
                shutil.copy2(file, aside)
        except OSError as error:
            raise OSError(f"Could not copy {file} to {output_dir}: {error}. {_remedy(error)} and run again.") from error


def check_own_folder(folder: Path, *marks: str) -> None:
    """Makes sure that a run will replace no model, tokenizer or page but its own.

    Args:
        marks: patterns of what a run's folder has, one of them at least, before it has any of those.

    Raises:
        ValueError: the folder has one, and no mark.
    """
    foreign = [name for name in _PUBLISHED if (folder / name).exists()]
    if foreign and not any(any(folder.glob(mark)) for mark in marks):
        raise ValueError(
            f"output_dir = {folder} has {' and '.join(foreign)}, which no such run wrote and this one would replace: name another "
            "--output_dir."
        )


def save_training_state(folder: Path, optimizer_state: dict[str, Any], state: dict[str, Any]) -> None:
    """Writes a full optimiser state dict (parameters by name) and a JSON-able state into a checkpoint folder."""
    tensors, numbers = {}, {}
    for parameter, entries in optimizer_state["state"].items():
        for name, value in entries.items():
            (tensors if isinstance(value, torch.Tensor) else numbers)[f"{parameter}|{name}"] = value
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / OPTIMIZER)
    optimizer = {"param_groups": optimizer_state["param_groups"], "numbers": numbers}
    (folder / STATE).write_text(json.dumps({**state, "optimizer": optimizer}, indent=1))


def load_training_state(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The optimiser state dict and the JSON state that `save_training_state` wrote."""
    state = json.loads((folder / STATE).read_text())
    optimizer = state.pop("optimizer")
    entries: dict[str, dict[str, Any]] = {}
    for key, value in (*load_file(folder / OPTIMIZER).items(), *optimizer["numbers"].items()):
        parameter, name = key.rsplit("|", 1)
        entries.setdefault(parameter, {})[name] = value
    groups = [
        {name: tuple(value) if name == "betas" else value for name, value in group.items()}
        for group in optimizer["param_groups"]
    ]
    return {"state": entries, "param_groups": groups}, state


def check_finite(model: PreTrainedModel, name: str) -> None:
    """
    Raises:
        ValueError: a weight of the checkpoint `name` is no finite number.
    """
    for weight, tensor in model.state_dict().items():
        if not tensor.isfinite().all():
            raise ValueError(
                f"The checkpoint {name} is damaged, or of a training that diverged: {weight} holds numbers that are not finite. "
                "Train it again, or name another one."
            )
