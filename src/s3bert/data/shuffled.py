"""The batches of a run over a table of rows: reshuffled epochs, each batch a pure function of (seed, step)."""

from typing import Protocol

import numpy as np
import torch


_WINDOW_STEPS = 50  # batches whose rows are sorted by length together: enough for little padding, few for enough chance


class Rows(Protocol):
    """A table: its number of rows, their `lengths` in tokens (rows,), and the padded batch of any of them."""

    lengths: np.ndarray

    def __len__(self) -> int: ...

    def batch(self, chosen: np.ndarray) -> dict[str, torch.Tensor]: ...


class ShuffledBatches:
    """The global batches of a run; epochs follow one another without partial batches.

    Args:
        rows: the training split. batch_size: rows of a global batch. seed: their order.
        group_by_length: cut each stretch of 50 batches (an epoch, if that is shorter) of the shuffled rows by length, so that
            little is padded; the batches of a stretch then come in random order. Every row comes as often as without.
    """

    def __init__(self, rows: Rows, batch_size: int, seed: int, group_by_length: bool = False):
        self.rows, self.batch_size, self.seed = rows, batch_size, seed
        self.window = min(_WINDOW_STEPS, len(self)) if group_by_length else 1
        self._cached: tuple[int, np.ndarray] = (-1, np.empty(0, int))
        self._permutations: dict[int, np.ndarray] = {}

    def __len__(self) -> int:
        """Optimiser steps of an epoch."""
        return -(-len(self.rows) // self.batch_size)

    def __getitem__(self, step: int) -> dict[str, torch.Tensor]:
        window, place = divmod(step, self.window)
        if window != self._cached[0]:
            self._cached = (window, self._order(window))
        return self.rows.batch(self._cached[1][place])

    def _order(self, window: int) -> np.ndarray:
        """Row numbers of the batches of a window, (steps of a window, B)."""
        size, total = self.window * self.batch_size, len(self.rows)
        positions = np.arange(window * size, (window + 1) * size)  # in the endless sequence of shuffled epochs
        chosen = np.empty(size, int)
        for epoch in range(positions[0] // total, positions[-1] // total + 1):
            inside = positions // total == epoch
            chosen[inside] = self._permutation(epoch)[positions[inside] % total]
        if self.window == 1:
            return chosen[None]
        batches = chosen[np.argsort(self.rows.lengths[chosen], kind="stable")].reshape(self.window, -1)
        return np.random.default_rng([self.seed, window, 1]).permutation(batches)

    def _permutation(self, epoch: int) -> np.ndarray:
        if epoch not in self._permutations:
            self._permutations = {e: order for e, order in self._permutations.items() if e == epoch - 1}
            self._permutations[epoch] = np.random.default_rng([self.seed, epoch]).permutation(len(self.rows))
        return self._permutations[epoch]
