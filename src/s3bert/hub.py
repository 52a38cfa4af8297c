"""What the Hub sees of a run: the model card with the run's own figures, and the finished folder, checked and uploaded."""

import json
import math
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import EvalResult, HfApi, ModelCard, ModelCardData
from huggingface_hub.utils import filter_repo_objects
from safetensors import SafetensorError, safe_open
from yaml import YAMLError

from .files import replacing, write_text
from .markdown import table


@dataclass
class Figure:
    """One measured value: `metric` ("accuracy") is `value` on `split` of `dataset`, as the run's files hold it."""

    task: str  # the Hub's name, "fill-mask" or "text-classification"
    split: str
    metric: str
    value: float
    dataset: str
    config: str | None = None  # of the dataset, as "cola" of "nyu-mll/glue"
    note: str = ""  # how the rows differ from the dataset's

    @property
    def dataset_in_words(self) -> str:
        name = f"{self.dataset}, {self.config}" if self.config else self.dataset
        return f"{name} ({self.note})" if self.note else name


_LOAD = {
    "fill-mask": """from transformers import pipeline

fill = pipeline("fill-mask", model="{folder}", trust_remote_code=True)
print(fill(f"paris is the capital of {{fill.tokenizer.mask_token}}."))""",
    "text-classification": """from transformers import pipeline

classify = pipeline("text-classification", model="{folder}", trust_remote_code=True)
print(classify("a sentence to classify"))""",
}

_TAGS = {"s3bert": ["s3bert", "s3attention"]}  # the model type by default
_OWN_CODE = ("s3bert", "ponet")
_USE_OF_OWN_CODE = (
    "Where s3bert is installed, `import s3bert` does in place of `trust_remote_code`. Any padding is fine: what lies under "
    "the attention mask has no influence on real tokens."
)


def write_model_card(
    card: Path,
    title: str,
    model_type: str,
    summary: str,
    figures: list[Figure],
    facts: Mapping[str, object],
    command: str,
    base_model: str | None = None,
    picture: str | None = None,
    more: str = "",
) -> None:
    """Writes a model card, the README.md of a repository.

    Args:
        card: the file. title: the model's name. model_type: as in its configuration. summary: a paragraph that says what was trained on what.
        figures: the results to report; the first one's task is the pipeline tag.
        facts: rows of the training table (parameters, tokens seen, hours, ...), shown as they are.
        command: the command line that made the checkpoint.
        base_model: the checkpoint it was finetuned from. picture: a PNG beside the card to show.
        more: Markdown after the results.
    """
    task = figures[0].task if figures else "fill-mask"
    results = [
        EvalResult(
            task_type=figure.task,
            dataset_type=figure.dataset,
            dataset_name=figure.dataset_in_words,
            dataset_config=figure.config,
            dataset_split=figure.split,
            metric_type=figure.metric,
            metric_value=figure.value,
        )
        for figure in figures
    ]
    data = ModelCardData(
        license="apache-2.0",
        language="en",
        library_name="transformers",
        pipeline_tag=task,
        tags=_TAGS.get(model_type, [model_type]),
        model_name=title,
        eval_results=results or None,
        base_model=base_model,
    )
    measured = [[f"{f.dataset_in_words} ({f.split})", f.metric, f"{f.value:.4f}"] for f in figures]
    sections = [
        f"---\n{data.to_yaml()}\n---",
        f"# {title}",
        summary,
        "## Results",
        table(["data", "metric", "value"], measured),
        f"![losses]({picture})" if picture else "",
        more,
        "## Training",
        table(["", ""], [[name, str(value)] for name, value in facts.items()]),
        f"```sh\n{command}\n```",
        "## Use",
        f"```python\n{_LOAD[task].format(folder=title)}\n```",
        _USE_OF_OWN_CODE if model_type in _OWN_CODE else "",
    ]
    write_text(card, "\n\n".join(section for section in sections if section) + "\n")


def _pictures(card: Path) -> list[Path]:
    """The files that a card shows."""
    return [card.parent / name for name in re.findall(r"!\[[^\]]*\]\(([^):]+)\)", card.read_text(encoding="utf-8"))]


def adopt_card(card: Path, folder: Path) -> None:
    """Makes a card the README.md of a folder, with the pictures it shows; `problems` says whether they are there."""
    text = card.read_text(encoding="utf-8")
    for picture in _pictures(card):
        with replacing(folder / picture.name) as aside:
            shutil.copyfile(picture, aside)
    write_text(folder / "README.md", re.sub(r"(!\[[^\]]*\]\()[^):]*?([^):/]+\))", r"\1\2", text))


_LEFT_OUT = ["checkpoint-*", "corpus/*", "cells/*", "output.txt", ".*", "*/.*"]  # what of a run's folder stays at home


def files_to_push(folder: Path) -> list[Path]:
    """What `push_folder` uploads: a run's folder without checkpoints, corpora, cells and hidden files."""
    names = (str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return [folder / name for name in sorted(filter_repo_objects(names, ignore_patterns=_LEFT_OUT))]


def problems(folder: Path, card: Path | None = None) -> list[str]:
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
            found.append(f"{name} is damaged ({error}): train again from the last checkpoint, or copy it anew.")
    pickles = sorted(name for name in names if Path(name).suffix in (".bin", ".pt", ".pth", ".pkl", ".ckpt"))
    found += [f"{name}: pickled files can run anything where they are opened; remove it." for name in pickles]
    if not {"tokenizer.json", "tokenizer_config.json"} <= names:
        found.append("No tokenizer: save the one that the model was trained with into the folder.")
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
        f"{card.name} shows {picture}, which is not there: write the report again, or mend the link."
        for picture in _pictures(card)
        if not picture.is_file()
    ]
    for result in data.eval_results or []:
        if not isinstance(result.metric_value, int | float) or not math.isfinite(result.metric_value):
            found.append(f"{card.name}: {result.metric_type} on {result.dataset_name} is {result.metric_value}.")
    return found


def push_folder(folder: Path, repository: str | None) -> str:
    """Uploads a finished run's folder, as `files_to_push` says; returns the repository's id.

    Args:
        repository: where to; by default the folder's name in the user's own space, created when it is not there.
    """
    api = HfApi()
    created = api.create_repo(repository or folder.name, exist_ok=True).repo_id
    api.upload_folder(repo_id=created, folder_path=folder, ignore_patterns=_LEFT_OUT)
    return created
