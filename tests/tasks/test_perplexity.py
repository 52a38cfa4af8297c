"""Perplexity: sliding windows give each token the loss of its window alone; a known model's perplexity; intervals that hold what is known."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from s3bert import FmmConfig, FmmForCausalLM
from s3bert.tasks.perplexity import Windows, bootstrap, losses_by_context, paired_bootstrap, token_losses


VOCABULARY, LENGTH = 37, 12
CPU = torch.device("cpu")


def fmm(**settings) -> FmmForCausalLM:
    sizes = dict(vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=2, num_attention_heads=2)
    return FmmForCausalLM(FmmConfig(**sizes, intermediate_size=16, initializer_range=0.5, **settings)).eval()


def gpt2() -> GPT2LMHeadModel:
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=16, n_layer=2, n_head=2, initializer_range=0.5
    )
    return GPT2LMHeadModel(config).eval()


class Uniform(nn.Module):
    """Knows nothing; its forward takes ids alone."""

    def forward(self, input_ids: torch.Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=torch.zeros(*input_ids.shape, VOCABULARY))


MODELS = {
    "band and kernel": lambda: fmm(bandwidth=4, kernels=["elu"]),
    "adaptive softmax": lambda: fmm(
        bandwidth=0, kernels=["delta_elu"], adaptive_cutoffs=[10, 20], adaptive_div_value=2
    ),
    "gpt2": gpt2,
}


def a_window_at_a_time(model: nn.Module, ids: np.ndarray, stride: int) -> list[tuple[float, int]]:
    """Each token's loss and context by the definition, all logits of one window after the other."""
    found: list[tuple[float, int]] = []
    for begin in range(0, len(ids), stride):
        window = torch.from_numpy(ids[begin : begin + LENGTH])
        if begin + len(window) == len(ids):
            window = window[:-1]  # which has nothing to predict
        with torch.no_grad():
            logs = model(window[None]).logits[0].log_softmax(1) if len(window) else torch.empty(0)
        for place in range(len(window)):
            if begin + place == len(found):
                found.append((-logs[place, ids[begin + place + 1]].item(), place + 1))
    return found


@pytest.mark.parametrize("stride", [1, 3, LENGTH])
@pytest.mark.parametrize("model", MODELS.values(), ids=list(MODELS))
def test_losses_of_sliding_windows_are_those_of_each_window_alone(model, stride):
    ids = np.random.default_rng(0).integers(VOCABULARY, size=41)
    model = model()
    expected = a_window_at_a_time(model, ids, stride)
    windows = Windows(len(ids), LENGTH, stride)
    found = np.concatenate([*token_losses(model, ids, windows, 4, CPU)])
    assert found.dtype == np.float32
    assert len(expected) == 40
    np.testing.assert_allclose(found, [loss for loss, _ in expected], rtol=1e-5, atol=1e-5)
    assert windows.context().tolist() == [context for _, context in expected]
    assert np.ptp(found) > 1, "losses differ"


@pytest.mark.parametrize("num_tokens", [2, LENGTH, LENGTH + 1, LENGTH + 2, 3 * LENGTH + 1])
@pytest.mark.parametrize("stride", [1, 5, LENGTH])
def test_every_token_but_the_first_is_counted_once_in_order_and_from_any_batch_on(num_tokens, stride):
    windows = Windows(num_tokens, LENGTH, stride)
    batches = list(windows.batches(3))
    assert sum(len(batch.begins) for batch in batches) == len(windows)
    places = [
        begin + batch.length - batch.counted + i + 1
        for batch in batches
        for begin in batch.begins
        for i in range(batch.counted)
    ]
    assert places == list(range(1, num_tokens))
    scored = 0
    for number, batch in enumerate(batches):
        left = [(list(rest.begins), rest.length, rest.counted) for rest in windows.batches(3, scored)]
        assert left == [(list(rest.begins), rest.length, rest.counted) for rest in batches[number:]]
        scored += len(batch.begins) * batch.counted


