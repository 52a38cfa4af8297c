"""The copy task: a random word of random length, then the same word again, which has to be predicted.

The task of Katharopoulos et al. (ICML 2020, section 4.1) as FMMformer's program draws it (Nguyen et al., NeurIPS 2021, Figures 4 and 5): where
the second word begins differs from sequence to sequence, so a model has to find it, not only to look back by so many places; and the loss
is that of the second word alone.

A sequence is `| word | word`, then padding up to S tokens. Symbols are 1 to C, the separator is C + 1, padding is 0.
"""

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn
from torch.nn import functional as F

from .evaluation import shard_batches


_IGNORED = -100  # of labels: no loss, not counted


class CopyBatches:
    """Endless batches, `[step]` a pure function of (seed, step): `input_ids` and `labels`, each (B, S).

    A label is the next token where that is of the second word, -100 elsewhere. Words have S/4 to S/2 - 1 symbols, all lengths equally likely.

    Args:
        length: S, even. num_symbols: C. batch_size: B. seed: of all words. steps: what to call an epoch.

    Raises:
        ValueError: S is odd or has no room for a word; there are no symbols.
    """

    def __init__(self, length: int, num_symbols: int, batch_size: int, seed: int, steps: int):
        if length < 4 or length % 2:
            raise ValueError(
                f"length = {length}: two separators and a word twice take an even number of tokens, 4 at least."
            )
        if num_symbols < 1:
            raise ValueError(f"num_symbols = {num_symbols}: give at least 1.")
        self.length, self.num_symbols, self.batch_size = length, num_symbols, batch_size
        self.seed, self.steps = seed, steps

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, step: int) -> dict[str, torch.Tensor]:
        generator = np.random.default_rng([self.seed, step])
        longest = self.length // 2 - 1
        words = generator.integers(1, self.num_symbols + 1, (self.batch_size, longest))
        sizes = 1 + generator.integers(self.length // 4, longest + 1, (self.batch_size, 1))  # with the separator
        places = np.arange(self.length + 1)[None]  # one more than there are, for the last label
        within = places % sizes
        tokens = np.where(within == 0, self.num_symbols + 1, np.take_along_axis(words, np.maximum(within, 1) - 1, 1))
        tokens = np.where(places < 2 * sizes, tokens, 0)
        second = (places > sizes) & (places < 2 * sizes)
        labels = np.where(second, tokens, _IGNORED)
        return {"input_ids": torch.from_numpy(tokens[:, :-1]), "labels": torch.from_numpy(labels[:, 1:])}


class CopyEvaluation:
    """Loss (nats) and accuracy per symbol of the second words of fixed batches, for `training.train` to call; accuracy is the `score`."""

    def __init__(self, batches: CopyBatches, num_batches: int):
        self.batches = [batches[step] for step in range(num_batches)]

    @torch.no_grad()
    def __call__(self, model: nn.Module, accelerator: Accelerator) -> dict[str, float]:
        sums = torch.zeros(3, device=accelerator.device)  # loss, right predictions, predictions
        for batch in shard_batches(self.batches, accelerator):
            logits, labels = model(input_ids=batch["input_ids"]).logits.float(), batch["labels"]
            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=_IGNORED, reduction="sum")
            row = torch.stack([loss, (logits.argmax(-1) == labels).sum(), (labels != _IGNORED).sum()])
            sums += accelerator.gather_for_metrics(row[None]).sum(0)
        loss, right, count = sums.tolist()
        return {"loss": loss / count, "accuracy": right / count, "score": right / count}
