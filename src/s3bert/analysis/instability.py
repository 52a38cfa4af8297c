"""How much a training step's change of the weights changes what the encoder makes of the step's batch: Skyformer's instability score
(Chen et al., NeurIPS 2021, Table 3 and appendix F).

    score = mean over steps i of |f(x_i, W_i) - f(x_i, W_{i-1})|_F^2 / |W_i - W_{i-1}|_F^2

x_i is step i's batch, W_i all of the model's parameters after it, f the tokens' states after the encoder's layers. The paper gives scores
as ratios to self-attention's.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from accelerate.utils import reduce, send_to_device
from torch import nn
from torch.func import functional_call
from transformers import PreTrainedModel


class Instability:
    """Measures the first steps of a training, for `training.train` to call around each; its finding is `instability`.

    f runs in evaluation mode: without dropout, with the statistics and landmarks of evaluation, the same at W_i and at W_{i-1}. It runs in
    float64, because the first steps of a warm-up change weights by little more than float32's rounding. A step that changes no
    weight, as the very first of a warm-up, has no score.

    Args:
        num_steps: how many are measured.
    """

    def __init__(self, num_steps: int):
        self.num_steps = num_steps

    @contextmanager
    def __call__(
        self, step: int, model: PreTrainedModel, batches: list[dict[str, torch.Tensor]]
    ) -> Iterator[dict[str, float]]:
        found: dict[str, float] = {}
        if step > self.num_steps:
            yield found
            return
        before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
        yield found
        after = {name: weight.detach() for name, weight in model.named_parameters()}
        moved = sum((after[name].double() - before[name].double()).square().sum() for name in after)
        if moved > 0:
            found["instability"] = (_change(model, before, after, batches) / moved).item()


@torch.no_grad()
def _change(
    model: PreTrainedModel,
    before: dict[str, torch.Tensor],
    after: dict[str, torch.Tensor],
    batches: list[dict[str, torch.Tensor]],
) -> torch.Tensor:
    """|f(x, W_i) - f(x, W_{i-1})|_F^2 over the batches of all processes."""
    encoder: nn.Module = model.base_model
    prefix = f"{model.base_model_prefix}."
    buffers = {
        name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in encoder.named_buffers()
    }
    training = encoder.training
    encoder.eval()
    total = torch.zeros((), dtype=torch.float64, device=model.device)
    for batch in batches:
        ids = send_to_device(batch["input_ids"], model.device).flatten(0, -2)  # (B, S), of pairs too
        states = []
        for weights in (before, after):
            own = {
                name.removeprefix(prefix): weight.double()
                for name, weight in weights.items()
                if name.startswith(prefix)
            }
            states.append(functional_call(encoder, own | buffers, (ids,)).last_hidden_state)
        total += (states[1] - states[0]).square().sum()
    encoder.train(training)
    return reduce(total, "sum")
