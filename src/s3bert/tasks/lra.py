"""Long Range Arena (Tay et al., ICLR 2021): five classification tasks over long sequences, as a table, and their files.

Ids start at 1, and 0 is padding, on the right. Text and Retrieval are bytes + 1. Pixels are grey values as they are, so that a black
pixel counts as padding: what the released programs do (`zero_is_padding`), and what can be switched off. S is a sequence's length.
"""

import copy
import functools
import gzip
import json
import lzma
import math
import reprlib
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import nn

from s3bert.data.shuffled import ShuffledBatches

from .evaluation import on_device, shard_batches
from .labels import check_labels
from .listops import read_listops
from .mlm import Masking
from .pathfinder_files import read_pathfinder


class Examples:
    """Sequences of ids, kept as one array, and their labels; batches are padded to their longest sequence, or all
    to the same length where `pad_to_max_length` is set. `to` puts the array on an accelerator, which then makes the batches.

    Args:
        sequences: (S,) arrays of ids; two an example, one after the other, if `pair`. labels: (examples,).
        max_length: longer sequences are cut at the end.
    """

    def __init__(self, sequences: list[np.ndarray], labels: np.ndarray, max_length: int, pair: bool = False):
        sequences = [sequence[:max_length] for sequence in sequences]
        self.row_lengths = np.array([len(sequence) for sequence in sequences])
        self.starts = np.cumsum(self.row_lengths) - self.row_lengths
        self.tokens = np.concatenate(sequences)
        self.labels, self.max_length, self.pair = torch.from_numpy(labels.astype(np.int64)), max_length, pair
        self.pad_to_max_length = False
        self.resident: torch.Tensor | None = None  # the tokens on a device

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each example; of a pair, its longer one's."""
        return self.row_lengths.reshape(len(self), -1).max(1)

    def to(self, device: torch.device | str) -> "Examples":
        """The same with a copy of the tokens on a device: making a batch copies nothing but row numbers from the host. Labels stay where they are."""
        other = copy.copy(self)
        other.resident = torch.from_numpy(self.tokens).to(device)
        return other

    def batch(self, chosen: np.ndarray) -> dict[str, torch.Tensor]:
        """`input_ids` (B, S) or (B, 2, S), on the tokens' device, and `labels` (B,) of the examples of those numbers."""
        rows = (2 * chosen[:, None] + np.arange(2)).ravel() if self.pair else chosen
        starts, lengths = self.starts[rows], self.row_lengths[rows]
        width = self.max_length if self.pad_to_max_length else max(1, lengths.max())
        if self.resident is None:
            ids = np.zeros((len(rows), width), np.int32)
            # Copied row by row: many times faster than one array of places.
            for row, start, length in zip(ids, starts.tolist(), lengths.tolist(), strict=True):
                row[:length] = self.tokens[start : start + length]
            ids = torch.from_numpy(ids)
        else:
            device = self.resident.device
            places = torch.from_numpy(np.stack([starts, lengths]))[..., None]
            if device.type == "cuda":  # or the copy is a host-device sync
                places = places.pin_memory()
            starts, lengths = places.to(device, non_blocking=True)
            offsets = torch.arange(width, device=device)
            real = offsets < lengths
            ids = self.resident[torch.where(real, starts + offsets, 0)].int().masked_fill(~real, 0)
        if self.pair:
            ids = ids.unflatten(0, (-1, 2))
        return {"input_ids": ids, "labels": self.labels[chosen]}

    def checksum(self) -> int:
        """A CRC-32 of all sequences and labels."""
        parts = (self.tokens, self.row_lengths, self.labels.numpy())
        return functools.reduce(lambda before, part: zlib.crc32(np.ascontiguousarray(part), before), parts, 0)

    def shifted(self) -> "Examples":
        """The same with all ids one larger, so that none is padding."""
        return self._with(self.tokens.astype(np.int16) + np.int16(1))

    def noisy(self, amplitude: float, seed: int) -> "Examples":
        """Grey values with uniform noise from -a to a added (Table 5), rounded and kept within 0..255."""
        noise = np.random.default_rng(seed).uniform(-amplitude, amplitude, len(self.tokens))
        return self._with(np.clip(np.rint(self.tokens + noise), 0, 255).astype(np.uint8))

    def averaged(self, side: int) -> "Examples":
        """Square images averaged to so many pixels a side, rounded.

        Raises:
            ValueError: that is no divisor of the side they have.
        """
        length = int(self.row_lengths[0])
        before = math.isqrt(length)
        if (self.row_lengths != length).any() or before**2 != length or before % side:
            raise ValueError(f"image_size = {side}: the images have {before} pixels a side; give a divisor of that.")
        blocks = self.tokens.reshape(-1, side, before // side, side, before // side)
        pixels = np.rint(blocks.mean((2, 4))).astype(np.uint8).reshape(-1, side * side)
        return Examples(list(pixels), self.labels.numpy(), side * side)

    def take(self, count: int | None) -> "Examples":
        """The first so many examples; all of them where None."""
        if count is None or count >= len(self):
            return self
        rows = range(2 * count if self.pair else count)
        sequences = [self.tokens[self.starts[i] : self.starts[i] + self.row_lengths[i]] for i in rows]
        return Examples(sequences, self.labels[:count].numpy(), self.max_length, self.pair)

    def _with(self, tokens: np.ndarray) -> "Examples":
        """The same sequences of other tokens."""
        other = copy.copy(self)
        other.tokens, other.resident = tokens, None
        return other


Read = Callable[[Path, int], dict[str, Examples]]


@dataclass(frozen=True)
class LraTask:
    """A task.

    Args:
        vocab_size: ids, padding included. num_labels: classes. max_length: tokens of the longest sequence.
        read: folder and length to the splits train, validation and test. pair: two sequences an example.
        pixels: ids are grey values.
    """

    vocab_size: int
    num_labels: int
    max_length: int
    read: Read
    pair: bool = False
    pixels: bool = False


def _file(folder: Path, name: str, remedy: str) -> Path:
    file = folder / name
    if not file.exists():
        raise FileNotFoundError(f"{file} is not there: {remedy}")
    return file


def read_text(folder: Path, max_length: int) -> dict[str, Examples]:
    """Byte-level IMDB reviews. A tenth of the training reviews, drawn once for all, is held out for validation: the
    published results use the test reviews for that, too."""
    splits = {}
    for split in ("train", "test"):
        file = _file(
            folder, f"{split}.jsonl.gz", "--data_dir is the folder that holds `text/`, with lines of text and label."
        )
        sequences, labels = [], []
        try:
            with gzip.open(file, "rt", encoding="utf-8", newline="\n") as lines:
                for line in lines:
                    row = json.loads(line)
                    text, label = row["text"], row["label"]
                    if not isinstance(text, str):
                        raise TypeError(f"its text is {reprlib.repr(text)}")
                    sequences.append(np.frombuffer(text.encode("utf-8")[:max_length], np.uint8).astype(np.int16) + 1)
                    labels.append(label)
        except (EOFError, OSError, zlib.error, UnicodeDecodeError) as error:
            raise ValueError(f"{file} is damaged after {len(labels)} reviews ({error}): copy it again.") from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(
                f"{file}, line {len(labels) + 1}: not a review with text and label ({error}). Correct it, or take it out."
            ) from error
        check_labels(labels, 2, str(file), range(1, len(labels) + 1))
        splits[split] = (sequences, np.array(labels))
    sequences, labels = splits["train"]
    order = np.random.default_rng(0).permutation(len(labels))
    held_out = len(labels) // 10
    if not held_out:
        raise ValueError(
            f"{folder / 'train.jsonl.gz'} has {len(labels)} reviews, of which a tenth is held out for validation: give at least 10."
        )
    parts = {"train": order[held_out:], "validation": order[:held_out]}
    examples = {name: Examples([sequences[i] for i in rows], labels[rows], max_length) for name, rows in parts.items()}
    return examples | {"test": Examples(*splits["test"], max_length)}


def read_image(folder: Path, max_length: int) -> dict[str, Examples]:
    """Grey CIFAR-10 pixels, row by row: rows 0..44,999 of the file for training, the other 5,000 for validation."""
    remedy = "--data_dir is the folder that holds `image/`, with the arrays train_x, train_y, test_x, test_y."
    file = _file(folder, "cifar10_gray.npz", remedy)
    try:
        with np.load(file, allow_pickle=False) as arrays:
            train, labels, test, test_labels = (arrays[name] for name in ("train_x", "train_y", "test_x", "test_y"))
    except (
        TypeError,
        ValueError,
        KeyError,
        OSError,
        EOFError,
        zipfile.BadZipFile,
        zlib.error,
        lzma.LZMAError,
    ) as error:
        raise ValueError(f"{file} is damaged ({error}): copy it again.") from error
    for split, pixels, classes in (("train", train, labels), ("test", test, test_labels)):
        if pixels.ndim != 2 or pixels.dtype != np.uint8 or classes.shape != pixels.shape[:1]:
            raise ValueError(
                f"{file}: {split}_x is {pixels.dtype} {pixels.shape} and {split}_y {classes.shape}; they must be uint8 (images, "
                "pixels), and a label for each image. Copy the file again."
            )
        check_labels(classes.tolist(), 10, f"{file}, {split}_y")
    if len(train) <= 45_000:
        raise ValueError(
            f"{file} has {len(train):,} images in train_x: 45,000 are for training and those after them for validation. Copy it "
            "again."
        )
    return {
        "train": Examples(list(train[:45_000]), labels[:45_000], max_length),
        "validation": Examples(list(train[45_000:]), labels[45_000:], max_length),
        "test": Examples(list(test), test_labels, max_length),
    }


def read_listops_folder(folder: Path, max_length: int) -> dict[str, Examples]:
    """Nested operations on digits, as `prepare_lra.py` writes them, or the released files."""
    remedy = "generate the task's files with s3bert prepare-lra --task_name listops."
    files = {split: _file(folder, f"basic_{name}.tsv", remedy) for split, name in _SPLITS.items()}
    return {split: Examples(*read_listops(file), max_length) for split, file in files.items()}


def read_pathfinder_folder(folder: Path, max_length: int) -> dict[str, Examples]:
    """Images of dashed curves, as `prepare_lra.py` draws them; a re-creation of the released ones."""
    if not folder.is_dir():
        raise FileNotFoundError(
            f"{folder} is not there: draw the images with s3bert prepare-lra --task_name pathfinder."
        )
    examples = {}
    for split, name in _SPLITS.items():
        pixels, labels = read_pathfinder(folder, name)
        examples[split] = Examples(list(pixels), labels, max_length)
    return examples


def read_retrieval(folder: Path, max_length: int) -> dict[str, Examples]:
    """Pairs of papers of the ACL Anthology Network, label 1 if one cites the other; bytes.

    Lines are label, two ids and two texts, separated by tabs, without header and quoting, as in the released files.
    """
    remedy = (
        "--data_dir is the folder that holds `retrieval/`. The pairs are those of lra_release; the texts have to be requested "
        "from the ACL Anthology Network's authors."
    )
    examples = {}
    for split, name in {"train": "train", "validation": "eval", "test": "test"}.items():
        file = _file(folder, f"new_aan_pairs.{name}.tsv", remedy)
        sequences, labels, numbers = [], [], []
        with file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line == b"\n":
                    continue
                if not line.endswith(b"\n"):
                    raise ValueError(
                        f"{file}, line {number}: the last line has no end; the file is cut. Copy it again."
                    )
                fields = line[:-1].split(b"\t")
                if len(fields) != 5:
                    raise ValueError(
                        f"{file}, line {number}: not a label (0 or 1), two ids and two texts between tabs."
                    )
                labels.append(_RETRIEVAL_LABELS.get(fields[0], fields[0].decode("utf-8", "replace")))
                numbers.append(number)
                sequences += [np.frombuffer(text[:max_length], np.uint8).astype(np.int16) + 1 for text in fields[3:]]
        check_labels(labels, 2, str(file), numbers)
        examples[split] = Examples(sequences, np.array(labels), max_length, pair=True)
    return examples


_RETRIEVAL_LABELS = {b"0": 0, b"0.0": 0, b"1": 1, b"1.0": 1}
_SPLITS = {"train": "train", "validation": "val", "test": "test"}
LRA_TASKS: Mapping[str, LraTask] = {
    "listops": LraTask(17, 10, 2048, read_listops_folder),
    "text": LraTask(257, 2, 4096, read_text),
    "retrieval": LraTask(257, 2, 4096, read_retrieval, pair=True),
    "image": LraTask(256, 10, 1024, read_image, pixels=True),
    "pathfinder": LraTask(256, 2, 1024, read_pathfinder_folder, pixels=True),
}


class MaskedLraBatches(ShuffledBatches):
    """Shuffled batches with masked tokens to predict, in place of classes; the two sequences of a pair are rows of their own.

    Args:
        vocab_size: the task's ids; the next one stands for masked tokens.
    """

    def __init__(self, examples: Examples, batch_size: int, seed: int, vocab_size: int):
        super().__init__(examples, batch_size, seed)
        self.masking = Masking(vocab_size, vocab_size, special_ids=[0])

    def __getitem__(self, step: int) -> dict[str, torch.Tensor]:
        ids = super().__getitem__(step)["input_ids"].flatten(0, -2)  # (B, S)
        batch = self.masking(ids.numpy(), np.random.default_rng([self.seed, step, 1]))
        return batch | {"attention_mask": ids != 0}  # of the ids before: a random one may be padding's


class LraEvaluation:
    """Loss and accuracy on all examples of a split, for `training.train` to call; accuracy is the `score`, too."""

    def __init__(self, examples: Examples, batch_size: int):
        self.examples, self.batch_size = examples, batch_size
        self.order = np.argsort(examples.lengths, kind="stable")  # little is padded

    @property
    def batches(self) -> list[np.ndarray]:
        """The numbers of each batch's examples, which are of similar length."""
        return [self.order[i : i + self.batch_size] for i in range(0, len(self.order), self.batch_size)]

    @torch.no_grad()
    def __call__(self, model: nn.Module, accelerator: Accelerator) -> dict[str, float]:
        sums = torch.zeros(2, device=accelerator.device)  # loss, right answers
        for chosen in shard_batches(self.batches, accelerator):
            batch = on_device(self.examples.batch(chosen), accelerator)
            logits, labels = model(input_ids=batch["input_ids"]).logits.float(), batch["labels"]
            loss = F.cross_entropy(logits, labels, reduction="sum")
            row = torch.stack([loss, (logits.argmax(1) == labels).sum()])
            sums += accelerator.gather_for_metrics(row[None]).sum(0)
        loss, right = (sums / len(self.examples)).tolist()
        return {"loss": loss, "accuracy": right, "score": right}
