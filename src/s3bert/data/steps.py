"""The blocks that each optimiser step of a run reads: `[step]` is an array (batch_size, block_size), a pure function of (seed, step)."""

from typing import Protocol

import numpy as np

from .blocks import Blocks
from .streaming import StreamingCorpus


class Steps(Protocol):
    """The length is the steps of an epoch; `seed` is that of the order."""

    seed: int

    def __len__(self) -> int: ...

    def __getitem__(self, step: int) -> np.ndarray: ...


class PackedSteps:
    """Of a prepared corpus; epochs follow one another without a gap.

    Args:
        blocks: a corpus split. batch_size: blocks of a global batch. seed: of their order.
    """

    def __init__(self, blocks: Blocks, batch_size: int, seed: int):
        self.blocks, self.batch_size, self.seed = blocks, batch_size, seed
        self._orders: dict[int, np.ndarray] = {}

    def __len__(self) -> int:
        return max(1, -(-len(self.blocks) // self.batch_size))

    def __getitem__(self, step: int) -> np.ndarray:
        first = step * self.batch_size
        return np.stack([self.blocks[self._block(i)] for i in range(first, first + self.batch_size)])

    def _block(self, position: int) -> int:
        """Which block comes at a position of the endless sequence of reshuffled epochs."""
        epoch, place = divmod(position, len(self.blocks))
        if epoch not in self._orders:
            self._orders = {e: order for e, order in self._orders.items() if e == epoch - 1}
            self._orders[epoch] = self.blocks.draw(self.seed, epoch)
        return int(self._orders[epoch][place])


class StreamedSteps:
    """Of a corpus that is streamed: steps come in order, and going back or ahead means reading again.

    Args:
        corpus, split: what to stream. batch_size: blocks of a global batch. seed: of their order. steps_per_epoch: what to call an
            epoch, as a stream has no known length.
    """

    def __init__(self, corpus: StreamingCorpus, split: str, batch_size: int, seed: int, steps_per_epoch: int):
        self.corpus, self.split, self.batch_size, self.seed = corpus, split, batch_size, seed
        self.steps_per_epoch = steps_per_epoch
        self._next_step, self._stream = None, None

    def __len__(self) -> int:
        return self.steps_per_epoch

    def __getitem__(self, step: int) -> np.ndarray:
        if step != self._next_step:
            self._stream = self.corpus.blocks(self.split, seed=self.seed, skip=step * self.batch_size)
        blocks = np.stack([next(self._stream) for _ in range(self.batch_size)])
        self._next_step = step + 1
        return blocks
