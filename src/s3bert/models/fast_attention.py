"""Skeleton attention in fewer operations: exact re-associations of skeleton_attention.py, the direct form, up to the rounding of
float32.

    skip-KV     full queries, but keys and values only where they are read: s1 tokens and s2 channels
    low-rank    a head mixes s1 + s2 vectors, so neither queries nor the output projection have to touch every token

Both read the weights of modules without calling them; mixer_s3.py says when that is the same. B, S, H, h, p, s1, s2 as there.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from .numerics import at_least_float32, zero_padding
from .skeleton_attention import SkeletonAttention, scale_keys, softmax_over


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
        row_parts = [part.transpose(1, 2) for part in _landmark_parts(attention, hidden_states, places)]
    if attention.use_column_attention:
        keys, values = _column_parts(attention, hidden_states, columns)
        parts = scale_keys(keys, lengths, mask), values
        column_parts = [part.unflatten(2, (attention.num_heads, -1)).transpose(1, 2) for part in parts]
    return attention.mix(query, row_parts, column_parts, counts, mask, use_sdpa)


def low_rank_attention(
    attention: SkeletonAttention,
    projection: nn.Linear,
    hidden_states: torch.Tensor,
    mask: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """`attention(hidden_states, mask)`, and its mixed states through `projection`, (B, S, H); all its layers and norms read.

    Row and column attention are parts of one mixture: coefficients X (B, h, s, S), how much each token takes of each of the vectors
    R (B, h, s, p). Tokens lie last in X, so that softmax and sums over a few vectors run along long rows.
    """
    hidden_states = zero_padding(hidden_states, mask)
    places, counts, columns, lengths = attention.landmarks(hidden_states, mask)
    coefficients, vectors, norms, row_weights = [], [], [], None
    if attention.use_row_attention:
        keys, values = _landmark_parts(attention, hidden_states, places)  # (B, s1, h, p)
        weights = softmax_over(_row_scores(hidden_states, keys, attention.query), counts, dim=2)  # (B, h, s1, S)
        row_weights = weights.transpose(2, 3)
        coefficients.append(attention.dropout(weights))
        vectors.append(values.transpose(1, 2))
        norms.append(attention.row_norm)
    if attention.use_column_attention:
        keys, values = _column_parts(attention, hidden_states, columns)  # (B, S, h s2)
        scores = _column_scores(hidden_states, scale_keys(keys, lengths, mask), attention.query, attention.num_heads)
        weights = softmax_over(scores, None, dim=2)  # (h, B, s2, p)
        coefficients.append(values.transpose(1, 2).unflatten(1, (attention.num_heads, -1)))
        vectors.append(attention.dropout(weights).transpose(0, 1))
        norms.append(attention.column_norm)
    return _projected_mixture(coefficients, vectors, norms, projection, mask), row_weights


def _landmark_parts(
    attention: SkeletonAttention, hidden_states: torch.Tensor, places: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of the landmark tokens alone, (B, s1, h, p) each."""
    batch, _, hidden_size = hidden_states.shape
    landmarks = hidden_states.gather(1, places[:, :, None].expand(batch, -1, hidden_size))  # (B, s1, H)
    keys, values = (
        layer(landmarks).unflatten(2, (attention.num_heads, -1)) for layer in (attention.key, attention.value)
    )
    return keys, values


