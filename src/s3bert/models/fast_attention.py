"""Skeleton attention in fewer operations: exact re-associations of skeleton_attention.py, the direct form, up to the rounding of
float32. What they are given is zero at padding, as the smoother leaves it.

    skip-KV     full queries, but keys and values only where they are read: s1 tokens and s2 channels
    low-rank    a head mixes s1 + s2 vectors, so neither queries nor the output projection have to touch every token

Both read the weights of modules without calling them; mixer_s3.py says when that is the same. B, S, H, h, p, s1, s2 as there.
"""

import torch
import torch.nn.functional as F
from torch import nn

from .numerics import at_least_float32, in_product_dtype
from .skeleton_attention import SkeletonAttention, scale_keys, softmax_over


def cheapest_attention_form(
    length: int, head_size: int, num_rows: int, num_columns: int, batch: int | None, fused: bool = False
) -> str:
    """The form of "auto" for (B, S) tokens; B None where it is unknown, and taken to be large. `fused`: compiled for an accelerator.

    In units of H^2 multiply-adds per token the direct form costs 4 and low-rank (2 s1 + 4 s2) / p + (4 s1 + 2 s2) / S, in smaller
    products that run less efficiently: it is taken up to 2.5, from 512 tokens in the batch on (measured on a CPU at H 256
    and 768: with fewer, its number of operations outweighs their size). Skip-KV costs 2 + 2 s2 / p + 2 s1 / S, and is
    taken under 4. Fused it moves as many bytes as low-rank in 24 fewer launches a layer (inductor's code for 32 x 512 tokens at H 768), and
    is preferred.
    """
    costs = (2 * num_rows + 4 * num_columns) * length + (4 * num_rows + 2 * num_columns) * head_size  # times p S
    if not fused and (batch is None or batch * length >= 512) and 2 * costs <= 5 * head_size * length:
        return "low_rank"
    return "skip_kv" if num_columns * length + num_rows * head_size < head_size * length else "direct"


