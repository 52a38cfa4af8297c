"""GLUE rows as a model sees them: tokenised, and in an evaluation with its predictions.

B is a batch's rows, S its longest row in tokens, C the classifier's outputs.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from datasets import Dataset
from torch import nn
from torch.nn import functional as F
from transformers import PreTrainedTokenizerBase

from s3bert.files import write_text

from .evaluation import on_device, shard_batches
from .glue import GLUE_TASKS, GlueMetric, GlueTask


_ROWS_AT_ONCE = 1_000


class EncodedRows:
    """A split, tokenised: about 8 bytes per token, whatever its number of rows.

    Args:
        rows: the columns of `task` and `label`. max_seq_length: longer rows are cut, the longer text of a pair first.
        pad_to_max_length: pad every batch to `max_seq_length`; otherwise to its longest row.
        pad_to_multiple_of: then up to a multiple of this, but not beyond `max_seq_length`.

    Raises:
        ValueError: the tokenizer has no padding token.
    """

    def __init__(
        self,
        rows: Dataset,
        task: GlueTask,
        tokenizer: PreTrainedTokenizerBase,
        max_seq_length: int,
        pad_to_max_length: bool = False,
        pad_to_multiple_of: int = 1,
    ):
        if tokenizer.pad_token_id is None:
            raise ValueError("This tokenizer has no padding token, which batches need: set its pad_token.")
        self.max_seq_length, self.pad_to_max_length = max_seq_length, pad_to_max_length
        self.pad_to_multiple_of, self.padding_side = pad_to_multiple_of, tokenizer.padding_side
        self.padding = {"input_ids": tokenizer.pad_token_id, "token_type_ids": tokenizer.pad_token_type_id}
        names = [name for name in tokenizer.model_input_names if name in self.padding]
        flat: dict[str, list[np.ndarray]] = {name: [] for name in names}
        lengths: list[int] = []
        for first in range(0, len(rows), _ROWS_AT_ONCE):
            part = rows[first : first + _ROWS_AT_ONCE]
            texts = [part[column] for column in task.columns]
            encoded = tokenizer(*texts, truncation=True, max_length=max_seq_length)
            lengths += [len(ids) for ids in encoded["input_ids"]]
            for name in names:
                flat[name].append(np.concatenate([np.asarray(ids, np.int32) for ids in encoded[name]]))
        self.lengths = np.asarray(lengths)  # (rows,)
        self.starts = np.cumsum(self.lengths) - self.lengths  # (rows,)
        self.tokens = {name: np.concatenate(parts) for name, parts in flat.items()}  # (all tokens,) each
        self.labels = torch.tensor(rows["label"][:], dtype=torch.float32 if task.label_names is None else torch.long)

    def __len__(self) -> int:
        return len(self.lengths)

    def batch(self, chosen: np.ndarray) -> dict[str, torch.Tensor]:
        """The rows of numbers `chosen` (B,): `input_ids`, `attention_mask`, perhaps `token_type_ids` (B, S), `labels` (B,)."""
        lengths = self.lengths[chosen]
        width = self.max_seq_length
        if not self.pad_to_max_length:
            width = min(width, -(-int(lengths.max()) // self.pad_to_multiple_of) * self.pad_to_multiple_of)
        offsets = np.arange(width) - (width - lengths[:, None] if self.padding_side == "left" else 0)  # (B, S)
        mask = (offsets >= 0) & (offsets < lengths[:, None])  # (B, S)
        places = np.where(mask, self.starts[chosen, None] + offsets, 0)  # (B, S)
        batch = {
            name: torch.from_numpy(np.where(mask, tokens[places], self.padding[name]).astype(np.int64))
            for name, tokens in self.tokens.items()
        }
        return batch | {"attention_mask": torch.from_numpy(mask.astype(np.int64)), "labels": self.labels[chosen]}


@torch.no_grad()
def all_logits(
    model: nn.Module, accelerator: Accelerator, rows: EncodedRows, batch_size: int, num_labels: int
) -> torch.Tensor:
    """A model's logits of all rows in their order, (rows, C), in every process; `batch_size` rows at once on one process."""
    order = np.argsort(-rows.lengths, kind="stable")  # the longest first: what does not fit fails at once
    batches = [order[first : first + batch_size] for first in range(0, len(order), batch_size)]
    sorted_logits = []
    for chosen in shard_batches(batches, accelerator):
        batch = on_device(rows.batch(chosen), accelerator)
        del batch["labels"]
        outputs = model(**batch).logits.float()  # (B, C)
        outputs = F.pad(outputs, (0, 0, 0, batch_size - len(outputs)))  # processes gather equal shapes only
        sorted_logits.append(accelerator.gather_for_metrics(outputs[None]).flatten(0, 1))
    logits = torch.zeros(len(rows), num_labels)
    logits[order] = torch.cat(sorted_logits)[: len(rows)].cpu()
    return logits


