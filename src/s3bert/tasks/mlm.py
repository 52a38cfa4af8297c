"""Masked language modelling: blocks of tokens to masked batches, and what held-out text says of a model.

Masking is BERT's (15% of the tokens, of these 80% [MASK], 10% a random token, 10% unchanged; special tokens never),
dynamic, and drawn for the global batch of a step from (seed, step): the same for any number of processes and workers.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn
from transformers import PreTrainedTokenizerBase

from s3bert.data.blocks import Blocks
from s3bert.data.steps import Steps

from .evaluation import shard_batches


class Masking:
    """Draws labels and masked inputs.

    Args:
        vocab_size: ids, of which random ones are drawn. mask_token_id: what stands for most tokens to predict.
        special_ids: ids that are never predicted.
        mlm_probability: share of tokens to predict; each sequence has at least one.

    Raises:
        ValueError: the probability is not between 0 and 1.
    """

    def __init__(self, vocab_size: int, mask_token_id: int, special_ids: list[int], mlm_probability: float = 0.15):
        if not 0 < mlm_probability < 1:
            raise ValueError(f"mlm_probability = {mlm_probability}: give a share between 0 and 1, usually 0.15.")
        self.mlm_probability = mlm_probability
        self.mask_token_id = mask_token_id
        self.vocab_size = vocab_size
        self.special = np.isin(np.arange(vocab_size), special_ids)

    @classmethod
    def for_tokenizer(cls, tokenizer: PreTrainedTokenizerBase, mlm_probability: float = 0.15) -> "Masking":
        """With a tokenizer's vocabulary, mask token and special tokens.

        Raises:
            ValueError: the tokenizer has no mask token.
        """
        if tokenizer.mask_token_id is None:
            raise ValueError("This tokenizer has no mask token: masked language modelling needs one, as BERT's [MASK].")
        return cls(len(tokenizer), tokenizer.mask_token_id, tokenizer.all_special_ids, mlm_probability)

    def __call__(self, tokens: np.ndarray, generator: np.random.Generator) -> dict[str, torch.Tensor]:
        """(B, S) token ids -> `input_ids` and `labels` (B, S), labels -100 where nothing is predicted."""
        return self.share(tokens, generator, lambda rows: rows)[0]

    def share(
        self, tokens: np.ndarray, generator: np.random.Generator, own: Callable[[np.ndarray], np.ndarray]
    ) -> tuple[dict[str, torch.Tensor], int]:
        """The same of the rows that `own` takes alone, and how many tokens of all (B, S) are predicted.

        Random numbers are drawn for all rows, which costs little: so they are the same whichever rows are taken.
        """
        chances = generator.random(tokens.shape, dtype=np.float32)
        chances[self.special[tokens]] = 2  # never
        # At least the likeliest token of each sequence: a mean over no labels would be NaN in most models.
        threshold = np.maximum(self.mlm_probability, chances.min(1, keepdims=True) + np.finfo(np.float32).eps)
        predicted = (chances < threshold) & (chances < 1)
        fate = own(generator.random(tokens.shape, dtype=np.float32))
        random_tokens = own(generator.integers(self.vocab_size, size=tokens.shape))
        count = int(np.count_nonzero(predicted))
        inputs, predicted = own(tokens).astype(np.int64), own(predicted)
        labels = np.where(predicted, inputs, -100)
        inputs = np.where(predicted & (fate < 0.8), self.mask_token_id, inputs)
        inputs = np.where(predicted & (fate >= 0.9), random_tokens, inputs)
        return {"input_ids": torch.from_numpy(inputs), "labels": torch.from_numpy(labels)}, count


@dataclass(frozen=True)
class ShortSequences:
    """Cuts the blocks of the first steps into shorter sequences; a step keeps its tokens.

    Attention that starts out uniform gives a neighbour 1/S of the weight, so what tells it to look there is weaker the longer
    the sequence is, and a small BERT may stay near the unigram entropy for tens of millions of tokens. BERT itself was trained
    on short sequences first (Devlin et al., appendix A.2). From 16 to 1,024 tokens at once a small BERT forgets most of what it had learnt; by
    way of 128 less.

    Args:
        lengths: tokens of a short sequence; several follow one another, each for as many steps.
        steps: how many optimiser steps read short sequences. block_size: tokens of a whole block.

    Raises:
        ValueError: blocks cannot be cut into pieces of such a length.
    """

    lengths: Sequence[int]
    steps: int
    block_size: int

    def __post_init__(self):
        for length in self.lengths:
            if length < 2 or self.block_size % length:
                pieces = [n for n in range(2, self.block_size) if self.block_size % n == 0]
                raise ValueError(
                    f"short_seq_length = {length}: blocks of {self.block_size} tokens are cut into {', '.join(map(str, pieces))}."
                )

    def __call__(self, tokens: np.ndarray, step: int) -> np.ndarray:
        """(B, S) -> (B S / length, length) for the first steps, unchanged (B, S) then."""
        if step >= self.steps:
            return tokens
        return tokens.reshape(-1, self.lengths[step * len(self.lengths) // self.steps])


class MlmBatches:
    """The masked batches of a run, `[step]` a pure function of (seed, step), of which a process may make its own rows alone.

    Args:
        steps: the blocks of each step; their seed is that of the masks too. masking: how to mask. short: cuts the blocks of the first steps.
    """

    def __init__(self, steps: Steps, masking: Masking, short: ShortSequences | None = None):
        self.steps, self.masking, self.short = steps, masking, short

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, step: int) -> dict[str, torch.Tensor]:
        return self.share(step, lambda rows: rows)[0]

    def share(self, step: int, own: Callable[[np.ndarray], np.ndarray]) -> tuple[dict[str, torch.Tensor], int, int]:
        """`[step]` of the rows that `own` takes alone, and how many tokens of all are predicted, and there."""
        tokens = self.steps[step]
        tokens = self.short(tokens, step) if self.short else tokens
        batch, predicted = self.masking.share(tokens, np.random.default_rng([self.steps.seed, step]), own)
        return batch, max(1, predicted), tokens.size


class MlmEvaluation:
    """The masked-LM loss (nats), perplexity and accuracy of a model on a fixed set of blocks under fixed masks.

    Args:
        blocks: the held-out split. masking: how to mask. batch_size: sequences at once on one process.
        max_blocks: how many blocks to use at most, spread evenly over the split.

    Raises:
        ValueError: no block has a token to predict, as where the tokenizer knows none of the text's words.
    """

    def __init__(self, blocks: Blocks, masking: Masking, batch_size: int, max_blocks: int | None = None):
        count = len(blocks) if max_blocks is None else min(max_blocks, len(blocks))
        chosen = np.linspace(0, len(blocks) - 1, count).astype(int)
        self.batches = []
        for start in range(0, count, batch_size):
            tokens = np.stack([blocks[i] for i in chosen[start : start + batch_size]])
            batch = masking(tokens, np.random.default_rng([0, start]))
            places = (batch["labels"].flatten() != -100).nonzero()[
                :, 0
            ]  # known here, they need not be found on a device
            self.batches.append(batch | {"places": places, "targets": batch["labels"].flatten()[places]})
        if not any(len(batch["targets"]) for batch in self.batches):
            raise ValueError(
                "The held-out blocks have no token to predict, special and unknown ones alone: give text that the tokenizer knows, or "
                "another --tokenizer_name."
            )

    @torch.no_grad()
    def __call__(self, model: nn.Module, accelerator: Accelerator) -> dict[str, float]:
        """Evaluates on all processes together; every process gets the same metrics."""
        sums = torch.zeros(3, dtype=torch.float32, device=accelerator.device)  # loss, right predictions, predictions
        sparse = _decodes_labelled_positions(getattr(model, "module", model))  # DistributedDataParallel's
        for batch in shard_batches(self.batches, accelerator):
            targets = batch["targets"]
            asked = {"labels": batch["labels"], "max_predictions": len(targets)} if sparse else {}
            logits = model(input_ids=batch["input_ids"], **asked).logits
            logits = (logits if sparse else logits.flatten(0, 1).index_select(0, batch["places"])).float()  # (P, V)
            loss = nn.functional.cross_entropy(logits, targets, reduction="sum")
            row = torch.stack([loss, (logits.argmax(-1) == targets).sum(), loss.new_full((), len(targets))])
            sums += accelerator.gather_for_metrics(row[None]).sum(0)
        loss, right, count = sums.tolist()
        mean = loss / count
        return {"loss": mean, "perplexity": float(np.exp(min(mean, 700.0))), "accuracy": right / count}


def _decodes_labelled_positions(model: nn.Module) -> bool:
    """Whether it gives logits of labelled positions alone where it is told how many there are."""
    takes = "max_predictions" in inspect.signature(model.forward).parameters
    return takes and getattr(model.config, "sparse_prediction", True)
