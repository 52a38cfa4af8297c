"""Distillation (Hinton et al., 2015): a masked LM learns what a teacher holds likely at masked positions, beside what stands there.

B batch, S length, P positions, V vocabulary.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import MaskedLMOutput

from s3bert.models.heads import labelled_positions
from s3bert.models.numerics import at_least_float32
from s3bert.training.flops import takes_max_predictions


def distillation_loss(
    student: torch.Tensor, teacher: torch.Tensor, labels: torch.Tensor, temperature: float
) -> torch.Tensor:
    """T^2 KL(teacher || student), of logits (P, V) divided by T: the mean over positions whose label (P) is not -100.

    It is Hinton's cross entropy less the teacher's entropy, which no gradient sees: 0 where both agree. T^2 keeps the gradient's size whatever
    T is.
    """
    ours, likely = ((at_least_float32(logits) / temperature).log_softmax(-1) for logits in (student, teacher))
    losses = F.kl_div(ours, likely, reduction="none", log_target=True).sum(-1)  # (P,)
    labelled = labels != -100
    return temperature**2 * losses.where(labelled, 0).sum() / labelled.sum().clamp(min=1)


class Distillation:
    """For `train`'s `around_step`: from the first step on a model's loss in training is (1 - weight) loss + weight distillation loss.

    The teacher is in evaluation mode, without gradients, on the student's device and under its autocast. It is no part of the student, whose
    checkpoints, evaluations and count of FLOPs stay as they are.

    Args:
        teacher: a masked LM of the student's vocabulary. weight: of the distillation loss, 0 to 1. temperature: T, above 0.
    """

    def __init__(self, teacher: PreTrainedModel, weight: float, temperature: float):
        self.teacher = teacher.eval().requires_grad_(False)
        self.weight, self.temperature = weight, temperature
        self.sparse = takes_max_predictions(teacher)
        self.accelerator: Accelerator | None = None

    def __call__(
        self, step: int, student: nn.Module, inputs: list[dict[str, Any]]
    ) -> AbstractContextManager[dict[str, float]]:
        """Nothing around a step but, the first time, the student's hook."""
        if self.accelerator is None:
            self.accelerator = Accelerator()  # the run's: its state is the process's
            self.teacher.to(self.accelerator.device)
            student.register_forward_hook(self._add, with_kwargs=True)
        return nullcontext({})

    @torch.compiler.disable
    def _add(self, student: nn.Module, _: tuple, inputs: dict[str, Any], output: MaskedLMOutput) -> None:
        """Adds to a training forward's loss; of logits of all positions, or of the labelled ones alone."""
        if not student.training:
            return
        labels, bound = inputs["labels"], inputs.get("max_predictions")
        asked = {"labels": labels, "max_predictions": bound} if self.sparse and bound else {}
        with torch.no_grad(), self.accelerator.autocast():
            teacher = self.teacher(input_ids=inputs["input_ids"], **asked).logits
        pair = [
            labelled_positions(logits, labels, bound)[0] if logits.dim() == 3 else logits
            for logits in (output.logits, teacher)
        ]
        _, labels = labelled_positions(labels[..., None], labels, bound)
        loss = distillation_loss(*pair, labels, self.temperature)
        output.loss = (1 - self.weight) * output.loss + self.weight * loss
