"""The delta rule of fast weights (Schlag et al., ICML 2021, arXiv 2102.11174), by chunks (Yang et al., NeurIPS 2024, arXiv 2406.06484).

    W_i = W_{i-1} + b_i k_i (v_i - W_{i-1}^T k_i)^T,   y_i = W_i^T q_i           (Schlag et al., section 4.2)

A token replaces what the state holds under its key by its value, to the share b_i, and then reads.
"""

import torch
from torch.nn import functional as F


_DELTA_CHUNK = 64  # tokens that are solved for at once


def delta_rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    strength: torch.Tensor,
    past: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What each token reads, (B, h, S, p), and the state after them, W, (B, h, m, p); no S x S matrix, and a loop over chunks alone.

    Within a chunk that begins with the state W, the tokens' writes u_i solve u_i + b_i sum_{j<i} (k_i . k_j) u_j = b_i (v_i - W^T k_i).
    The triangle does not depend on W: it is solved for all chunks at once (the WY representation; Yang et al., section 3).

    Args:
        query, key: features (B, h, S, m). value: (B, h, S, p). strength: b, (B, h, S, 1); 0 where nothing is to be written.
        past: the state after tokens that came before, else nothing is held. With it, one token is one step of the recurrence.
    """
    length, features = query.shape[2:]
    if past is not None and length == 1:
        past = torch.addcmul(past, key.transpose(2, 3), strength * (value - key @ past))
        return query @ past, past
    # A program that is exported for all lengths has no loop.
    size = length if torch.compiler.is_exporting() else min(_DELTA_CHUNK, length)
    # (B, h, chunks, c, ...)
    query, key, value, strength = (
        F.pad(states, (0, 0, 0, -length % size)).unflatten(2, (-1, size)) for states in (query, key, value, strength)
    )
    overlaps = (strength * (key @ key.transpose(3, 4))).tril(-1)
    solved = torch.linalg.solve_triangular(
        overlaps, strength * torch.cat([value, key], 4), upper=False, unitriangular=True
    )
    values, keys = solved.split([value.shape[4], features], 4)  # u_i = values_i - W^T keys_i
    within = (query @ key.transpose(3, 4)).tril()
    state = query.new_zeros(*query.shape[:2], features, value.shape[4]) if past is None else past
    reads = []
    for chunk in range(query.shape[2]):
        writes = values[:, :, chunk] - keys[:, :, chunk] @ state
        reads.append(query[:, :, chunk] @ state + within[:, :, chunk] @ writes)
        state = state + key[:, :, chunk].transpose(2, 3) @ writes
    return torch.cat(reads, 2)[:, :, :length], state
