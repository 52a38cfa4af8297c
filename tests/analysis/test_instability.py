"""Skyformer's instability score: its value beside a float64 twin of its equation, in a training that it leaves as it was."""

import json

import pytest
import torch
from accelerate.utils import set_seed
from reference import relative_error

from s3bert.analysis.instability import Instability
from s3bert.models.configuration_lra import LraConfig
from s3bert.models.mixers import MIXERS
from s3bert.models.modeling_lra import LraForSequenceClassification


SIZES = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=2, max_position_embeddings=64, vocab_size=20)


def states(weights: dict[str, torch.Tensor], config: LraConfig, ids: torch.Tensor) -> torch.Tensor:
    """f: a float64 model of those weights and statistics, built anew."""
    model = LraForSequenceClassification(config).double().eval()
    model.load_state_dict(weights)
    with torch.no_grad():
        return model.encoder(ids).last_hidden_state


@pytest.mark.parametrize("mixer", MIXERS)
def test_a_steps_score_is_that_of_the_equation_and_the_model_stays_as_the_step_left_it(mixer):
    set_seed(0)
    config = LraConfig(mixer=mixer, **SIZES)
    model = LraForSequenceClassification(config).train()
    batch = {"input_ids": torch.randint(0, 20, (3, 64)), "labels": torch.tensor([0, 1, 0])}
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with Instability(2)(2, model, [batch]) as found:
        model(**batch).loss.backward()
        optimizer.step()
    after = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    parameters = dict(model.named_parameters())
    earlier = {name: before[name] if name in parameters else tensor for name, tensor in after.items()}
    change = (states(after, config, batch["input_ids"]) - states(earlier, config, batch["input_ids"])).square().sum()
    moved = sum((after[name].double() - before[name].double()).square().sum() for name in parameters)
    assert change > 0
    assert relative_error(torch.tensor(found["instability"]), change / moved) < 1e-6
    generator = torch.get_rng_state()
    with Instability(2)(2, model, [batch]) as found:
        pass
    assert found == {}, "no weight has moved"
    assert torch.equal(torch.get_rng_state(), generator)
    assert model.training
    assert model.encoder.training
    assert all(torch.equal(tensor, after[name]) for name, tensor in model.state_dict().items())


def test_later_steps_are_not_measured():
    model = LraForSequenceClassification(LraConfig(mixer="linear", **SIZES))
    with Instability(2)(3, model, []) as found:
        model.dense.bias.data += 1
    assert json.dumps(found) == "{}"
