"""Exact softmax attention (Vaswani et al., 2017): the yardstick, by whichever kernel torch picks."""

from collections.abc import Callable

import torch
from torch.nn import functional as F

from .attention_heads import HeadAttention
from .numerics import zero_padding


class SoftmaxAttention(HeadAttention):
    """softmax(Q K^T / sqrt(p)) V; quadratic in the length.

    Args:
        hidden_size, num_heads, max_length, dropout: as in `HeadAttention`. causal: a token reads itself and those before it.
        bias: the projections have one.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        max_length: int,
        dropout: float = 0.0,
        causal: bool = False,
        bias: bool = True,
    ):
        super().__init__(hidden_size, num_heads, max_length, dropout, bias)
        self.causal = causal

    def forward(
        self,
        hidden_states: torch.Tensor,
        mask: torch.Tensor | None = None,
        extend: Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]] | None = None,
    ) -> torch.Tensor:
        """As `HeadAttention`'s. `extend` puts keys and values of the tokens before, which the mask (B, T) then begins with, before new ones."""
        new = None if mask is None else mask[:, -hidden_states.shape[1] :]
        hidden_states = zero_padding(hidden_states, new)
        query, key, value = self.split(hidden_states)
        if extend is not None:
            key, value = extend(key, value)
        return self.join(self.attend(query, key, value, mask), hidden_states, new)

    def attend(self, query, key, value, mask):
        """Keys and values, and the mask, may begin with tokens before the queries."""
        allowed, (length, total) = None, (query.shape[2], key.shape[2])
        if mask is not None or (self.causal and 1 < length < total):
            if mask is None:
                mask = torch.ones(len(key), total, dtype=torch.bool, device=key.device)
            # No query, whose result is zeroed later, may be a softmax over nothing: its gradient would be NaN.
            allowed = (mask | ~mask.any(1, keepdim=True))[:, None, None]  # (B, 1, 1, T)
            if self.causal:
                places = torch.arange(total, device=mask.device)
                offsets = places - places[total - length :, None]  # (S, T)
                allowed = (allowed | (offsets == 0)) & (offsets <= 0)
        dropout = self.dropout.p if self.training else 0.0
        is_causal = self.causal and allowed is None and length == total
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=allowed, dropout_p=dropout, is_causal=is_causal
        )
