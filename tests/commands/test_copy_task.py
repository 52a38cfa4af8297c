"""scripts/run_copy_task.py: the words, what is measured of them, and mixers that learn to copy them or cannot."""

import pytest
import torch
from accelerate import Accelerator

from s3bert.commands import run_copy_task
from s3bert.tasks.copying import CopyBatches, CopyEvaluation


def test_a_sequence_is_a_word_twice_and_the_same_step_gives_the_same_words():
    words = CopyBatches(length=14, num_symbols=5, batch_size=64, seed=0, steps=4)
    batch, lengths = words[2], set()
    for tokens, labels in zip(batch["input_ids"].tolist(), batch["labels"].tolist(), strict=True):
        first, second = (place for place, token in enumerate(tokens) if token == 6)
        word, end = tokens[1:second], 2 * second
        assert first == 0
        assert tokens == [6, *word, 6, *word] + [0] * (14 - end)
        assert all(1 <= symbol <= 5 for symbol in word)
        assert labels == [-100] * second + word + [-100] * (14 - end + 1)
        lengths.add(len(word))
    assert lengths == {3, 4, 5, 6}, "from a quarter of the sequence to half of it less the separator"
    again = CopyBatches(14, 5, 64, seed=0, steps=4)
    assert torch.equal(again[2]["input_ids"], batch["input_ids"])
    assert not torch.equal(again[1]["input_ids"], batch["input_ids"])
    with pytest.raises(ValueError, match="length = 7: two separators"):
        CopyBatches(7, 5, 3, 0, 4)


class Oracle(torch.nn.Module):
    """Predicts what stood after the first separator, as far from it as the next token is from the second one."""

    def forward(self, input_ids):
        length = input_ids.shape[1]
        second = (input_ids == 6).long() @ torch.arange(length)  # the first one stands at 0
        source = (torch.arange(1, length + 1) - second[:, None]).clamp(min=0)
        guess = input_ids.gather(1, source)
        return type("Output", (), {"logits": 50.0 * torch.nn.functional.one_hot(guess, 7).float()})


def test_only_the_second_word_is_measured():
    """One who knows where to look is always right, though the first word cannot be known."""
    measured = CopyEvaluation(CopyBatches(14, 5, 64, seed=0, steps=1), 2)(Oracle(), Accelerator())
    assert measured["accuracy"] == 1
    assert measured["loss"] < 1e-6


def test_a_causal_mixer_learns_to_copy(tmp_path):
    words = ["--length", "12", "--num_symbols", "4", "--max_train_steps", "300", "--learning_rate", "5e-3"]
    words += ["--mixer", "fmm:bandwidth=8", "--seed", "1", "--output_dir", str(tmp_path)]
    results = run_copy_task.main(words)
    (trial,) = results["variants"]["fmm:bandwidth=8"]["settings"][0]["trials"]
    assert trial["metrics"]["test_accuracy"] > 0.5, "chance is 0.25"
    assert (tmp_path / "curves.png").exists()
    assert run_copy_task.main(words) == results, "nothing is trained twice"
    with pytest.raises(ValueError, match="num_eval_batches: 8 -> 2"):
        run_copy_task.main([*words, "--num_eval_batches", "2"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--mixer", "s3"], "mixer s3 has no causal form; softmax, linear, performer and fmm have"),
        (["--mixer", "fmm", "fmm"], "one is named twice"),
        (["--mixer", "fmm:bandwidth"], "settings are name=value"),
        (["--mixer", "softmax", "fmm:bandwith=3", "--max_train_steps", "1"], "Mixer fmm has no setting 'bandwith'"),
        (["--length", "127"], "length = 127: two separators"),
        (["--num_symbols", "0"], "num_symbols = 0: must be at least 1"),
        ([], "give --max_train_steps"),
    ],
)
def test_mistakes_are_named_before_anything_is_trained(words, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        run_copy_task.main([*words, "--output_dir", str(tmp_path)])
    assert not list(tmp_path.iterdir())
