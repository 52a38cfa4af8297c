"""Seconds of a step of a given model, interleaved with others."""

import gc
import random
import time
from collections.abc import Hashable
from typing import Literal

import torch
from torch import nn
from transformers.cache_utils import Cache, DynamicCache

from s3bert.training.memory import Step, synchronize


Mode = Literal["inference", "training", "training_step", "generation"]


_SPAN = 0.02  # seconds that one timing lasts at least


def make_step(model: nn.Module, batch: dict[str, torch.Tensor], mode: Mode) -> Step:
    """One step of a model on `batch`, as a function to call again and again.

    Args:
        model: returns hidden states (B, S, H), or logits (B, S, V), first; left in the state of training or evaluation that the mode needs.
        mode: "inference" is a forward without gradients; "training" a forward and the backward of a random weighted sum
            of what it returns; "training_step" also clips the gradients and takes a step of fused AdamW; "generation" is
            a `GenerationStep`.
    """
    if mode == "generation":
        return GenerationStep(model.eval(), batch["input_ids"])
    if mode == "inference":
        model.eval()

        @torch.no_grad()
        def infer():
            model(**batch)

        return infer

    model.train()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    direction = None
    optimizer = torch.optim.AdamW(parameters, lr=1e-6, fused=True) if mode == "training_step" else None

    def train():
        nonlocal direction
        states = model(**batch)[0]
        if direction is None:  # the same for every step; a constant one has no gradient under a LayerNorm
            direction = torch.randn_like(states) / states.numel() ** 0.5
        states.backward(direction)
        if optimizer is not None:
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
        for parameter in parameters:
            parameter.grad = None

    return train


class GenerationStep:
    """The next token of every sequence, greedily and by a cache, as `generate` has it; the first call reads the prompt, (B, S).

    A cache that grows is cut back now and then, so that every step is after S tokens, and a sixteenth more at most.
    """

    def __init__(self, model: nn.Module, prompt: torch.Tensor):
        self.model, self.tokens, self.length = model, prompt, prompt.shape[1]
        self.mask = torch.ones_like(prompt)
        self.cache: Cache | None = None

    @torch.no_grad()
    def __call__(self) -> None:
        output = self.model(
            self.tokens, attention_mask=self.mask, past_key_values=self.cache, use_cache=True, logits_to_keep=1
        )
        self.tokens, self.cache = output.logits.argmax(2), output.past_key_values
        extra = self.cache.get_seq_length() - self.length
        if isinstance(self.cache, DynamicCache) and extra > self.length // 16:
            self.cache.crop(-extra)
            self.mask = self.mask[:, : self.length]
        self.mask = torch.cat([self.mask, torch.ones_like(self.tokens)], 1)

    def cache_bytes(self) -> int:
        """Of the tensors that the cache holds."""
        return _tensor_bytes(self.cache)


def _tensor_bytes(held: object) -> int:
    """Of all tensors within an object."""
    if isinstance(held, torch.Tensor):
        return held.nbytes
    inner = held if isinstance(held, list) else getattr(held, "__dict__", {}).values()
    return sum(map(_tensor_bytes, inner))


def interleaved_seconds(
    steps: dict[Hashable, Step], device: torch.device, rounds: int, min_seconds: float, seed: int = 0
) -> dict[Hashable, list[float]]:
    """Wall-clock seconds of a call of each step in every round, the steps in a random order each round.

    What disturbs the machine for longer than a round disturbs all alike, so the steps compare round by round. There are at
    least `rounds` rounds, and so many that each step ran for `min_seconds` in all; a step that takes less than 20 ms is
    called several times in a row and the mean counts. Call each step before: a first call loads, compiles, allocates.
    """

    def seconds_of(name: Hashable, calls: int) -> float:
        synchronize(device)
        start = time.perf_counter()
        for _ in range(calls):
            steps[name]()
        synchronize(device)
        return time.perf_counter() - start

    order, generator = list(steps), random.Random(seed)
    calls = {name: max(1, round(_SPAN / min(seconds_of(name, 1) for _ in range(2)))) for name in steps}
    spans = {name: [] for name in steps}
    gc.collect()
    gc.freeze()  # so that a collection before each round looks at what the rounds left, not at all that is loaded
    gc.disable()
    try:
        while len(spans[order[0]]) < rounds or min(map(sum, spans.values())) < min_seconds:
            generator.shuffle(order)
            gc.collect()
            for name in order:
                spans[name].append(seconds_of(name, calls[name]))
    finally:
        gc.enable()
        gc.unfreeze()
    return {name: [span / calls[name] for span in spans[name]] for name in steps}
