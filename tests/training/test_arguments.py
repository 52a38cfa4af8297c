"""How long a run trains and warms up."""

import pytest

from s3bert.training.arguments import TrainingConfig


def test_a_schedule_spans_the_training_or_more():
    assert TrainingConfig("x").schedule_steps(250) == 250
    assert TrainingConfig("x", lr_decay_steps=1000).schedule_steps(250) == 1000
    with pytest.raises(ValueError, match="lr_decay_steps = 249: 250 steps are trained"):
        TrainingConfig("x", lr_decay_steps=249).schedule_steps(250)


@pytest.mark.parametrize(("warmup", "steps"), [(0, 0), (20, 20), (20.0, 20), (0.1, 25)])
def test_a_warm_up_is_a_number_of_steps_or_a_share_of_all(warmup, steps):
    assert TrainingConfig("x", num_warmup_steps=warmup).warmup_steps(250) == steps


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_warmup_steps": -1}, "num_warmup_steps = -1: must be at least 0"),
        ({"num_warmup_steps": 2.5}, "num_warmup_steps = 2.5: give a whole number"),
        ({"max_train_steps": -1}, "max_train_steps = -1: must be at least 1; leave it out for the default"),
        ({"logging_steps": 0}, "logging_steps = 0: must be at least 1"),
    ],
)
def test_lengths_that_cannot_be_are_named(fields, message):
    with pytest.raises(ValueError, match=message):
        TrainingConfig("x", **fields)
