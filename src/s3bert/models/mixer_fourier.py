"""FNet's token mixing (Lee-Thorp et al., NAACL 2022, arXiv 2105.03824) with a mask: the real part of a Fourier transform."""

import torch
from torch import nn

from .numerics import at_least_float32, zero_padding


class FourierMixer(nn.Module):
    """Re(F_S F_H x), unnormalised and without parameters (eq. 3).

    The transform along the sequence has always N = max_length points, with zeros where there is no real token. So, unlike
    FNet itself, the amount of padding does not matter.

    Args:
        hidden_size, num_heads, dropout: not used; there for the contract of mixers. max_length: N.

    Raises:
        ValueError: from `forward`, a sequence longer than N.
    """

    def __init__(self, hidden_size: int, num_heads: int, max_length: int, dropout: float = 0.0):
        super().__init__()
        self.max_length = max_length

    def forward(self, hidden_states: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """(B, S, H) -> (B, S, H), zero at padding."""
        length = hidden_states.shape[1]
        if length > self.max_length:
            raise ValueError(f"The sequence has {length} tokens, the transform {self.max_length} points.")
        states = at_least_float32(zero_padding(hidden_states, mask))
        with torch.autocast(states.device.type, enabled=False):
            mixed = torch.fft.fft(torch.fft.fft(states, dim=2), n=self.max_length, dim=1).real[:, :length]
        return zero_padding(mixed.to(hidden_states.dtype), mask)
