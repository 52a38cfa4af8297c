"""Causal language modelling: blocks of tokens to batches, and what held-out text says of a model."""

from collections.abc import Callable

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn

from s3bert.data.blocks import Blocks
from s3bert.data.steps import Steps

from .evaluation import shard_batches


def causal_batch(tokens: np.ndarray) -> dict[str, torch.Tensor]:
    """Token ids (..., S) -> `input_ids` and `labels` (..., S), which models shift: nothing predicts the first token, whose label is -100."""
    inputs = torch.from_numpy(tokens.astype(np.int64))
    labels = inputs.clone()
    labels[..., 0] = -100
    return {"input_ids": inputs, "labels": labels}


class ClmBatches:
    """The batches of a run, of which a process may make its own rows alone.

    Args:
        steps: the blocks of each step.
    """

    def __init__(self, steps: Steps):
        self.steps = steps

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, step: int) -> dict[str, torch.Tensor]:
        return causal_batch(self.steps[step])

    def share(self, step: int, own: Callable[[np.ndarray], np.ndarray]) -> tuple[dict[str, torch.Tensor], int, int]:
        """`[step]` of the rows that `own` takes alone, and how many tokens of all are predicted, and there."""
        tokens = self.steps[step]
        return causal_batch(own(tokens)), tokens.size - len(tokens), tokens.size


class ClmEvaluation:
    """The loss (nats) and perplexity of a model on a fixed set of blocks, each read alone.

    Args:
        blocks: the held-out split. batch_size: blocks at once on one process. max_blocks: how many to use at most, spread evenly over the
            split.
    """

    def __init__(self, blocks: Blocks, batch_size: int, max_blocks: int | None = None):
        count = len(blocks) if max_blocks is None else min(max_blocks, len(blocks))
        chosen = np.linspace(0, len(blocks) - 1, count).astype(int)
        parts = [chosen[start : start + batch_size] for start in range(0, count, batch_size)]
        self.batches = [causal_batch(np.stack([blocks[i] for i in part])) for part in parts]

    @torch.no_grad()
    def __call__(self, model: nn.Module, accelerator: Accelerator) -> dict[str, float]:
        """Evaluates on all processes together; every process gets the same metrics."""
        sums = torch.zeros(2, dtype=torch.float32, device=accelerator.device)  # loss, predictions
        for batch in shard_batches(self.batches, accelerator):
            count = batch["labels"][:, 1:].numel()
            loss = model(**batch, use_cache=False).loss.float()
            sums += accelerator.gather_for_metrics(torch.stack([loss * count, loss.new_full((), count)])[None]).sum(0)
        loss, count = sums.tolist()
        return {"loss": loss / count, "perplexity": float(np.exp(min(loss / count, 700.0)))}