class GlueEvaluation:
    """A task's metrics of a model on all its evaluation splits, for `training.train` to call; keeps the predictions.

    The metrics of a split after the first carry its suffix (`accuracy_mm`). Each call rewrites `predict_results_<task>.txt`
    (one file a split, row number and prediction) in `folder`.

    Args:
        task_name: a name in `GLUE_TASKS`. splits: the evaluation splits there are. batch_size: rows at once on one process.
        folder: where predictions are written; None to write none.
    """

    def __init__(self, task_name: str, splits: Mapping[str, EncodedRows], batch_size: int, folder: Path | None = None):
        self.task_name, self.task = task_name, GLUE_TASKS[task_name]
        self.splits, self.batch_size, self.folder = splits, batch_size, folder
        self.metric = GlueMetric(task_name)

    def __call__(self, model: nn.Module, accelerator: Accelerator) -> dict[str, float]:
        """Evaluates on all processes together; every process gets the same metrics.

        Raises:
            FloatingPointError: the model's outputs are not finite.
        """
        metrics = {}
        for split, rows in self.splits.items():
            suffix = self.task.evaluation_splits[split]
            logits = all_logits(model, accelerator, rows, self.batch_size, self.task.num_labels)
            if not torch.isfinite(logits).all():
                raise FloatingPointError(f"{self.task_name}, {split}: the model's outputs are not finite.")
            regression = self.task.label_names is None
            predictions = logits[:, 0] if regression else logits.argmax(-1)  # (rows,)
            loss = F.mse_loss(logits[:, 0], rows.labels) if regression else F.cross_entropy(logits, rows.labels)
            values = self.metric.compute(predictions=predictions.numpy(), references=rows.labels.numpy())
            metrics |= {f"{name}{suffix}": value for name, value in ({"loss": loss.item()} | values).items()}
            if self.folder is not None and accelerator.is_main_process:
                self._write(self.folder / f"predict_results_{self.task_name}{suffix}.txt", predictions.tolist())
        return metrics

    def _write(self, file: Path, predictions: list[float]) -> None:
        names = self.task.label_names
        lines = [f"{i}\t{f'{p:.3f}' if names is None else names[p]}" for i, p in enumerate(predictions)]
        write_text(file, "\n".join(["index\tprediction", *lines]) + "\n")


def write_submission(
    file: Path,
    rows: Dataset,
    task: GlueTask,
    encoded: EncodedRows,
    model: nn.Module,
    accelerator: Accelerator,
    batch_size: int,
) -> None:
    """Writes predictions of test rows as GLUE's server takes them: a row's index and label, STS-B's scores within 0 and 5.

    Every process computes, the main one writes.

    Args:
        rows, encoded: the test rows, and the same as the model sees them.

    Raises:
        FloatingPointError: the model's outputs are not finite.
    """
    logits = all_logits(model, accelerator, encoded, batch_size, task.num_labels)
    if not torch.isfinite(logits).all():
        raise FloatingPointError(f"{file.name}: the model's outputs are not finite.")
    if task.label_names is None:
        labels = [f"{score:.3f}" for score in logits[:, 0].clamp(0, 5).tolist()]
    else:
        numbers = logits.argmax(-1).tolist()
        labels = [task.label_names[number] if task.submits_names else str(number) for number in numbers]
    indices = rows["idx"][:] if "idx" in rows.column_names else range(len(rows))
    if accelerator.is_main_process:
        lines = [f"{index}\t{label}" for index, label in zip(indices, labels, strict=True)]
        write_text(file, "\n".join(["index\tprediction", *lines]) + "\n")
