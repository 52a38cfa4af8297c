"""How processes share the batches of an evaluation."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

from accelerate import Accelerator


Batch = TypeVar("Batch")


def own_share(batches: Sequence[Batch], accelerator: Accelerator) -> Iterator[tuple[Batch, bool]]:
    """The batches of this process, each with whether it counts.

    Every process gets as many as any other, for sharded models must run in step; what a process gets for that alone, another
    one has counted.
    """
    for i in range(-(-len(batches) // accelerator.num_processes)):
        index = i * accelerator.num_processes + accelerator.process_index
        yield batches[index % len(batches)], index < len(batches)
