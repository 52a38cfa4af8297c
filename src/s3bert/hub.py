"""What the Hub sees of a run: the model card with the run's own figures, and the upload of the finished folder."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import EvalResult, HfApi, ModelCardData


@dataclass
class Figure:
    """One measured value: `metric` ("accuracy") of `value` on `split` of `dataset`, as the run's files hold it."""

    task: str  # the Hub's name, "fill-mask" or "text-classification"
    dataset: str
    split: str
    metric: str
    value: float


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
    folder: Path,
    title: str,
    model_type: str,
    summary: str,
    figures: list[Figure],
    facts: Mapping[str, object],
    command: str,
    base_model: str | None = None,
    picture: str | None = None,
) -> Path:
    """Writes `folder/README.md` and returns it.

    Args:
        title: the model's name. model_type: as in its configuration. summary: a paragraph that says what was trained on what.
        figures: the results to report; the first one's task is the pipeline tag.
        facts: rows of the training table (parameters, tokens seen, hours, ...), shown as they are.
        command: the command line that made the checkpoint.
        base_model: the checkpoint it was finetuned from. picture: a PNG in the folder to show.
    """
    task = figures[0].task if figures else "fill-mask"
    results = [
        EvalResult(
            task_type=figure.task,
            dataset_type=figure.dataset,
            dataset_name=figure.dataset,
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
    measured = [f"| {f.dataset} ({f.split}) | {f.metric} | {f.value:.4f} |" for f in figures]
    sections = [
        f"---\n{data.to_yaml()}\n---",
        f"# {title}",
        summary,
        "## Results",
        "\n".join(["| data | metric | value |", "|---|---|---|", *measured]),
        f"![losses]({picture})" if picture else "",
        "## Training",
        "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in facts.items())]),
        f"```sh\n{command}\n```",
        "## Use",
        f"```python\n{_LOAD[task].format(folder=folder.name)}\n```",
        _USE_OF_OWN_CODE if model_type in _OWN_CODE else "",
    ]
    card = folder / "README.md"
    card.write_text("\n\n".join(section for section in sections if section) + "\n", encoding="utf-8")
    return card


def push_folder(folder: Path, repository: str | None) -> str:
    """Uploads a finished run's folder, without checkpoints, corpora and cells; returns the repository's id.

    Args:
        repository: where to; by default the folder's name in the user's own space, created when it is not there.
    """
    api = HfApi()
    created = api.create_repo(repository or folder.name, exist_ok=True).repo_id
    left_out = ["checkpoint-*", "corpus/*", "cells/*", ".*", "*/.*"]
    api.upload_folder(repo_id=created, folder_path=folder, ignore_patterns=left_out)
    return created
