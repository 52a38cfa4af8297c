"""Skeleton attention in fewer operations: exact re-associations of skeleton_attention.py, the direct form, up to the rounding of
float32.

    skip-KV     full queries, but keys and values only where they are read: s1 tokens and s2 channels
    low-rank    a head mixes s1 + s2 vectors, so neither queries nor the output projection have to touch every token

Both read the weights of modules without calling them; mixer_s3.py says when that is the same. B, S, H, h, p, s1, s2 as there.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from .numerics import at_least_float32, zero_padding
from .skeleton_attention import SkeletonAttention, softmax_over


def cheapest_attention_form(length: int, head_size: int, num_rows: int, num_columns: int, batch: int | None) -> str:
    """The form of "auto" for (B, S) tokens; B None where it is unknown, and taken to be large.

    In units of H^2 multiply-adds per token the direct form costs 4 and low-rank (2 s1 + 4 s2) / p + (4 s1 + 2 s2) / S, in smaller
    products that run less efficiently: it is taken up to 2.5, from 512 tokens in the batch on (measured on a CPU at H 256
    and 768: with fewer, its number of operations outweighs their size). Skip-KV costs 2 + 2 s2 / p + 2 s1 / S, and is
    taken under 4.
    """
    costs = (2 * num_rows + 4 * num_columns) * length + (4 * num_rows + 2 * num_columns) * head_size  # times p S
    if (batch is None or batch * length >= 512) and 2 * costs <= 5 * head_size * length:
        return "low_rank"
    return "skip_kv" if num_columns * length + num_rows * head_size < head_size * length else "direct"


def skip_kv_attention(
    attention: SkeletonAttention,
    hidden_states: torch.Tensor,
    mask: torch.Tensor | None = None,
    use_sdpa: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """`attention(hidden_states, mask, use_sdpa)`, its key and value layers read."""
    hidden_states = zero_padding(hidden_states, mask)
    places, counts, columns, lengths = attention.landmarks(hidden_states, mask)
    query = attention.heads(attention.query(hidden_states))  # (B, h, S, p)
    row_parts: Sequence[torch.Tensor] = ()
    column_parts: Sequence[torch.Tensor] = ()
    if attention.use_row_attention:
        row_parts = _landmark_parts(attention, hidden_states, places)
    if attention.use_column_attention:
        readers = [_column_reader(layer, columns, attention.num_heads) for layer in (attention.key, attention.value)]
        column_parts = [seen.transpose(2, 3) for seen in _read_tokens(hidden_states, readers, attention.num_heads)]
    return attention.mix(query, row_parts, column_parts, counts, lengths, mask, use_sdpa)


def low_rank_attention(
    attention: SkeletonAttention,
    projection: nn.Linear,
    hidden_states: torch.Tensor,
    mask: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """`attention(hidden_states, mask)`, and its mixed states through `projection`, (B, S, H); all its layers and norms read."""
    hidden_states = zero_padding(hidden_states, mask)
    places, counts, columns, lengths = attention.landmarks(hidden_states, mask)
    num_heads, query = attention.num_heads, attention.query
    readers = []
    if attention.use_row_attention:
        landmark_key, landmark_value = _landmark_parts(attention, hidden_states, places)  # (B, h, s1, p)
        readers.append(_row_score_reader(landmark_key / math.sqrt(attention.head_size), query))
    if attention.use_column_attention:
        readers += [_column_reader(layer, columns, num_heads) for layer in (attention.key, attention.value)]
    seen = _read_tokens(hidden_states, readers, num_heads)  # (B, h, s, S) each
    coefficients, vectors, norms, row_weights = [], [], [], None
    if attention.use_row_attention:
        weights = softmax_over(seen.pop(0), counts[:, None, :, None], dim=2)  # (B, h, s1, S)
        row_weights = weights.transpose(2, 3)
        coefficients.append(attention.dropout(weights))
        vectors.append(landmark_value)
        norms.append(attention.row_norm)
    if attention.use_column_attention:
        key, value = seen
        if mask is not None:
            key = key.masked_fill(~mask[:, None, None], 0)
        key = key * lengths.clamp(min=1).to(key.dtype).rsqrt()[:, :, None, None]
        scores = at_least_float32(_column_scores(hidden_states, key, query))
        weights = attention.dropout(scores.softmax(2))  # (B, h, s2, p)
        coefficients.append(value)
        vectors.append(weights.to(value.dtype))
        norms.append(attention.column_norm)
    return _projected_mixture(coefficients, vectors, norms, projection, mask), row_weights


def _landmark_parts(
    attention: SkeletonAttention, hidden_states: torch.Tensor, places: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of the landmark tokens alone, (B, h, s1, p) each."""
    batch, length, _ = hidden_states.shape
    offsets = torch.arange(batch, device=places.device)[:, None] * length
    landmarks = hidden_states.flatten(0, 1).index_select(0, (places + offsets).flatten())
    landmarks = landmarks.unflatten(0, (batch, -1))  # (B, s1, H)
    return attention.heads(attention.key(landmarks)), attention.heads(attention.value(landmarks))


def _read_tokens(
    hidden_states: torch.Tensor, readers: list[tuple[torch.Tensor, torch.Tensor]], num_heads: int
) -> list[torch.Tensor]:
    """What several readers see in each token, (B, h, s, S) each, as one product.

    A reader is weights (h s, H) or (B, h s, H) and offsets (h s, 1) or (B, h s, 1).
    """
    batch = hidden_states.shape[0]
    weights = torch.cat([weight.expand(batch, -1, -1) for weight, _ in readers], 1)
    offsets = torch.cat([offset.expand(batch, -1, -1) for _, offset in readers], 1)
    # Tokens first, so that their gradient comes in their own layout; then with tokens last, which suits all that follows.
    seen = torch.baddbmm(offsets.transpose(1, 2), hidden_states, weights.transpose(1, 2)).transpose(1, 2).contiguous()
    parts = seen.split([weight.shape[-2] for weight, _ in readers], 1)
    return [part.unflatten(1, (num_heads, -1)) for part in parts]


