"""How processes share the batches of an evaluation."""

from collections.abc import Iterable, Sequence
from typing import TypeVar

import torch
from accelerate import Accelerator
from accelerate.data_loader import prepare_data_loader
from accelerate.utils import send_to_device
from torch.utils.data import DataLoader


Batch = TypeVar("Batch")


def shard_batches(batches: Sequence[Batch], accelerator: Accelerator) -> Iterable[Batch]:
    """The batches of this process, tensors on its device; for each, hand one row of results to `accelerator.gather_for_metrics`.

    Batch i is that of process i modulo the number of processes, as it is: the padding of a batch, on which an answer may depend, is
    the same on any number of processes. Sharded models run in step: a process without a last batch gets an early one again, whose
    row `gather_for_metrics` drops. It knows the end of this loop alone, so `Accelerator.prepare`, which keeps all loaders, is not used.
    """
    device = accelerator.device
    loader = DataLoader(batches, batch_size=1, collate_fn=lambda one: one[0], pin_memory=device.type == "cuda")
    places = accelerator.num_processes, accelerator.process_index
    return prepare_data_loader(loader, device, *places, put_on_device=True, non_blocking=True)


def on_device(batch: dict[str, torch.Tensor], accelerator: Accelerator) -> dict[str, torch.Tensor]:
    """A batch on this process's device, for whose copies the host does not wait."""
    if accelerator.device.type == "cuda":
        batch = {name: value.pin_memory() if value.device.type == "cpu" else value for name, value in batch.items()}
    return send_to_device(batch, accelerator.device, non_blocking=True)
