"""Masking, the batches of a run, and held-out losses."""

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import BertTokenizer

from s3bert import S3BertConfig, S3BertForMaskedLM
from s3bert.data.steps import PackedSteps
from s3bert.tasks.mlm import Masking, MlmBatches, MlmEvaluation, ShortSequences
from s3bert.training.micro_batches import MicroBatches


WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(95))]
TOKENIZER = BertTokenizer(vocab={word: i for i, word in enumerate(WORDS)})


class NumberedBlocks:
    """Block i is [CLS] i i i ... [SEP], so that a batch tells which blocks it holds."""

    def __init__(self, count: int, length: int = 12):
        self.count, self.length = count, length

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> np.ndarray:
        return np.array([2, *[5 + index] * (self.length - 2), 3], dtype=np.uint16)

    def draw(self, seed: int, epoch: int) -> np.ndarray:
        return np.random.default_rng([seed, epoch]).permutation(self.count)


def originals(batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """The unmasked ids of a batch."""
    return torch.where(batch["labels"] == -100, batch["input_ids"], batch["labels"])


def test_masking_has_berts_proportions_and_spares_special_tokens():
    generator = np.random.default_rng(0)
    tokens = np.where(generator.random((400, 250)) < 0.1, 3, generator.integers(5, 100, (400, 250)))
    batch = Masking.for_tokenizer(TOKENIZER, 0.15)(tokens, generator)
    inputs, labels, tokens = batch["input_ids"], batch["labels"], torch.from_numpy(tokens)
    predicted = labels != -100
    assert torch.equal(originals(batch), tokens)
    assert not predicted[tokens == 3].any()
    assert predicted[tokens != 3].float().mean().item() == pytest.approx(0.15, abs=0.005)
    assert (inputs[predicted] == 4).float().mean().item() == pytest.approx(0.80, abs=0.015)
    assert (inputs[predicted] == tokens[predicted]).float().mean().item() == pytest.approx(0.101, abs=0.012)


@given(st.integers(1, 40), st.integers(3, 30), st.sampled_from([0.01, 0.15, 0.9]), st.integers(0, 99))
@settings(deadline=None, max_examples=60)
def test_every_sequence_has_something_to_predict(sequences, length, probability, seed):
    blocks = NumberedBlocks(sequences, length)
    batch = Masking.for_tokenizer(TOKENIZER, probability)(
        np.stack([blocks[i] for i in range(sequences)]), np.random.default_rng(seed)
    )
    assert (batch["labels"] != -100).any(1).all()
    assert torch.equal(originals(batch)[:, [0, -1]], torch.tensor([[2, 3]]).expand(sequences, -1))


def test_batches_are_a_function_of_seed_and_step_and_epochs_visit_every_block_once():
    blocks, masking = NumberedBlocks(30), Masking.for_tokenizer(TOKENIZER)
    batches = MlmBatches(PackedSteps(blocks, batch_size=7, seed=3), masking)
    assert len(batches) == 5
    forward = [batches[step] for step in range(9)]
    again = MlmBatches(PackedSteps(blocks, batch_size=7, seed=3), masking)
    for step in (8, 2, 0, 5):
        assert torch.equal(again[step]["input_ids"], forward[step]["input_ids"]), "in any order, from a fresh start"
    visited = torch.cat([originals(batch)[:, 1] - 5 for batch in forward])
    assert sorted(visited[:30].tolist()) == sorted(visited[30:60].tolist()) == list(range(30))
    assert not torch.equal(visited[:30], visited[30:60]), "reshuffled"
    other = MlmBatches(PackedSteps(blocks, batch_size=7, seed=4), masking)
    assert not torch.equal(other[0]["labels"], forward[0]["labels"])


def test_the_first_steps_read_the_same_tokens_as_shorter_sequences():
    blocks, masking = NumberedBlocks(30), Masking.for_tokenizer(TOKENIZER)
    short = MlmBatches(PackedSteps(blocks, 7, 3), masking, ShortSequences([4], steps=2, block_size=12))
    whole = MlmBatches(PackedSteps(blocks, 7, 3), masking)
    for step, shape in enumerate([(21, 4), (21, 4), (7, 12)]):
        assert short[step]["input_ids"].shape == shape
        assert torch.equal(originals(short[step]).flatten(), originals(whole[step]).flatten())
        assert (short[step]["labels"] != -100).any(1).all()
    assert torch.equal(short[2]["input_ids"], whole[2]["input_ids"])
    with pytest.raises(ValueError, match="short_seq_length = 5: blocks of 12 tokens are cut into 2, 3, 4, 6"):
        ShortSequences([4, 5], steps=2, block_size=12)


def test_lengths_of_short_sequences_follow_one_another():
    short, tokens = ShortSequences([2, 3, 6], steps=8, block_size=12), np.zeros((1, 12))
    assert [short(tokens, step).shape[1] for step in range(10)] == [2, 2, 2, 3, 3, 3, 6, 6, 12, 12]


@pytest.mark.parametrize("short", [None, ShortSequences([4], steps=1, block_size=12)], ids=["whole", "short"])
@pytest.mark.parametrize(("processes", "count"), [(1, 1), (1, 4), (2, 2), (4, 1)])
def test_a_process_masks_its_own_rows_alone_and_they_are_those_of_the_global_batch(
    short, processes, count, monkeypatch
):
    batches = MlmBatches(PackedSteps(NumberedBlocks(30), 8, 3), Masking.for_tokenizer(TOKENIZER), short)
    whole, made = batches[0], []
    where = np.where
    monkeypatch.setattr(np, "where", lambda *arguments: made.append(where(*arguments).size) or where(*arguments))
    shares, seen = 0.0, []
    for process in range(processes):
        parts, tokens = MicroBatches(
            batches, 8 // processes // count, count, process, processes, torch.nn.Linear(1, 1)
        )[0]
        assert tokens == 8 * 12
        assert set(made) == {8 * 12 // processes}, "nobody else's rows"
        made.clear()
        shares += sum(share for _, share in parts)
        seen.append(parts)
    assert shares == pytest.approx(1)
    for name in ("input_ids", "labels"):
        rows = torch.cat([seen[process][i][0][name] for i in range(count) for process in range(processes)])
        assert torch.equal(rows, whole[name])
    predicted = [(parts[i][0]["labels"] != -100).sum().item() for parts in seen for i in range(count)]
    assert [share for parts in seen for _, share in parts] == [n / sum(predicted) for n in predicted]


class CountUnknownShapes(TorchDispatchMode):
    """Counts operators whose outputs have as many rows as some values say, which the host has to wait for."""

    found = 0

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        chooses = operator is torch.ops.aten.index.Tensor and any(
            i is not None and i.dtype == torch.bool for i in args[1]
        )
        self.found += chooses or operator is torch.ops.aten.nonzero.default
        return operator(*args, **(kwargs or {}))


def test_held_out_figures_are_means_over_predicted_tokens():
    model = S3BertForMaskedLM(
        S3BertConfig(
            vocab_size=100, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
            max_position_embeddings=12,
        )
    ).eval()  # fmt: skip
    held_out = MlmEvaluation(NumberedBlocks(21), Masking.for_tokenizer(TOKENIZER), batch_size=4, max_blocks=10)
    figures = held_out(model, Accelerator())
    inputs, labels = (torch.cat([batch[name] for batch in held_out.batches]) for name in ("input_ids", "labels"))
    assert len(inputs) == 10
    with torch.no_grad():
        logits = model(inputs).logits
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()).item()
    assert figures["loss"] == pytest.approx(expected, rel=1e-5)
    assert figures["perplexity"] == pytest.approx(np.exp(expected), rel=1e-4)
    predicted = labels != -100
    assert figures["accuracy"] == pytest.approx((logits.argmax(-1) == labels)[predicted].float().mean().item())


@pytest.mark.parametrize("sparse", [True, False])
def test_an_evaluation_decodes_what_is_predicted_and_never_waits_to_know_how_many_that_are(sparse):
    sizes = dict(vocab_size=100, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    model = S3BertForMaskedLM(S3BertConfig(**sizes, max_position_embeddings=12, sparse_prediction=sparse)).eval()
    held_out = MlmEvaluation(NumberedBlocks(21), Masking.for_tokenizer(TOKENIZER), batch_size=4, max_blocks=10)
    decoded = []
    model.cls.register_forward_hook(lambda module, inputs, logits: decoded.append(logits.shape[:-1].numel()))
    with CountUnknownShapes() as counter:
        held_out(model, Accelerator())
    predicted = [int((batch["labels"] != -100).sum()) for batch in held_out.batches]
    assert decoded == (predicted if sparse else [4 * 12, 4 * 12, 2 * 12])
    assert counter.found == 0


def test_text_that_the_tokenizer_knows_nothing_of_is_refused():
    unknown = [np.full(12, TOKENIZER.unk_token_id)] * 3
    with pytest.raises(ValueError, match=r"no token to predict, .*: give text that the tokenizer knows, or another"):
        MlmEvaluation(unknown, Masking.for_tokenizer(TOKENIZER), batch_size=2)


@pytest.mark.parametrize("probability", [0, 1, 15])
def test_a_masking_share_outside_0_to_1_is_refused(probability):
    with pytest.raises(ValueError, match=f"mlm_probability = {probability}: give a share between 0 and 1"):
        Masking.for_tokenizer(TOKENIZER, probability)
