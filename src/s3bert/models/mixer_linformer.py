"""Linformer attention (Wang et al., 2020, arXiv 2006.04768): keys and values projected along the sequence to k rows."""

import torch
from torch import nn

from .attention_heads import HeadAttention, numbered_tokens, zero_padded_keys
from .numerics import at_least_float32


class LinformerAttention(HeadAttention):
    """softmax(Q (E K)^T / sqrt(p)) F V (eq. 7); E and F, (k, N), are shared by the heads of a layer.

    A real token meets the column of its number in the sequence, wherever padding lies.

    Args:
        hidden_size, num_heads, max_length, dropout: as in `HeadAttention`; max_length is N, beyond which there are no columns.
        num_projections: k.

    Raises:
        ValueError: k under 1; from `forward`, a sequence longer than N.
    """

    def __init__(
        self, hidden_size: int, num_heads: int, max_length: int, dropout: float = 0.0, num_projections: int = 128
    ):
        super().__init__(hidden_size, num_heads, max_length, dropout)
        if num_projections < 1:
            raise ValueError(f"num_projections = {num_projections}: there has to be at least one row.")
        # As Nystromformer's LRA code draws them.
        self.key_projection = nn.Parameter(0.02 * torch.randn(max_length, num_projections))  # E^T
        self.value_projection = nn.Parameter(0.02 * torch.randn(max_length, num_projections))  # F^T

    def attend(self, query, key, value, mask):
        if query.shape[2] > self.max_length:
            raise ValueError(f"The sequence has {query.shape[2]} tokens, this layer has columns for {self.max_length}.")
        with torch.autocast(query.device.type, enabled=False):
            query, key, value = (at_least_float32(states) for states in (query, key, value))
            numbers = numbered_tokens(query, mask)
            key, value = (
                at_least_float32(projection)[numbers][:, None].transpose(2, 3)
                @ zero_padded_keys(states, mask)  # (B, h, k, p)
                for projection, states in ((self.key_projection, key), (self.value_projection, value))
            )
            weights = (query @ key.transpose(2, 3) / self.head_size**0.5).softmax(3)
            return self.dropout(weights) @ value