def skip_kv_attention(
    attention: SkeletonAttention,
    hidden_states: torch.Tensor,
    mask: torch.Tensor | None = None,
    use_sdpa: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """`attention(hidden_states, mask, use_sdpa)`, its key and value layers read."""
    places, counts, columns, lengths = attention.landmarks(hidden_states, mask)
    query = attention.heads(attention.query(hidden_states))  # (B, h, S, p)
    row_keys, row_values, keys, values = _keys_and_values(attention, hidden_states, places, columns)
    parts = row_keys, row_values, scale_keys(keys, lengths, mask), values
    row_key, row_value, key, value = (part.transpose(1, 2) for part in parts)
    return attention.mix(query, (row_key, row_value), (key, value), counts, mask, use_sdpa)


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
    places, counts, columns, lengths = attention.landmarks(hidden_states, mask)
    row_keys, row_values, keys, values = _keys_and_values(attention, hidden_states, places, columns)
    query = in_product_dtype(attention.query.weight).unflatten(0, (attention.num_heads, -1))  # (h, p, H)
    query_bias = in_product_dtype(attention.query.bias).unflatten(0, (attention.num_heads, -1))
    coefficients, vectors, norms, row_weights = [], [], [], None
    if attention.use_row_attention:
        weights = softmax_over(_row_scores(hidden_states, row_keys, query, query_bias), counts)  # (B, h, s1, S)
        row_weights = weights.transpose(2, 3)
        coefficients.append(attention.dropout(weights))
        vectors.append(row_values.transpose(1, 2))
        norms.append(attention.row_norm)
    if attention.use_column_attention:
        scores = _column_scores(hidden_states, scale_keys(keys, lengths, mask), query, query_bias)
        weights = softmax_over(scores, None)  # (h, B, s2, p)
        coefficients.append(values.permute(0, 2, 3, 1))
        vectors.append(attention.dropout(weights).transpose(0, 1))
        norms.append(attention.column_norm)
    return _projected_mixture(coefficients, vectors, norms, projection, mask), row_weights


def _keys_and_values(
    attention: SkeletonAttention, hidden_states: torch.Tensor, places: torch.Tensor, columns: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Where they are read: K1 and V1 of the landmark tokens (B, s1, h, p), K2 and V2 of the sampled channels (B, S, h, s2)."""
    batch, _, hidden_size = hidden_states.shape
    layers, heads = (attention.key, attention.value), (2, attention.num_heads, -1)
    weight = in_product_dtype(torch.cat([layer.weight for layer in layers]))  # (2 H, H)
    bias = in_product_dtype(torch.cat([layer.bias for layer in layers]))
    landmarks = hidden_states.gather(1, places[:, :, None].expand(batch, -1, hidden_size))  # (B, s1, H)
    of_rows = F.linear(landmarks, weight, bias).unflatten(2, heads)  # (B, s1, 2, h, p)
    weight, bias = (tensor.unflatten(0, heads).index_select(2, columns).flatten(0, 2) for tensor in (weight, bias))
    of_columns = F.linear(hidden_states, weight, bias).unflatten(2, heads)  # (B, S, 2, h, s2)
    return *of_rows.unbind(2), *of_columns.unbind(2)


def _row_scores(
    hidden_states: torch.Tensor, keys: torch.Tensor, query: torch.Tensor, query_bias: torch.Tensor
) -> torch.Tensor:
    """Q K1^T / sqrt(p), (B, h, s1, S), of tokens (B, S, H), keys of landmark tokens (B, s1, h, p) and the query layer by heads."""
    batch, count, num_heads, head_size = keys.shape
    by_head = (keys * head_size**-0.5).flatten(0, 1).transpose(0, 1)  # (h, B s1, p)
    weights = torch.bmm(by_head, query)  # (h, B s1, H)
    offsets = torch.bmm(by_head, query_bias[:, :, None])  # (h, B s1, 1)
    weights, offsets = (
        part.unflatten(1, (batch, count)).transpose(0, 1).flatten(1, 2).transpose(1, 2) for part in (weights, offsets)
    )
    # Tokens first, so that their gradient comes in their own layout; then with tokens last, which suits all that follows.
    scores = torch.baddbmm(offsets, hidden_states, weights)  # (B, S, h s1)
    return scores.transpose(1, 2).contiguous().unflatten(1, (num_heads, -1))


def _column_scores(
    hidden_states: torch.Tensor, keys: torch.Tensor, query: torch.Tensor, query_bias: torch.Tensor
) -> torch.Tensor:
    """K2^T Q, (h, B, s2, p), of tokens (B, S, H), scaled keys (B, S, h, s2) that are zero at padding, and the query layer by heads."""
    batch, _, num_heads, count = keys.shape
    keys = keys.flatten(2)
    summary = torch.bmm(keys.transpose(1, 2), hidden_states)  # (B, h s2, H)
    summary, sums = (
        part.unflatten(1, (num_heads, count)).transpose(0, 1) for part in (summary, keys.sum(1, dtype=summary.dtype))
    )
    offsets = sums[..., None] * query_bias[:, None, None]  # (h, B, s2, p)
    scores = torch.baddbmm(offsets.flatten(1, 2), summary.flatten(1, 2), query.transpose(1, 2))
    return scores.unflatten(1, (batch, count))


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

    """
    parts = len(norms)
    batch, _, _, length = coefficients[0].shape
    weight = in_product_dtype(projection.weight)
    gains = torch.stack([norm.weight for norm in norms]) * (weight.shape[1] ** 0.5 / parts)  # (parts, H)
    # Parts of one size go through all of this at once.
    if parts == 2 and vectors[0].shape == vectors[1].shape:
        groups = [(torch.stack(coefficients, 1), torch.stack(vectors, 1), gains)]
    else:
        groups = [(x[:, None], r[:, None], g[None]) for x, r, g in zip(coefficients, vectors, gains)]
    pairs = [_normalised_mixture(*group, weight, norms[0].eps, mask) for group in groups]
    taken, rows = (torch.cat(tensors, 1) if len(pairs) > 1 else tensors[0] for tensors in zip(*pairs))
    # What every real token takes once; padding takes the projection's bias alone.
    constant = F.linear(torch.stack([norm.bias for norm in norms]).mean(0), weight)
    nothing = torch.zeros_like(constant) if projection.bias is None else in_product_dtype(projection.bias)
    constant = constant + nothing
    if mask is not None:
        constant = torch.where(mask[:, :, None], constant, nothing)
    return torch.baddbmm(constant.expand(batch, length, -1), taken.transpose(1, 2), rows)


def _normalised_mixture(
    x: torch.Tensor, r: torch.Tensor, gains: torch.Tensor, weight: torch.Tensor, eps: float, mask: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Y (B, n, S) and M (B, n, H), such that Y^T M sums over q parts what the projection makes of gain * norm(X^T R).

    A head's share of X^T R is X^T (R - m) + X^T m 1^T, m (s) the means of its vectors, and of that LayerNorm takes away the mean over
    heads of X^T m. So with the vectors [R - m; 1] and the coefficients [X; X^T m - mean] nothing has to be centred any more: the
    variance is a sum of squares, without the cancellation of E[x^2] - E[x]^2, and the scale and the projection act on the vectors.

    Args:
        x, r: X (B, q, h, s, S) and R (B, q, h, s, p). gains: (q, H), already times sqrt(H). weight: the projection's,
            (H, H). mask: (B, S).
    """
    batch, parts, num_heads, _, head_size = r.shape
    size = num_heads * head_size  # H
    with torch.autocast(x.device.type, enabled=False):
        x, r = at_least_float32(x), at_least_float32(r)
        means = r.mean(-1, keepdim=True)
        of_heads = means.transpose(3, 4) @ x  # (B, q, h, 1, S)
        x = torch.cat((x, of_heads - of_heads.mean(2, keepdim=True)), 3)
        r = F.pad(r - means, (0, 0, 0, 1), value=1.0)
        squares = ((r @ r.transpose(3, 4) @ x) * x).sum((2, 3))  # (B, q, S), of all channels
        inverse = torch.rsqrt(squares.relu() + size * eps)  # over the square root of H
        if mask is not None:
            # Filled, not multiplied: an exporter drops so small an eps, and then the norm of nothing is infinite.
            inverse = inverse.masked_fill(~mask[:, None], 0)
        x = (x * inverse[:, :, None, None]).flatten(1, 3)
        r = r * gains.view(parts, num_heads, 1, head_size)
    by_head = r.permute(2, 0, 1, 3, 4).flatten(1, 3).to(weight.dtype)  # (h, B q (s + 1), p)
    rows = torch.bmm(by_head, weight.unflatten(1, (num_heads, -1)).permute(1, 2, 0))
    rows = rows.unflatten(1, (batch, parts, -1)).permute(1, 2, 0, 3, 4)  # (B, q, h, s + 1, H)
    return x.to(weight.dtype), rows.flatten(1, 3)
