"""Linear attention (Katharopoulos et al., ICML 2020, arXiv 2006.16236): a feature map in place of the softmax's exponential."""

import torch
from torch.nn import functional as F

from .attention_heads import HeadAttention, zero_padded_keys
from .numerics import at_least_float32


SMALLEST_DENOMINATOR = 1e-6
_CHUNK = 64  # tokens that the causal form takes at once


class LinearAttention(HeadAttention):
    """phi(q_i)^T sum_j phi(k_j) v_j^T / (phi(q_i)^T sum_j phi(k_j)), phi(x) = elu(x) + 1; O(S p^2) a head.

    Args:
        hidden_size, num_heads, max_length, dropout: as in `HeadAttention`; there are no weights for dropout to act on.
        causal: sums run over j <= i.
    """

    def __init__(self, hidden_size: int, num_heads: int, max_length: int, dropout: float = 0.0, causal: bool = False):
        super().__init__(hidden_size, num_heads, max_length, dropout)
        self.causal = causal

    def attend(self, query, key, value, mask):
        with torch.autocast(query.device.type, enabled=False):
            query, key, value = (at_least_float32(states) for states in (query, key, value))
            key = zero_padded_keys(F.elu(key) + 1, mask)
            numerator, denominator = feature_sums(F.elu(query) + 1, key, value, self.causal)
            return numerator / denominator.clamp(min=SMALLEST_DENOMINATOR)


def feature_sums(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """sum_j (q_i . k_j) v_j, (B, h, S, p), and sum_j q_i . k_j, (B, h, S, 1), over all j or those up to i.

    Args:
        query, key: features (B, h, S, m), zero where a key does not count. value: (B, h, S, p).
    """
    if not causal:
        return query @ (key.transpose(2, 3) @ value), query @ key.sum(2)[..., None]
    numerator, denominator, _ = causal_feature_sums(query, key, value)
    return numerator, denominator


def causal_feature_sums(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, past: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The sums of `feature_sums` over j <= i, and the state after them, sum_j k_j (v_j, 1)^T, (B, h, m, p + 1).

    Args:
        past: the state after tokens that came before, which the sums include. With it, one token is one step of the recurrence.
    """
    length = query.shape[2]
    if past is not None and length == 1:
        past = torch.addcmul(past, key.transpose(2, 3), F.pad(value, (0, 1), value=1.0))
        sums = query @ past
        return sums[..., :-1], sums[..., -1:], past
    # The number of chunks of a program that is exported for all lengths would hang on the length.
    size = length if torch.compiler.is_exporting() else min(_CHUNK, length)
    # (B, h, S / c, c, ...): products within a chunk, and a sum over the chunks before it.
    query, key, value = (
        F.pad(states, (0, 0, 0, -length % size)).unflatten(2, (-1, size)) for states in (query, key, value)
    )
    within = (query @ key.transpose(3, 4)).tril()
    states = (key.transpose(3, 4) @ value).cumsum(2)
    totals = key.sum(3)[..., None].cumsum(2)  # (B, h, S / c, m, 1)
    before, total_before = (F.pad(sums[:, :, :-1], (0, 0, 0, 0, 1, 0)) for sums in (states, totals))
    state = torch.cat([states[:, :, -1], totals[:, :, -1]], 3)
    if past is not None:
        state = state + past
        before, total_before = before + past[:, :, None, :, :-1], total_before + past[:, :, None, :, -1:]
    numerator = within @ value + query @ before
    denominator = within.sum(4, keepdim=True) + query @ total_before
    return numerator.flatten(2, 3)[:, :, :length], denominator.flatten(2, 3)[:, :, :length], state
