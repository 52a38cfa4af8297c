"""Exact softmax attention (Vaswani et al., 2017): the yardstick, by whichever kernel torch picks."""

import torch
from torch.nn import functional as F

from .attention_heads import HeadAttention


class SoftmaxAttention(HeadAttention):
    """softmax(Q K^T / sqrt(p)) V; quadratic in the length.

    Args:
        hidden_size, num_heads, max_length, dropout: as in `HeadAttention`. causal: a token reads itself and those before it.
    """

    def __init__(self, hidden_size: int, num_heads: int, max_length: int, dropout: float = 0.0, causal: bool = False):
        super().__init__(hidden_size, num_heads, max_length, dropout)
        self.causal = causal

    def attend(self, query, key, value, mask):
        allowed = None
        if mask is not None:
            # No query, whose result is zeroed later, may be a softmax over nothing: its gradient would be NaN.
            allowed = (mask | ~mask.any(1, keepdim=True))[:, None, None]  # (B, 1, 1, S)
            if self.causal:
                itself = torch.eye(mask.shape[1], dtype=torch.bool, device=mask.device)
                allowed = (allowed | itself).tril()
        dropout = self.dropout.p if self.training else 0.0
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=allowed, dropout_p=dropout, is_causal=self.causal and mask is None
        )