def test_only_counted_positions_are_decoded():
    decoded = []
    model = gpt2()
    model.lm_head.register_forward_hook(lambda module, inputs, output: decoded.append(output.shape[1]))
    list(token_losses(model, np.arange(30) % VOCABULARY, Windows(30, LENGTH, 3), 2, CPU))
    assert set(decoded) == {LENGTH, 3, 2}


def test_a_model_that_knows_nothing_has_the_vocabularys_perplexity():
    ids = np.random.default_rng(1).integers(VOCABULARY, size=100)
    losses = np.concatenate([*token_losses(Uniform(), ids, Windows(100, LENGTH, 5), 4, CPU)])
    assert losses.shape == (99,)
    assert math.exp(losses.mean(dtype=np.float64)) == pytest.approx(VOCABULARY, rel=1e-6)


def test_a_loss_that_is_not_finite_is_named_with_its_token():
    model = gpt2()
    model.lm_head = nn.Linear(16, VOCABULARY, bias=True)
    with torch.no_grad():
        model.lm_head.bias[9] = -torch.inf
    ids = np.array([1, 2, 3, 9, 4])
    with pytest.raises(ValueError, match="gives token 3 of the text, id 9, no finite loss"):
        list(token_losses(model, ids, Windows(5, LENGTH, 1), 1, CPU))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((1, 8, 8), "The text has 1 tokens, the first of which has no prediction"),
        ((9, 8, 9), "stride = 9: a window reads 8 tokens; give 1 to 8"),
    ],
)
def test_windows_that_cannot_be_are_refused(sizes, message):
    with pytest.raises(ValueError, match=message):
        Windows(*sizes)


def test_losses_are_averaged_by_context():
    entries = losses_by_context(np.array([5, 4, 3, 1, 2, 2, 7]), np.array([1, 2, 3, 4, 5, 8, 1]))
    assert [tuple(entry.values()) for entry in entries] == [
        (1, 1, 2, 6.0),
        (2, 2, 1, 4.0),
        (3, 4, 2, 2.0),
        (5, 8, 2, 2.0),
    ]


def documents_of_losses(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Losses of 60 documents of other lengths and difficulties, whose mean is about 4."""
    draws = np.random.default_rng(seed)
    lengths = draws.integers(5, 80, size=60)
    document_ids = np.repeat(np.arange(60), lengths)
    return (4 + np.repeat(draws.normal(size=60), lengths) + draws.normal(size=len(document_ids))).astype(
        np.float32
    ), document_ids


def test_the_interval_of_a_known_mean_holds_it_nineteen_times_in_twenty():
    intervals = [bootstrap(*documents_of_losses(seed), num_resamples=300) for seed in range(200)]
    held = np.mean([interval.low <= 4 <= interval.high for interval in intervals])
    assert 0.88 <= held <= 0.99
    losses, _ = documents_of_losses(0)
    assert intervals[0].mean == pytest.approx(losses.mean(dtype=np.float64), rel=1e-12)
    alone = bootstrap(losses, np.arange(len(losses)), num_resamples=300)
    assert alone.high - alone.low < (intervals[0].high - intervals[0].low) / 2, "tokens of a document hang together"


def test_a_paired_difference_is_found_where_the_models_own_intervals_overlap():
    losses, document_ids = documents_of_losses(3)
    better = losses - 0.05 - np.random.default_rng(4).normal(scale=0.1, size=len(losses))
    difference = paired_bootstrap(losses, better, document_ids)
    assert difference.mean == pytest.approx((losses - better).mean())
    assert 0 < difference.low < 0.05 < difference.high
    assert bootstrap(losses, document_ids).low < bootstrap(better, document_ids).high
    assert paired_bootstrap(losses, better, document_ids) == difference, "the same draws"
    assert paired_bootstrap(better, losses, document_ids).mean == -difference.mean


def test_what_has_no_interval_is_told():
    with pytest.raises(ValueError, match="over documents, and there is 1"):
        bootstrap(np.ones(5), np.zeros(5))
    with pytest.raises(ValueError, match="5 and 4 losses of 5 tokens"):
        paired_bootstrap(np.ones(5), np.ones(4), np.arange(5))
