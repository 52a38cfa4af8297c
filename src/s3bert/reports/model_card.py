"""The model card of a run, with the run's own metrics."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import EvalResult, ModelCardData

from s3bert.files import as_markdown, fenced, table, write_text


@dataclass
class Metric:
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

fill = pipeline("fill-mask", model={folder}, trust_remote_code=True)
print(fill(f"paris is the capital of {{fill.tokenizer.mask_token}}."))""",
    "text-generation": """from transformers import pipeline

generate = pipeline("text-generation", model={folder}, trust_remote_code=True)
print(generate("the history of", max_new_tokens=40))""",
    "text-classification": """from transformers import pipeline

classify = pipeline("text-classification", model={folder}, trust_remote_code=True)
print(classify("a sentence to classify"))""",
}


_TAGS = {"s3bert": ["s3bert", "s3attention"]}  # the model type by default


_OWN_CODE = ("s3bert", "ponet", "fmmformer")


_USE_OF_OWN_CODE = (
    "Where s3bert is installed, `import s3bert` does in place of `trust_remote_code`. Any padding is fine: what lies under "
    "the attention mask has no influence on real tokens."
)


def write_model_card(
    card: Path,
    title: str,
    model_type: str,
    summary: str,
    metrics: list[Metric],
    facts: Mapping[str, object],
    command: str,
    base_model: str | None = None,
    plot: str | None = None,
) -> None:
    """Writes a model card, the README.md of a repository.

    Args:
        card: the file. title: the model's name. model_type: as in its configuration. summary: a paragraph of Markdown that says what was
            trained on what.
        metrics: the results to report; the first one's task is the pipeline tag.
        facts: rows of the training table (parameters, tokens seen, hours, ...), their values as plain text.
        command: the command line that made the checkpoint.
        base_model: the checkpoint it was finetuned from. plot: a PNG beside the card to show.
    """
    task = metrics[0].task if metrics else "fill-mask"
    results = [
        EvalResult(
            task_type=metric.task,
            dataset_type=metric.dataset,
            dataset_name=metric.dataset_in_words,
            dataset_config=metric.config,
            dataset_split=metric.split,
            metric_type=metric.metric,
            metric_value=metric.value,
        )
        for metric in metrics
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
    measured = [[as_markdown(f"{f.dataset_in_words} ({f.split})"), f.metric, f"{f.value:.4f}"] for f in metrics]
    # JSON's string is Python's too; characters that do not show are written as escapes.
    folder = json.dumps(title, ensure_ascii=not title.isprintable())
    sections = [
        f"---\n{data.to_yaml()}\n---",
        f"# {as_markdown(title)}",
        summary,
        "## Results",
        table(["data", "metric", "value"], measured),
        f"![losses]({plot})" if plot else "",
        "## Training",
        table(["", ""], [[name, as_markdown(value)] for name, value in facts.items()]),
        fenced("sh", command),
        "## Use",
        fenced("python", _LOAD[task].format(folder=folder)),
        _USE_OF_OWN_CODE if model_type in _OWN_CODE else "",
    ]
    text = "\n\n".join(section for section in sections if section) + "\n"
    write_text(card, text.encode("utf-8", "replace").decode())  # a file's name may hold what UTF-8 cannot
