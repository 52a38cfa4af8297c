"""Adaptive softmax (Grave et al., ICML 2017, arXiv 1609.04309), torch's, in any precision."""

import torch
from torch import nn


class AdaptiveSoftmax(nn.AdaptiveLogSoftmaxWithLoss):
    """torch's module outside autocast, under which its clusters would differ in dtype."""

    def total_loss(self, states: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Cross entropy summed over labels (...) that are not -100, of states (..., H)."""
        labelled = labels != -100
        with torch.autocast(states.device.type, enabled=False):
            return -self(states[labelled].to(self.head.weight.dtype), labels[labelled]).output.sum()

    def log_probabilities(self, states: torch.Tensor) -> torch.Tensor:
        """(B, S, V) of states (B, S, H)."""
        with torch.autocast(states.device.type, enabled=False):
            flat = states.flatten(0, 1).to(self.head.weight.dtype)
            return self.log_prob(flat).unflatten(0, states.shape[:2])
