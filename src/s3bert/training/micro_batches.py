"""From global batches to what one process computes: its micro-batches with their weights, prepared ahead."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset

from .flops import takes_max_predictions


_STEPS_AHEAD = 2  # steps whose batches are prepared while the device computes
_PREDICTIONS_MULTIPLE = 64  # labels of a micro-batch vary; bounds of them that are multiples of this make few shapes

Rows = TypeVar("Rows", np.ndarray, torch.Tensor)


class Batches(Protocol):
    """What `train` reads: the length is the optimiser steps of an epoch, `[step]` any step's global batch, its labels on the CPU.

    A thread reads it while the device computes, or `dataloader_num_workers` processes do.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, step: int) -> dict[str, torch.Tensor]: ...


@runtime_checkable
class DivisibleBatches(Batches, Protocol):
    """Batches of which a process makes only the rows it needs: `[step]` without the others, its labelled items and tokens with them.

    `own` takes any array (rows, ...) of the step's rows to this process's, (micro-batches, rows of one, ...).
    """

    def share(self, step: int, own: Callable[[np.ndarray], np.ndarray]) -> tuple[dict[str, torch.Tensor], int, int]: ...


class MicroBatches(Dataset):
    """The part of each step's global batch that falls to this process, in micro-batches with their weights.

    A model whose `forward` takes `max_predictions` gets it: the labels were counted here, so it need not count them on
    the device.

    Args:
        size: sequences of a micro-batch. count: micro-batches of a step on one process. process, processes: which of how many.
    """

    def __init__(self, batches: Batches, size: int, count: int, process: int, processes: int, model: nn.Module):
        self.batches, self.size, self.count = batches, size, count
        self.process, self.processes = process, processes
        self.bounds_predictions = takes_max_predictions(model)

    def __getitem__(self, step: int) -> tuple[list[tuple[dict[str, Any], float]], int]:
        """[(micro-batch, its share of the step's labelled items)], tokens of the global batch."""
        own = partial(self._own, step)
        if isinstance(self.batches, DivisibleBatches):
            batch, items, tokens = self.batches.share(step, own)
        else:
            whole = self.batches[step]
            batch = {name: own(tensor) for name, tensor in whole.items()}
            items, tokens = _labelled_items(whole), _tokens(whole)
        parts = []
        for i in range(self.count):
            part: dict[str, Any] = {name: tensor[i] for name, tensor in batch.items()}
            labelled = _labelled_items(part)
            if self.bounds_predictions and "labels" in part:
                bound = -(-labelled // _PREDICTIONS_MULTIPLE) * _PREDICTIONS_MULTIPLE
                part["max_predictions"] = min(bound, part["labels"].numel())
            parts.append((part, labelled / items))
        return parts, tokens

    def _own(self, step: int, rows: Rows) -> Rows:
        """Of a step's rows (B, ...) those of this process, (micro-batches, B / micro-batches of all processes, ...)."""
        expected = self.size * self.count * self.processes
        if len(rows) == 0 or len(rows) % expected:
            raise ValueError(
                f"Step {step} has {len(rows)} sequences, the loop needs {expected} (batch size x accumulation x processes), or a "
                "multiple where a step cuts them into shorter ones."
            )
        return rows.reshape(self.count, self.processes, -1, *rows.shape[1:])[:, self.process]


def _labelled_items(batch: dict[str, torch.Tensor]) -> int:
    """How many items a model's mean loss averages over: labels that are not -100, or sequences."""
    if "labels" in batch:
        return max(1, int(np.count_nonzero(batch["labels"].numpy() != -100)))  # torch would take the training's threads
    return len(next(iter(batch.values())))


def _tokens(batch: dict[str, torch.Tensor]) -> int:
    """Tokens of a batch without padding; time steps of series."""
    if "attention_mask" in batch:
        return int(np.count_nonzero(batch["attention_mask"].numpy()))
    return positions(batch)


def positions(batch: dict[str, torch.Tensor]) -> int:
    """Tokens of a batch with padding; time steps of series, (B, L, C)."""
    return batch["past_values"][..., 0].numel() if "past_values" in batch else batch["input_ids"].numel()


def ahead(batches: Iterable, pin_memory: bool = False) -> Iterator:
    """The same in the same order, the next ones prepared meanwhile by a thread, which ends when the iterator is closed.

    `pin_memory` is for what `MicroBatches` gives, and leaves tensors that lie on a device as they are.
    """
    iterator = iter(batches)

    def prepare() -> Any:
        step = next(iterator, None)
        return _pinned(*step) if pin_memory and step is not None else step

    thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches")
    pending = deque(thread.submit(prepare) for _ in range(_STEPS_AHEAD))
    try:
        while (batch := pending.popleft().result()) is not None:
            pending.append(thread.submit(prepare))
            yield batch
    finally:
        thread.shutdown(cancel_futures=True)


def _pinned(parts: list[tuple[dict[str, Any], float]], tokens: int) -> tuple[list[tuple[dict[str, Any], float]], int]:
    """A step's micro-batches with what lies on the CPU in memory that is copied to a GPU without waiting."""
    return [
        (
            {
                name: value.pin_memory() if torch.is_tensor(value) and value.device.type == "cpu" else value
                for name, value in part.items()
            },
            share,
        )
        for part, share in parts
    ], tokens