def _column_parts(
    attention: SkeletonAttention, hidden_states: torch.Tensor, columns: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The sampled channels (s2) of every token's keys and values, (B, S, h s2) each, as one product."""
    layers = attention.key, attention.value
    weight, bias = (
        torch.cat(
            [tensor.unflatten(0, (attention.num_heads, -1)).index_select(1, columns) for tensor in tensors]
        ).flatten(0, 1)
        for tensors in zip(*((layer.weight, layer.bias) for layer in layers))
    )
    keys, values = F.linear(hidden_states, weight, bias).chunk(2, 2)
    return keys, values


def _row_scores(hidden_states: torch.Tensor, keys: torch.Tensor, query: nn.Linear) -> torch.Tensor:
    """Q K1^T / sqrt(p), (B, h, s1, S), of tokens (B, S, H) and keys of landmark tokens (B, s1, h, p)."""
    batch, count, num_heads, head_size = keys.shape
    by_head = keys.flatten(0, 1).transpose(0, 1)  # (h, B s1, p)
    weights = torch.bmm(by_head, query.weight.unflatten(0, (num_heads, -1)))  # (h, B s1, H)
    offsets = torch.bmm(by_head, query.bias.view(num_heads, -1, 1))  # (h, B s1, 1)
    weights, offsets = (
        part.unflatten(1, (batch, count)).transpose(0, 1).flatten(1, 2).transpose(1, 2) for part in (weights, offsets)
    )
    # Tokens first, so that their gradient comes in their own layout; then with tokens last, which suits all that follows.
    scale = head_size**-0.5
    scores = torch.baddbmm(offsets, hidden_states, weights, beta=scale, alpha=scale)
    return scores.transpose(1, 2).contiguous().unflatten(1, (num_heads, -1))


def _column_scores(hidden_states: torch.Tensor, keys: torch.Tensor, query: nn.Linear, num_heads: int) -> torch.Tensor:
    """K2^T Q, (h, B, s2, p), of tokens (B, S, H) and scaled keys (B, S, h s2) that are zero at padding."""
    batch = keys.shape[0]
    summary = torch.bmm(keys.transpose(1, 2), hidden_states)  # (B, h s2, H)
    sums = keys.sum(1)  # (B, h s2)
    summary, sums = (part.unflatten(1, (num_heads, -1)).transpose(0, 1) for part in (summary, sums))
    scores = torch.bmm(summary.flatten(1, 2), query.weight.unflatten(0, (num_heads, -1)).transpose(1, 2))
    bias = query.bias.to(scores.dtype).view(num_heads, 1, 1, -1)
    return torch.addcmul(scores.unflatten(1, (batch, -1)), sums[..., None].to(scores.dtype), bias)


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
    batch, num_heads, _, _ = vectors[0].shape
    if parts == 2 and vectors[0].shape == vectors[1].shape:  # q parts of the same size at once
        groups = [(torch.stack(coefficients, 1), torch.stack(vectors, 1), norms)]
    else:
        groups = [(x[:, None], r[:, None], [norm]) for x, r, norm in zip(coefficients, vectors, norms)]
    taken, rows = [], []
    for x, r, of_group in groups:  # (B, q, h, s, S), (B, q, h, s, p)
        gains = torch.stack([norm.weight for norm in of_group])  # (q, H)
        with torch.autocast(x.device.type, enabled=False):
            x, r = at_least_float32(x), at_least_float32(r)
            means = r.mean(-1, keepdim=True)
            centred = r - means
            within = (centred @ centred.transpose(3, 4) @ x * x).sum((2, 3))  # (B, q, S), H times the variance
            of_heads = (means.transpose(3, 4) @ x).squeeze(3)  # (B, q, h, S)
            between = (of_heads - of_heads.mean(2, keepdim=True)).square().mean(2)
            variance = torch.add(between, within, alpha=1 / gains.shape[1])
            inverse = torch.rsqrt(variance.clamp(min=0) + of_group[0].eps)
            if mask is not None:
                inverse = inverse * mask[:, None]
            taken.append((x * inverse[:, :, None, None]).flatten(1, 3))
            gained = r * gains.view(len(of_group), num_heads, 1, -1)
        weight = projection.weight.unflatten(1, (num_heads, -1)).permute(1, 2, 0)  # (h, p, H)
        projected = torch.bmm(gained.permute(2, 0, 1, 3, 4).flatten(1, 3), weight)  # (h, B q s, H)
        projected = projected.unflatten(1, (batch, len(of_group), -1)).permute(1, 2, 0, 3, 4)  # (B, q, h, s, H)
        of_means = F.linear(gains, projection.weight).to(projected.dtype)[:, None, None]
        projected = torch.addcmul(projected, means.to(projected.dtype), of_means, value=-1 / num_heads)
        rows.append(projected.flatten(1, 3))
    # What every real token takes once; padding takes the projection's bias alone.
    constant = F.linear(sum(norm.bias for norm in norms) / parts, projection.weight, projection.bias)
    if mask is not None:
        nothing = torch.zeros_like(constant) if projection.bias is None else projection.bias.to(constant.dtype)
        constant = torch.where(mask[:, :, None], constant, nothing)
    weights = rows[0] if len(rows) == 1 else torch.cat(rows, 1)
    coefficients_ = taken[0] if len(taken) == 1 else torch.cat(taken, 1)
    base = constant.expand(batch, x.shape[-1], -1)
    return torch.baddbmm(
        base.to(weights.dtype), coefficients_.transpose(1, 2).to(weights.dtype), weights, alpha=1 / parts
    )
