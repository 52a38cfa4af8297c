"""Skeleton attention in fewer operations: exact re-associations of skeleton_attention.py, the direct form, up to the rounding of
float32.

    skip-KV     full queries, but keys and values only where they are read: s1 tokens and s2 channels
    low-rank    a head mixes s1 + s2 vectors, so neither queries nor the output projection have to touch every token

Both read the weights of modules without calling them; mixer_s3.py says when that is the same. B, S, H, h, p, s1, s2 as there.
"""


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
    hidden_states = zero_padding(hidden_states, mask)
    places, counts, columns, lengths = attention.landmarks(hidden_states, mask)
    row_keys, row_values, keys, values = _keys_and_values(attention, hidden_states, places, columns)
    query = in_product_dtype(attention.query.weight).unflatten(0, (attention.num_heads, -1))  # (h, p, H)
    query_bias = in_product_dtype(attention.query.bias).unflatten(0, (attention.num_heads, -1))
    coefficients, vectors, norms, row_weights = [], [], [], None
    if attention.use_row_attention:
        weights = softmax_over(_row_scores(hidden_states, row_keys, query, query_bias), counts, dim=2)  # (B, h, s1, S)
        row_weights = weights.transpose(2, 3)
        coefficients.append(attention.dropout(weights))
        vectors.append(row_values.transpose(1, 2))
        norms.append(attention.row_norm)
    if attention.use_column_attention:
        scores = _column_scores(hidden_states, scale_keys(keys, lengths, mask), query, query_bias)
        weights = softmax_over(scores, None, dim=2)  # (h, B, s2, p)
        coefficients.append(values.permute(0, 2, 3, 1))
        vectors.append(attention.dropout(weights).transpose(0, 1))
        norms.append(attention.column_norm)
    return _projected_mixture(coefficients, vectors, norms, projection, mask), row_weights


def in_product_dtype(weight: torch.Tensor) -> torch.Tensor:
    """A weight that several products read, as autocast hands it to each: cast once, where it would be cast for every one."""
    kind = weight.device.type
    return weight.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else weight


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
    by_head = keys.flatten(0, 1).transpose(0, 1)  # (h, B s1, p)
    weights = torch.bmm(by_head, query)  # (h, B s1, H)
    offsets = torch.bmm(by_head, query_bias[:, :, None])  # (h, B s1, 1)
    weights, offsets = (
        part.unflatten(1, (batch, count)).transpose(0, 1).flatten(1, 2).transpose(1, 2) for part in (weights, offsets)
    )
    # Tokens first, so that their gradient comes in their own layout; then with tokens last, which suits all that follows.
    scale = head_size**-0.5
    scores = torch.baddbmm(offsets, hidden_states, weights, beta=scale, alpha=scale)
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
    scores = torch.bmm(summary.flatten(1, 2), query.transpose(1, 2)).unflatten(1, (batch, count))
    return torch.addcmul(scores, sums[..., None], query_bias[:, None, None])


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
    affine = torch.stack([norm.weight for norm in norms] + [norm.bias for norm in norms])  # (2 parts, H)
    gains, weight = affine[:parts], in_product_dtype(projection.weight)
    gains_projected, biases_projected = F.linear(affine, weight).chunk(2)  # (parts, H)
    # Parts of one size go through all of this at once.
    together = parts == 2 and vectors[0].shape == vectors[1].shape
    if together:
        groups = [(torch.stack(coefficients, 1), torch.stack(vectors, 1), gains, gains_projected)]
    else:
        lists = coefficients, vectors, gains, gains_projected
        groups = [
            tuple(tensor[None] if tensor.dim() == 1 else tensor[:, None] for tensor in part) for part in zip(*lists)
        ]
    pairs = [_normalised_mixture(*group, weight, norms[0].eps, mask) for group in groups]
    taken, rows = (torch.cat(tensors, 1) if len(pairs) > 1 else tensors[0] for tensors in zip(*pairs))
    # What every real token takes once; padding takes the projection's bias alone.
    constant = biases_projected.mean(0)
    nothing = torch.zeros_like(constant) if projection.bias is None else in_product_dtype(projection.bias)
    constant = constant + nothing
    if mask is not None:
        constant = torch.where(mask[:, :, None], constant, nothing)
    base = constant.expand(*taken.shape[:1], taken.shape[2], -1)
    return torch.baddbmm(base, taken.transpose(1, 2).to(rows.dtype), rows, alpha=1 / parts)


def _normalised_mixture(
    x: torch.Tensor,
    r: torch.Tensor,
    gains: torch.Tensor,
    gains_projected: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    mask: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """X / std (B, q h s, S) and M (B, q h s, H), such that the sum over the q parts of the projected norm of X^T R is (X / std)^T M.

    Args:
        x, r: X (B, q, h, s, S) and R (B, q, h, s, p). gains, gains_projected: the norms' (q, H), and what the projection makes of them.
        weight: the projection's, (H, H).
    """
    _, parts, num_heads, _, head_size = r.shape
    with torch.autocast(x.device.type, enabled=False):
        x, r = at_least_float32(x), at_least_float32(r)
        means = r.mean(-1, keepdim=True)
        centred = r - means
        within = (centred @ centred.transpose(3, 4) @ x * x).sum((2, 3))  # (B, q, S), H times the variance within heads
        of_heads = (means.transpose(3, 4) @ x).squeeze(3)  # (B, q, h, S)
        between = (of_heads - of_heads.mean(2, keepdim=True)).square().mean(2)
        variance = torch.add(between, within, alpha=1 / (num_heads * head_size))
        inverse = torch.rsqrt(variance.clamp(min=0) + eps)
        if mask is not None:
            inverse = inverse * mask[:, None]
        taken = (x * inverse[:, :, None, None]).flatten(1, 3)
        gained = r * gains.view(parts, num_heads, 1, head_size)
    by_head = gained.permute(2, 0, 1, 3, 4).flatten(1, 3).to(weight.dtype)  # (h, B q s, p)
    rows = torch.bmm(by_head, weight.unflatten(1, (num_heads, -1)).permute(1, 2, 0))
    rows = rows.unflatten(1, (len(x), parts, -1)).permute(1, 2, 0, 3, 4)  # (B, q, h, s, H)
    means = means.to(rows.dtype)
    rows = torch.addcmul(rows, means, gains_projected[:, None, None].to(rows.dtype), value=-1 / num_heads)
    return taken, rows.flatten(1, 3)