def _column_reader(layer: nn.Linear, columns: torch.Tensor, num_heads: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A linear layer's channels `columns` (s2) of each head, as a reader of h s2 rows."""
    weight, bias = (
        tensor.unflatten(0, (num_heads, -1)).index_select(1, columns) for tensor in (layer.weight, layer.bias)
    )
    return weight.flatten(0, 1), bias.view(-1, 1)


def _row_score_reader(keys: torch.Tensor, query: nn.Linear) -> tuple[torch.Tensor, torch.Tensor]:
    """K1 Q^T for keys of landmark tokens (B, h, s1, p), as a reader of h s1 rows."""
    num_heads = keys.shape[1]
    weights = _by_head(keys, query.weight.unflatten(0, (num_heads, -1)))  # (B, h, s1, H)
    offsets = keys @ query.bias.view(num_heads, -1, 1)  # (B, h, s1, 1)
    return weights.flatten(1, 2), offsets.flatten(1, 2)


def _column_scores(hidden_states: torch.Tensor, keys: torch.Tensor, query: nn.Linear) -> torch.Tensor:
    """K2^T Q, (B, h, s2, p), of tokens (B, S, H) and scaled keys (B, h, s2, S) that are zero at padding."""
    num_heads = keys.shape[1]
    summary = torch.bmm(keys.flatten(1, 2), hidden_states).unflatten(1, (num_heads, -1))  # (B, h, s2, H)
    scores = _by_head(summary, query.weight.unflatten(0, (num_heads, -1)).transpose(1, 2))
    return scores + query.bias.view(num_heads, 1, -1) * keys.sum(-1, keepdim=True)


def _projected_mixture(
    coefficients: list[torch.Tensor],
    vectors: list[torch.Tensor],
    norms: list[nn.LayerNorm],
    projection: nn.Linear,
    mask: torch.Tensor | None,
) -> torch.Tensor:
    """projection(mean over parts of norm(X^T R)), (B, S, H), without forming any X^T R.

    Args:
        coefficients: X of each part, (B, h, s, S): how much of each vector a token takes.
        vectors: R of each part, (B, h, s, p).
        norms: each part's LayerNorm over H. mask: (B, S), tokens to treat as if their mixture were zero.

    LayerNorm of X^T R is X^T (R - mean) / std, so its scale and the projection act on R. The variance is a quadratic form in
    X, taken as that within heads plus that between heads: E[x^2] - E[x]^2 would cancel.
    """
    parts = len(norms)
    num_heads = vectors[0].shape[1]
    scaled, projected = [], []
    shift = torch.zeros_like(norms[0].bias)
    for x, r, norm in zip(coefficients, vectors, norms):
        with torch.autocast(x.device.type, enabled=False):
            x, exact = at_least_float32(x).flatten(1, 2), at_least_float32(r)  # (B, h s, S)
            means = exact.mean(-1, keepdim=True)  # (B, h, s, 1)
            centred = exact - means
            gram = centred @ centred.transpose(2, 3) / (num_heads * exact.shape[-1])  # (B, h, s, s)
            moments = torch.cat((_block_diagonal(gram), _block_diagonal(means.transpose(2, 3))), 1) @ x
            within, of_heads = moments.split((x.shape[1], num_heads), 1)  # (B, h s, S), (B, h, S)
            between = (of_heads - of_heads.mean(1, keepdim=True)).square().mean(1, keepdim=True)
            variance = (within * x).sum(1, keepdim=True) + between
            scaled.append(x * torch.rsqrt(variance.clamp(min=0) + norm.eps))
        gain = projection.weight * norm.weight  # (H, H), columns scaled
        rows = _by_head(r, gain.unflatten(1, (num_heads, -1)).permute(1, 2, 0))  # (B, h, s, H)
        rows = rows - means.to(rows.dtype) / num_heads * gain.sum(1)
        projected.append(rows.flatten(1, 2))
        shift = shift + norm.bias
    # What every token takes once is one more vector; padding takes the projection's bias alone.
    scaled.append(torch.ones_like(scaled[0][:, :1]))
    constant = F.linear(shift / parts, projection.weight)
    if mask is not None:
        scaled = [zero_padding(x.transpose(1, 2), mask).transpose(1, 2) for x in scaled]
    elif projection.bias is not None:
        constant = constant + projection.bias
    rows = torch.cat((*(rows / parts for rows in projected), constant.expand(x.shape[0], 1, -1)), 1)
    mixed = torch.bmm(torch.cat(scaled, 1).transpose(1, 2).to(rows.dtype), rows)
    return mixed if mask is None or projection.bias is None else mixed + projection.bias


def _block_diagonal(blocks: torch.Tensor) -> torch.Tensor:
    """(B, h, m, n) -> (B, h m, h n)."""
    num_heads = blocks.shape[1]
    head = torch.eye(num_heads, dtype=blocks.dtype, device=blocks.device)[:, None, :, None]
    return (blocks[:, :, :, None] * head).flatten(3).flatten(1, 2)


def _by_head(rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """(B, h, s, m) times a matrix of each head (h, m, n): (B, h, s, n)."""
    batch, _, count, _ = rows.shape
    product = torch.bmm(rows.transpose(0, 1).flatten(1, 2), weights)  # (h, B s, n)
    return product.unflatten(1, (batch, count)).transpose(0, 1)
