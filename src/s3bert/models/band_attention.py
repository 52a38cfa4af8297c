"""Softmax attention within a band, linear in the length: FMMformer's near field (Nguyen et al., NeurIPS 2021, eqs. 9 and 10)."""

from collections.abc import Callable

import torch
from torch.nn import functional as F


_SMALLEST_CHUNK = 16  # tokens; smaller products cost more than what narrow bands save


def _with_neighbours(states: torch.Tensor, chunk: int, before: int, after: int) -> torch.Tensor:
    """(B, h, blocks chunk, p) to (B, h, blocks, before + chunk + after, p): each block with the ends of those beside it, zeros outside.

    `before` and `after` are at most `chunk`."""
    blocks = states.unflatten(2, (-1, chunk))
    outside = torch.zeros_like(blocks[:, :, :1])
    left = torch.cat([outside[:, :, :, :before], blocks[:, :, :-1, chunk - before :]], 2)
    right = torch.cat([blocks[:, :, 1:, :after], outside[:, :, :, :after]], 2)
    return torch.cat([left, blocks, right], 3)


def _masked_attention(query, key, value, mask, bandwidth, causal):
    """The same with a matrix of token pairs, in evaluation."""
    places = torch.arange(query.shape[2], device=query.device)
    offsets = places - places[:, None]
    allowed = (offsets > -bandwidth) & (offsets < (1 if causal else bandwidth))
    if mask is not None:
        allowed = (allowed & mask[:, None, None]) | (offsets == 0)  # (B, 1, S, S)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=allowed)


def band_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    bandwidth: int,
    causal: bool,
    dropout: Callable[[torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """Softmax over the real tokens up to k - 1 places away: (B, h, S, p) three times -> (B, h, S, p).

    Tokens are taken in blocks, each a small product with its block and the band's rest on both sides.

    Args:
        mask: (B, S), True at real tokens. bandwidth: k, 1 at least. causal: none of the places after the token. dropout: on the weights.
    """
    length = query.shape[2]
    if torch.compiler.is_exporting():  # for all lengths, on which the number of blocks would hang
        return _masked_attention(query, key, value, mask, bandwidth, causal)
    before = min(bandwidth, length) - 1
    after = 0 if causal else before
    chunk = max(_SMALLEST_CHUNK, before)
    pad = -length % chunk
    counts = torch.ones(len(query), length, dtype=torch.bool, device=query.device) if mask is None else mask
    counts = _with_neighbours(F.pad(counts, (0, pad))[:, None, :, None], chunk, before, after)[..., 0]
    query, key, value = (F.pad(states, (0, 0, 0, pad)) for states in (query, key, value))
    keys, values = (_with_neighbours(states, chunk, before, after) for states in (key, value))
    # (B, h, blocks, chunk, before + chunk + after); entry (i, j) is of the neighbour j - i - before places away.
    scores = query.unflatten(2, (-1, chunk)) @ keys.transpose(3, 4) / query.shape[3] ** 0.5
    rows, columns = (torch.arange(size, device=query.device) for size in scores.shape[3:])
    offsets = columns - rows[:, None]
    # A token may always read itself, so that padding, zeroed afterwards, is never a softmax over nothing.
    admissible = (counts[:, :, :, None] & (offsets >= 0) & (offsets <= before + after)) | (offsets == before)
    weights = scores.masked_fill(~admissible, torch.finfo(scores.dtype).min).softmax(4)
    return (dropout(weights) @ values).flatten(2, 3)[:, :, :length]
