"""A finished run's folder as a Hub repository: its card, checked and uploaded."""

import json
import math
import os
import re
import shutil
from pathlib import Path

import torch
from huggingface_hub import HfApi, ModelCard
from huggingface_hub.utils import filter_repo_objects
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from yaml import YAMLError

from s3bert.files import reading, replacing, write_text


def _plots(card: Path) -> list[Path]:
    """The files that a card shows."""
    return [card.parent / name for name in re.findall(r"!\[[^\]]*\]\(([^):]+)\)", card.read_text(encoding="utf-8"))]


def adopt_card(card: Path, folder: Path) -> None:
    """Makes a card the README.md of a folder, with the plots it shows; `validate_repository` says whether they are there."""
    text = card.read_text(encoding="utf-8")
    for plot in _plots(card):
        with replacing(folder / plot.name) as aside:
            shutil.copyfile(plot, aside)
    write_text(folder / "README.md", re.sub(r"(!\[[^\]]*\]\()[^):]*?([^):/]+\))", r"\1\2", text))


_LEFT_OUT = ["checkpoint-*", "corpus/*", "trials/*", "output.txt", ".*", "*/.*"]  # what of a run's folder stays at home


def files_to_push(folder: Path) -> list[Path]:
    """What `push_folder` uploads: a run's folder without checkpoints, corpora, trials and hidden files."""
    names = (str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return [folder / name for name in sorted(filter_repo_objects(names, ignore_patterns=_LEFT_OUT))]


def validate_repository(folder: Path, card: Path | None = None) -> list[str]:
    """Why a folder is not a repository that others can use; [] when it is. Reads everything, and needs no network.

    Args:
        card: what is to be its README.md; by default the one it has.
    """
    if not (folder / "config.json").is_file():
        return [f"{folder} has no config.json: name the folder of a finished run."]
    names = {str(path.relative_to(folder)) for path in files_to_push(folder)}
    found = []
    weights = sorted(name for name in names if name.startswith("model") and name.endswith(".safetensors"))
    if not weights:
        found.append("No model.safetensors: the run is not finished.")
    for name in weights:
        try:
            with safe_open(folder / name, "pt") as tensors:
                keys = tensors.keys()
                wrong = [key for key in keys if not tensors.get_tensor(key).isfinite().all()]
            found += [f"{name}: {key} holds numbers that are not finite." for key in wrong]
        except SafetensorError as error:
            found.append(f"{name} is damaged ({error}): train again from the last checkpoint, or copy it again.")
    pickles = sorted(name for name in names if Path(name).suffix in (".bin", ".pt", ".pth", ".pkl", ".ckpt"))
    found += [f"{name}: pickled files can run anything where they are opened; remove it." for name in pickles]
    if not {"tokenizer.json", "tokenizer_config.json"} <= names:
        found.append("No tokenizer: save the one that the model was trained with into the folder.")
    with reading(str(folder / "config.json")):
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        modules = {f"{target.split('.')[0]}.py" for target in config.get("auto_map", {}).values()}
    found += [f"No {name}, which the configuration's auto_map names." for name in sorted(modules - names)]
    return found + _card_problems(card or folder / "README.md")


def _card_problems(card: Path) -> list[str]:
    if not card.is_file():
        return [f"No {card.name}: a model card that says what was trained on what, and what was measured."]
    try:
        data = ModelCard.load(card).data
    except (ValueError, YAMLError) as error:
        return [f"{card.name}: its metadata cannot be read ({error})."]
    missing = [name for name in ("license", "library_name", "pipeline_tag") if not getattr(data, name, None)]
    found = [f"{card.name}: the metadata has no {name}." for name in missing]
    found += [
        f"{card.name} shows {plot}, which is not there: write the report again, or mend the link."
        for plot in _plots(card)
        if not plot.is_file()
    ]
    for result in data.eval_results or []:
        if not isinstance(result.metric_value, int | float) or not math.isfinite(result.metric_value):
            found.append(f"{card.name}: {result.metric_type} on {result.dataset_name} is {result.metric_value}.")
    return found


def write_repository(folder: Path, target: Path, card: Path | None = None, half_precision: bool = False) -> None:
    """Copies what `push_folder` would upload into a new folder, atomically.

    Args:
        card: what becomes its README.md, with the plots it shows.
        half_precision: store float32 weights in float16. The configuration's dtype stays, so that Transformers computes in it.

    Raises:
        ValueError: `target` is there, or a weight does not fit in float16.
    """
    if target.exists():
        raise ValueError(f"{target} is there already: remove it, or name another --output_dir.")
    aside = target.with_name(f".{target.name}.unfinished")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        for file in files_to_push(folder):
            copy = aside / file.relative_to(folder)
            copy.parent.mkdir(parents=True, exist_ok=True)
            if half_precision and file.suffix == ".safetensors":
                _write_halved(file, copy)
            else:
                shutil.copyfile(file, copy)
        if card:
            adopt_card(card, aside)
        os.replace(aside, target)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _write_halved(file: Path, copy: Path) -> None:
    tensors = load_file(file)
    for name, tensor in tensors.items():
        if tensor.dtype == torch.float32:
            tensors[name] = tensor.half()
            if not tensors[name].isfinite().all():
                largest = tensor.abs().max().item()
                raise ValueError(
                    f"{name} reaches {largest:g}, and float16 ends at {torch.finfo(torch.float16).max:g}: leave out --half_precision."
                )
    save_file(tensors, copy, {"format": "pt"})


def push_folder(folder: Path, repository: str | None) -> str:
    """Uploads a finished run's folder, as `files_to_push` says; returns the repository's id.

    Args:
        repository: where to; by default the folder's name in the user's own space, created when it is not there.
    """
    api = HfApi()
    created = api.create_repo(repository or folder.name, exist_ok=True).repo_id
    api.upload_folder(repo_id=created, folder_path=folder, ignore_patterns=_LEFT_OUT)
    return created
