"""AdamW and the schedule of its learning rate: made for a run, and taken up from a checkpoint."""

from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_optimizer_state_dict
from torch.optim.lr_scheduler import LambdaLR
from transformers.trainer_pt_utils import get_parameter_names

from .arguments import TrainingConfig


# What the Trainer exempts from weight decay: biases and every norm, the smoother's and skeleton attention's included.
_NO_DECAY = [r"bias", r"layernorm", r"rmsnorm", r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)"]


def adamw(model: nn.Module, config: TrainingConfig, fused: bool) -> torch.optim.AdamW:
    """The optimiser of the model's parameters, in two groups: decayed ones, and biases and norms."""
    decayed = set(get_parameter_names(model, [nn.LayerNorm], _NO_DECAY))
    groups: dict[bool, list[nn.Parameter]] = {True: [], False: []}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            groups[name in decayed].append(parameter)
    return torch.optim.AdamW(
        [
            {"params": groups[True], "weight_decay": config.weight_decay},
            {"params": groups[False], "weight_decay": 0.0},
        ],
        lr=config.learning_rate,
        betas=(config.adam_beta1, config.adam_beta2),
        eps=config.adam_epsilon,
        fused=fused,
    )


def take_up(
    model: nn.Module,
    optimizer: torch.optim.AdamW,
    scheduler: LambdaLR,
    optimizer_state: dict[str, Any],
    scheduler_state: dict[str, Any],
) -> None:
    """Gives optimiser and schedule the moments and the step of a checkpoint, whose settings they do not take.

    The optimiser's own are those of the checkpoint or were changed knowingly, and the schedule is a function of the step.
    """
    own = [
        {name: group[name] for name in ("weight_decay", "betas", "eps", "initial_lr")}
        for group in optimizer.param_groups
    ]
    options = StateDictOptions(full_state_dict=True)
    set_optimizer_state_dict(model, optimizer, optimizer_state, options=options)
    step = scheduler_state["last_epoch"]
    rates = [rate * factor(step) for rate, factor in zip(scheduler.base_lrs, scheduler.lr_lambdas)]
    scheduler.load_state_dict(scheduler_state | {"base_lrs": scheduler.base_lrs, "_last_lr": rates})
    for group, settings, rate in zip(optimizer.param_groups, own, rates):
        group.update(settings, lr=rate)
