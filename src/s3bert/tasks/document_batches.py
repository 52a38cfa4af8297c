"""Documents as a model sees them: whole, or in windows; and in an evaluation with their predictions.

Windows are what a user of a short model would choose, and where Pappagari et al., "Hierarchical Transformers for Long Document
Classification" (2019), begin. In training each carries the label of its document; a document's logits are the mean over its windows.
"""

import csv
import io
import time
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from datasets import Dataset
from sklearn.metrics import accuracy_score, f1_score
from torch import nn
from torch.nn import functional as F
from transformers import PreTrainedTokenizerBase

from s3bert.files import write_text

from .documents import UNLABELLED
from .glue import GlueTask
from .glue_batches import EncodedRows, all_logits


_NO_LIMIT = 2**31 - 1  # tokens


class EncodedDocuments(EncodedRows):
    """A split, tokenised: a row for each document, or for each of its windows.

    Args:
        rows, task, tokenizer, pad_to_max_length, pad_to_multiple_of: as in `EncodedRows`.
        max_seq_length: tokens that are read of a document; the end of a longer one is cut, of a pair that of the longer text.
        window: tokens of a window, for documents that are no pairs; by default a document is read at once. Both counts include special tokens, which every window has.
        stride: tokens from the start of a window to that of the next; by default windows lie side by side.

    Attributes: `documents` (rows,), the number of each row's document; `documents_cut`, how many were cut.

    Raises:
        ValueError: a window has no room for text; a stride beyond the window, which would leave tokens out.
    """

    def __init__(
        self,
        rows: Dataset,
        task: GlueTask,
        tokenizer: PreTrainedTokenizerBase,
        max_seq_length: int,
        window: int | None = None,
        stride: int | None = None,
        pad_to_max_length: bool = False,
        pad_to_multiple_of: int = 1,
    ):
        if len(task.columns) > 1:
            super().__init__(rows, task, tokenizer, max_seq_length, pad_to_max_length, pad_to_multiple_of)
            self.documents = np.arange(len(self.lengths))
            self.documents_cut = int((EncodedRows(rows, task, tokenizer, _NO_LIMIT).lengths > max_seq_length).sum())
            return
        super().__init__(rows, task, tokenizer, _NO_LIMIT, pad_to_max_length, pad_to_multiple_of)
        before, after = _special_tokens(tokenizer)
        special = before + after
        self.max_seq_length = window or max_seq_length
        size = self.max_seq_length - special  # of text
        if size < 1:
            raise ValueError(
                f"{self.max_seq_length} tokens at once: {special} of them are special; give at least {special + 1}."
            )
        stride = stride or size
        if stride > size:
            raise ValueError(
                f"--window_stride {stride}: a window reads {size} tokens of text, and none may be left out; give less."
            )

        texts = np.minimum(self.lengths - special, max_seq_length - special)  # (documents,)
        self.documents_cut = int((self.lengths > max_seq_length).sum())
        windows = 1 + np.maximum(0, -(-(texts - size) // stride))  # (documents,)
        self.documents = np.repeat(np.arange(len(texts)), windows)
        first = stride * _places(windows)  # (rows,), in the text
        ends = (self.starts + self.lengths)[self.documents]
        starts = self.starts[self.documents]
        lengths = np.minimum(size, texts[self.documents] - first) + special
        # Each window has the special tokens of its document around its part of the text.
        place = _places(lengths)  # (tokens,), in the row
        begin, text, end = (np.repeat(part, lengths) for part in (starts, starts + first, ends - lengths))
        inside = place < np.repeat(lengths, lengths) - after
        source = np.where(place < before, begin + place, np.where(inside, text + place, end + place))
        self.tokens = {name: tokens[source] for name, tokens in self.tokens.items()}
        self.lengths, self.starts = lengths, np.cumsum(lengths) - lengths
        self.labels = self.labels[self.documents]


def _places(counts: np.ndarray) -> np.ndarray:
    """0, 1, ... for each count, one after the other."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


def _special_tokens(tokenizer: PreTrainedTokenizerBase) -> tuple[int, int]:
    """How many special tokens stand before and after a text."""
    bare, whole = (tokenizer("a", add_special_tokens=special)["input_ids"] for special in (False, True))
    before = next(place for place in range(len(whole)) if whole[place : place + len(bare)] == bare)
    return before, len(whole) - len(bare) - before


class DocumentEvaluation:
    """Accuracy, macro F1, loss and seconds per document of a model, for `training.train` to call; keeps the predictions.

    Seconds are of the model alone, whose inputs are tokenised before, on all processes together. Rows without labels have
    predictions and seconds only.

    Args:
        rows: the split. label_names: of the classes. batch_size: rows at once on one process.
        file: where predictions are written (row number and class, with tabs); None to write none.
    """

    def __init__(self, rows: EncodedDocuments, label_names: tuple[str, ...], batch_size: int, file: Path | None = None):
        self.rows, self.label_names, self.batch_size, self.file = rows, label_names, batch_size, file
        self.windows = torch.from_numpy(np.bincount(rows.documents))  # (documents,)
        self.labels = rows.labels[self.windows.cumsum(0) - 1]  # (documents,)

    def __call__(self, model: nn.Module, accelerator: Accelerator) -> dict[str, float]:
        """Evaluates on all processes together; every process gets the same metrics, but for the seconds.

        Raises:
            FloatingPointError: the model's outputs are not finite.
        """
        began = time.perf_counter()
        logits = self.logits(model, accelerator)
        seconds = {"seconds_per_document": round((time.perf_counter() - began) / len(logits), 6)}
        if not torch.isfinite(logits).all():
            raise FloatingPointError("The model's outputs are not finite.")
        predictions = logits.argmax(-1)  # (documents,)
        if self.file is not None and accelerator.is_main_process:
            self._write(self.file, predictions.tolist())
        if (self.labels == UNLABELLED).any():
            return seconds
        accuracy = float(accuracy_score(self.labels, predictions))
        return seconds | {
            "loss": F.cross_entropy(logits, self.labels).item(),
            "accuracy": accuracy,
            "macro_f1": float(f1_score(self.labels, predictions, average="macro", zero_division=0)),
            "score": accuracy,
        }

    def logits(self, model: nn.Module, accelerator: Accelerator) -> torch.Tensor:
        """The mean over each document's windows, (documents, C)."""
        logits = all_logits(model, accelerator, self.rows, self.batch_size, len(self.label_names))
        sums = torch.zeros(len(self.windows), logits.shape[1])
        return sums.index_add_(0, torch.from_numpy(self.rows.documents), logits) / self.windows[:, None]

    def _write(self, file: Path, predictions: list[int]) -> None:
        lines = io.StringIO()
        writer = csv.writer(lines, delimiter="\t", lineterminator="\n")
        writer.writerow(["index", "prediction"])
        writer.writerows([index, self.label_names[number]] for index, number in enumerate(predictions))
        write_text(file, lines.getvalue())
