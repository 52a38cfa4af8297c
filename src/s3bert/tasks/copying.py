"""The copy task: a random word, then the same word again, which has to be predicted (Katharopoulos et al., 2020, section 4.1).

A sequence is `| word | word`, S tokens with the separator twice; what a causal model can know is the second word. Symbols are 1 to C, the
separator is C + 1, and there is no padding.
"""

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn
from torch.nn import functional as F


class CopyBatches:
    """Endless batches, `[step]` a pure function of (seed, step): `input_ids` (B, S - 1) and the next tokens as `labels`.

    Args:
        length: S, even. num_symbols: C. batch_size: B. seed: of all words. steps: what to call an epoch.

    Raises:
        ValueError: S is odd or has no room for a word.
    """

    def __init__(self, length: int, num_symbols: int, batch_size: int, seed: int, steps: int):
        if length < 4 or length % 2:
            raise ValueError(
                f"length = {length}: two separators and a word twice take an even number of tokens, 4 at least."
            )
        self.length, self.num_symbols, self.batch_size = length, num_symbols, batch_size
        self.seed, self.steps = seed, steps

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, step: int) -> dict[str, torch.Tensor]:
        generator = np.random.default_rng([self.seed, step])
        words = generator.integers(1, self.num_symbols + 1, (self.batch_size, self.length // 2 - 1))
        half = np.pad(words, ((0, 0), (1, 0)), constant_values=self.num_symbols + 1)
        tokens = torch.from_numpy(np.concatenate([half, half], 1))  # (B, S)
        return {"input_ids": tokens[:, :-1], "labels": tokens[:, 1:]}


class CopyEvaluation:
    """Loss (nats) and accuracy on the second words of fixed batches, for `training.train` to call; accuracy is the `score`."""

    def __init__(self, batches: CopyBatches, num_batches: int):
        self.batches = [batches[step] for step in range(num_batches)]
        self.first = batches.length // 2  # the place from which on labels are the second word

    @torch.no_grad()
    def __call__(self, model: nn.Module, accelerator: Accelerator) -> dict[str, float]:
        losses, right = [], []
        for batch in self.batches:
            logits = model(input_ids=batch["input_ids"].to(accelerator.device)).logits[:, self.first :].float().cpu()
            labels = batch["labels"][:, self.first :]
            losses.append(F.cross_entropy(logits.flatten(0, 1), labels.flatten()))
            right.append((logits.argmax(2) == labels).float().mean())
        accuracy = torch.stack(right).mean().item()
        return {"loss": torch.stack(losses).mean().item(), "accuracy": accuracy, "score": accuracy}
