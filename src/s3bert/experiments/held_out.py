"""Held-out text for a look into a trained model."""

import numpy as np
import torch
from transformers import PreTrainedConfig

from s3bert.data.corpus import Corpus
from s3bert.training.finetuning import longest_input


def held_out_sequences(corpus: Corpus, config: PreTrainedConfig, length: int, count: int) -> torch.Tensor:
    """The first tokens of `count` held-out blocks from all over the text, or of as many as there are, (B, length).

    Raises:
        ValueError: the corpus's blocks or the model's positions end before, or the corpus has ids that the model has not.
    """
    limits = {"blocks of this corpus": corpus.block_size, "positions of this model": longest_input(config)}
    for what, limit in limits.items():
        if length > limit:
            raise ValueError(f"{length} tokens a sequence: {what} end at {limit}; give lengths up to that.")
    if corpus.vocab_size > config.vocab_size:
        raise ValueError(
            f"The corpus has ids up to {corpus.vocab_size}, the model {config.vocab_size}: give --dataset_name its own text."
        )
    blocks = corpus.split("validation")
    count = min(count, len(blocks))
    places = np.arange(count) * len(blocks) // count
    return torch.from_numpy(np.stack([blocks[place][:length] for place in places]).astype(np.int64))
