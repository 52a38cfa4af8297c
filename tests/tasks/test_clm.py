"""Batches of causal language models, and held-out losses."""

import numpy as np
import pytest
import torch
from accelerate import Accelerator

from s3bert import FmmConfig, FmmForCausalLM
from s3bert.data.steps import PackedSteps
from s3bert.tasks.clm import ClmBatches, ClmEvaluation
from s3bert.training.micro_batches import MicroBatches


class RandomBlocks:
    """So many blocks of twelve of a hundred ids."""

    def __len__(self) -> int:
        return 21

    def __getitem__(self, index: int) -> np.ndarray:
        return np.random.default_rng(index).integers(100, size=12).astype(np.uint16)

    def draw(self, seed: int, epoch: int) -> np.ndarray:
        return np.random.default_rng([seed, epoch]).permutation(len(self))


@pytest.fixture
def model() -> FmmForCausalLM:
    torch.manual_seed(0)
    sizes = dict(vocab_size=100, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    return FmmForCausalLM(FmmConfig(**sizes, bandwidth=3)).eval()


def cross_entropy(model: FmmForCausalLM, tokens: torch.Tensor) -> torch.Tensor:
    """Of each token after the first, (B, S - 1)."""
    chances = model(tokens).logits.double().log_softmax(-1)[:, :-1]
    return -chances.gather(-1, tokens[:, 1:, None])[..., 0]


@pytest.mark.parametrize(("processes", "count"), [(1, 1), (1, 4), (2, 2)])
def test_micro_batches_of_any_number_of_processes_sum_to_the_loss_of_the_global_batch(processes, count, model):
    batches = ClmBatches(PackedSteps(RandomBlocks(), 8, seed=3))
    whole = cross_entropy(model, batches[1]["input_ids"]).mean()
    loss = 0.0
    for process in range(processes):
        parts, tokens = MicroBatches(batches, 8 // processes // count, count, process, processes, model)[1]
        assert tokens == 8 * 12
        loss += sum(share * model(**part).loss for part, share in parts)
    assert loss.item() == pytest.approx(whole.item(), rel=1e-6)


def test_held_out_loss_is_the_mean_over_the_tokens_after_the_first_of_each_block(model):
    held_out = ClmEvaluation(RandomBlocks(), batch_size=4, max_blocks=10)
    inputs = torch.cat([batch["input_ids"] for batch in held_out.batches])
    assert len(inputs) == 10
    expected = cross_entropy(model, inputs).mean().item()
    metrics = held_out(model, Accelerator())
    assert metrics == {
        "loss": pytest.approx(expected, rel=1e-6),
        "perplexity": pytest.approx(np.exp(expected), rel=1e-5),
    }
