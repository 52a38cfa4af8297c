"""Perplexity of a text under a causal language model: windows that slide over it, the loss of each token, intervals over documents.

A window reads W tokens, each of which predicts the next. The window after it begins `stride` tokens later, and of its predictions those
count that no window before it made. With a stride of W windows are blocks side by side, in which tokens have 1 to W tokens of context; with
a stride of 1 all tokens behind the first window have W, as in FMMformer's Table 2. A text's first token has no prediction. N tokens of a text,
V vocabulary. Losses are in nats, float32; sums are in float64.
"""

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


_DRAWS_AT_ONCE = 1 << 22  # places drawn at once by a bootstrap


class WindowBatch(NamedTuple):
    """Windows that read equally many tokens: the tokens where they begin, how many they read, how many of their last predictions count."""

    begins: np.ndarray
    length: int
    counted: int


@dataclass(frozen=True)
class Windows:
    """The windows over a text.

    Args:
        num_tokens: N. length: tokens that a window reads at most, W. stride: tokens from a window to the next.

    Raises:
        ValueError: a text of fewer than two tokens; a stride that would leave out tokens.
    """

    num_tokens: int
    length: int
    stride: int

    def __post_init__(self):
        if self.num_tokens < 2:
            raise ValueError(
                f"The text has {self.num_tokens} tokens, the first of which has no prediction: give one of 2 or more."
            )
        if not 1 <= self.stride <= self.length:
            raise ValueError(
                f"stride = {self.stride}: a window reads {self.length} tokens; give 1 to {self.length}, so that none is left out."
            )

    def __len__(self) -> int:
        return 1 + max(0, -(-(self.num_tokens - 1 - self.length) // self.stride))

    def batches(self, batch_size: int, scored: int = 0) -> Iterator[WindowBatch]:
        """All windows in order, up to `batch_size` at once, which read and count alike; or those after the ones that made the first
        `scored` predictions. The last window reads what is left, for it would have more context elsewhere."""
        begins = np.arange(len(self), dtype=np.int64) * self.stride
        ends = np.minimum(begins + self.length, self.num_tokens - 1)
        lengths, counted = ends - begins, np.diff(ends, prepend=0)
        left = np.arange(np.searchsorted(ends, scored, side="right"), len(self))
        borders = np.flatnonzero(np.diff(lengths[left]) | np.diff(counted[left])) + 1
        for alike in np.split(left, borders):
            for start in range(0, len(alike), batch_size):
                part = alike[start : start + batch_size]
                yield WindowBatch(begins[part], int(lengths[part[0]]), int(counted[part[0]]))

    def context(self) -> np.ndarray:
        """How many tokens each prediction is made from, (N - 1,) int32."""
        places = np.arange(1, self.num_tokens)
        windows = np.maximum(0, -(-(places - self.length) // self.stride))
        return (places - windows * self.stride).astype(np.int32)


def token_losses(
    model: nn.Module, ids: np.ndarray, windows: Windows, batch_size: int, device: torch.device, scored: int = 0
) -> Iterator[np.ndarray]:
    """The losses of a text's tokens in order, batch by batch, float32 (tokens of the batch,); without the first `scored`.

    Args:
        model: in evaluation mode, on `device`; ids (B, S) to `logits`. It decodes the counted tokens alone where its forward takes
            `logits_to_keep`. ids: (N,), of the model's vocabulary. scored: how many earlier calls gave, whole batches.

    Raises:
        ValueError: a loss that is not finite.
    """
    known = inspect.signature(model.forward).parameters
    for begins, length, counted in windows.batches(batch_size, scored):
        places = begins[:, None] + np.arange(length + 1)  # (B, length + 1)
        tokens = torch.from_numpy(ids[places].astype(np.int64)).to(device)
        settings = {"use_cache": False, "logits_to_keep": counted}
        settings = {name: value for name, value in settings.items() if name in known}
        with torch.no_grad():
            logits = model(input_ids=tokens[:, :-1], **settings).logits[:, -counted:]  # (B, counted, V)
            losses = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, -counted:].flatten(), reduction="none")
        found = losses.cpu().numpy()
        if not np.isfinite(found).all():
            place = int(places[:, -counted:].flatten()[~np.isfinite(found)][0])
            raise ValueError(
                f"The model gives token {place:,} of the text, id {ids[place]}, no finite loss ({found[~np.isfinite(found)][0]}): "
                "its weights are damaged, or it was not trained with this tokenizer."
            )
        yield found


def losses_by_context(losses: np.ndarray, context: np.ndarray) -> list[dict[str, float]]:
    """Mean losses (N - 1,) of tokens with 1, 2, 3 to 4, 5 to 8, ... tokens of context: `least`, `most`, `tokens`, `loss`."""
    bins = np.ceil(np.log2(context)).astype(np.int64)
    counts, sums = np.bincount(bins), np.bincount(bins, losses)
    return [
        {
            "least": int(context[bins == number].min()),
            "most": int(context[bins == number].max()),
            "tokens": int(counts[number]),
            "loss": float(sums[number] / counts[number]),
        }
        for number in np.flatnonzero(counts)
    ]


class Interval(NamedTuple):
    """A mean over tokens, and the 95% interval of documents like these."""

    mean: float
    low: float
    high: float


def bootstrap(losses: np.ndarray, document_ids: np.ndarray, num_resamples: int = 10_000, seed: int = 0) -> Interval:
    """The mean of losses (N - 1,) of tokens, and its percentile interval over resampled documents, which keep their tokens together.

    Args:
        document_ids: (N - 1,), of each token.

    Raises:
        ValueError: fewer than two documents.
    """
    _, places = np.unique(document_ids, return_inverse=True)
    counts, sums = np.bincount(places), np.bincount(places, losses.astype(np.float64))
    documents = len(counts)
    if documents < 2:
        raise ValueError(f"An interval is over documents, and there is {documents}: give a text of 2 or more.")
    draws, means = np.random.default_rng(seed), []
    at_once = max(1, _DRAWS_AT_ONCE // documents)
    for start in range(0, num_resamples, at_once):
        drawn = draws.integers(documents, size=(min(at_once, num_resamples - start), documents))
        means.append(sums[drawn].sum(1) / counts[drawn].sum(1))
    low, high = np.percentile(np.concatenate(means), [2.5, 97.5])
    return Interval(float(sums.sum() / counts.sum()), float(low), float(high))


def paired_bootstrap(
    losses_a: np.ndarray, losses_b: np.ndarray, document_ids: np.ndarray, num_resamples: int = 10_000, seed: int = 0
) -> Interval:
    """How much more model a loses on a token than model b on the same, (N - 1,) each, with the interval over documents; 0 outside it is a
    difference that other documents would show too.

    Raises:
        ValueError: losses of other tokens; fewer than two documents.
    """
    if not len(losses_a) == len(losses_b) == len(document_ids):
        raise ValueError(
            f"{len(losses_a):,} and {len(losses_b):,} losses of {len(document_ids):,} tokens: give losses of the same tokens."
        )
    return bootstrap(losses_a.astype(np.float64) - losses_b, document_ids, num_resamples, seed)
