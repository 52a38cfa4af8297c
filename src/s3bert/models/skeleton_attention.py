"""S3Attention's skeleton attention (Section III-A, Algorithm 1): attention over a few sampled tokens and channels.

Letters and the paper are those of mixer_s3.py. fast_attention.py has the same numbers in fewer operations.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from .numerics import at_least_float32, zero_padding


class SkeletonAttention(nn.Module):
    """Row attention over sampled tokens and column attention over sampled channels (Section III-A, Algorithm 1).

    The landmarks are persistent buffers drawn by a private generator, so a checkpoint keeps them and building a model
    leaves the global generator alone. `row_positions` are fractions of `landmark_length`: a sequence of n real tokens
    takes its tokens number floor((i + 0.5) n / landmark_length), each once, or all its tokens when n <= s1.

    Args:
        hidden_size: H.
        num_heads: h.
        num_row_samples: s1.
        num_column_samples: s2.
        landmark_length: tokens of a sequence for which `row_positions` are the sampled positions themselves.
        landmark_sampling: "fixed", or "resample" for fresh landmarks in every training forward.
        landmark_seed, layer_index: seed of this layer's landmarks.
        dropout: rate on both attention weights.
        row_norm_init: first gain of row attention's LayerNorm. The paper's is 1; at 0 row attention, whose first outputs are
            nearly one vector for all tokens, says nothing until the gain has grown.

    Raises:
        ValueError: h does not divide H; `row_norm_init` is no number from 0 to 1.
    """

    row_positions: torch.Tensor
    column_indices: torch.Tensor

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        num_row_samples: int = 8,
        num_column_samples: int = 8,
        landmark_length: int = 512,
        *,
        use_row_attention: bool = True,
        use_column_attention: bool = True,
        landmark_sampling: str = "fixed",
        landmark_seed: int = 0,
        layer_index: int = 0,
        dropout: float = 0.1,
        row_norm_init: float = 1.0,
        layer_norm_eps: float = 1e-12,
    ):
        super().__init__()
        if hidden_size % num_heads:
            raise ValueError(f"hidden_size = {hidden_size} is not divisible by num_heads = {num_heads}.")
        if not 0 <= row_norm_init <= 1:
            raise ValueError(f"row_norm_init = {row_norm_init}: a first gain lies between 0 and 1, the paper's.")
        self.num_heads = num_heads
        self.head_size = hidden_size // num_heads
        self.num_row_samples = min(num_row_samples, landmark_length)
        self.num_column_samples = min(num_column_samples, self.head_size)
        self.landmark_length = landmark_length
        self.use_row_attention = use_row_attention
        self.use_column_attention = use_column_attention
        self.landmark_sampling = landmark_sampling
        self.landmark_seed = landmark_seed
        self.layer_index = layer_index
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.value = nn.Linear(hidden_size, hidden_size)
        self.dropout = nn.Dropout(dropout)
        if use_row_attention:
            self.row_norm = nn.LayerNorm(hidden_size, eps=layer_norm_eps)
            nn.init.constant_(self.row_norm.weight, row_norm_init)
            # Where a model that is loaded without the weight finds it; torch declares a module's attributes as its parts.
            self.row_norm.first_gain = row_norm_init  # type: ignore[assignment]
        if use_column_attention:
            self.column_norm = nn.LayerNorm(hidden_size, eps=layer_norm_eps)
        row_positions, column_indices = self.seeded_landmarks()
        self.register_buffer("row_positions", row_positions)  # (s1), sorted
        self.register_buffer("column_indices", column_indices)  # (s2), sorted, shared by the heads

    def forward(
        self, hidden_states: torch.Tensor, mask: torch.Tensor | None = None, use_sdpa: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """(B, S, H) -> mixed states (B, S, H), zero at padding, and row attention's weights (B, h, S, s1) or None.

        `use_sdpa` is passed on to `row_attention`. The weights' last axis runs over the landmark tokens in their order; slots
        a sequence does not fill (it is shorter than s1, or one of its tokens was drawn twice) hold zeros. Column attention's
        weights, (B, h, p, s2) over the sampled channels, are not returned.
        """
        hidden_states = zero_padding(hidden_states, mask)
        query, key, value = (self.heads(linear(hidden_states)) for linear in (self.query, self.key, self.value))
        places, counts, columns, lengths = self.landmarks(hidden_states, mask)
        index = places[:, None, :, None].expand(-1, self.num_heads, -1, self.head_size)
        row_parts = key.gather(2, index), value.gather(2, index)  # K1, V1: (B, h, s1, p)
        column_parts = key[..., columns], value[..., columns]  # K2, V2: (B, h, S, s2)
        return self.mix(query, row_parts, column_parts, counts, lengths, mask, use_sdpa)

    def mix(
        self,
        query: torch.Tensor,
        row_parts: Sequence[torch.Tensor],
        column_parts: Sequence[torch.Tensor],
        counts: torch.Tensor,
        lengths: torch.Tensor,
        mask: torch.Tensor | None,
        use_sdpa: bool,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Algorithm 1 of queries (B, h, S, p) and of keys and values where they are read; as `forward` returns it."""
        mixed, row_weights = [], None
        if self.use_row_attention:
            key, value = row_parts
            row, row_weights = self.row_attention(query, key, value, counts, use_sdpa)
            mixed.append(self.row_norm(row.transpose(1, 2).flatten(2)))  # (B, S, H)
        if self.use_column_attention:
            key, value = column_parts
            column = self.column_attention(query, key, value, lengths, mask)
            mixed.append(self.column_norm(column.transpose(1, 2).flatten(2)))
        # Algorithm 1's average; eq. 1 prints the sum. Zeroed again, because at padded tokens the norms see all-zero
        # vectors, where their slope is 1 / sqrt(eps) and any gradient explodes.
        return zero_padding(sum(mixed) / len(mixed), mask), row_weights

    def row_attention(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, counts: torch.Tensor, use_sdpa: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """softmax(Q K1^T / sqrt(p)) V1 over the landmark tokens; (B, h, S, p) and the weights (B, h, S, s1).

        With `use_sdpa` it runs in torch's `scaled_dot_product_attention`, which gives no weights.
        """
        counts = counts[:, None, None]  # (B, 1, 1, s1)
        if use_sdpa:
            # A sequence with no real token at all reads slot 0, for finite numbers that padding zeroes.
            counts = counts | (torch.arange(counts.shape[-1], device=counts.device) == 0)
            rate = self.dropout.p if self.training else 0.0
            return F.scaled_dot_product_attention(query, key, value, attn_mask=counts, dropout_p=rate), None
        scores = query @ key.transpose(2, 3) / math.sqrt(self.head_size)
        weights = softmax_over(scores, counts, dim=3)
        return self.dropout(weights).to(value.dtype) @ value, weights

    def column_attention(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        lengths: torch.Tensor,
        mask: torch.Tensor | None,
    ) -> torch.Tensor:
        """V2 softmax(Q^T K2 / sqrt(n))^T over the sampled channels, n each sequence's real tokens; (B, h, S, p)."""
        if mask is not None:
            key = key.masked_fill(~mask[:, None, :, None], 0)
        # Scaled before the sum over tokens, which could leave fp16's range.
        key = key * lengths.clamp(min=1).to(key.dtype).rsqrt()[:, :, None, None]  # (B, h, S, s2)
        scores = at_least_float32(query.transpose(2, 3) @ key)  # (B, h, p, s2)
        weights = self.dropout(scores.softmax(-1)).to(value.dtype)
        return value @ weights.transpose(2, 3)

    def heads(self, states: torch.Tensor) -> torch.Tensor:
        """(B, S, H) -> (B, h, S, p)."""
        return states.unflatten(-1, (self.num_heads, self.head_size)).transpose(1, 2)

    def seeded_landmarks(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The fixed landmarks (s1) and (s2), a function of `landmark_seed` and `layer_index` alone (Algorithm 1)."""
        # A prime multiplier keeps (seed, layer) pairs apart for any realistic number of layers.
        generator = torch.Generator().manual_seed(self.landmark_seed * 1_000_003 + self.layer_index)
        rows = torch.randperm(self.landmark_length, generator=generator)[: self.num_row_samples]
        columns = torch.randperm(self.head_size, generator=generator)[: self.num_column_samples]
        return rows.sort().values, columns.sort().values

    def landmarks(
        self, hidden_states: torch.Tensor, mask: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Where each sequence's landmark tokens lie, (B, s1) indices into S; which of these slots count, (B, s1) booleans;
        the sampled channels (s2); and each sequence's real tokens (B, 1)."""
        batch, length, _ = hidden_states.shape
        if mask is None:
            lengths = torch.full((batch, 1), length, device=hidden_states.device)
        else:
            lengths = mask.sum(1, keepdim=True)
        rows, columns = self.row_positions, self.column_indices
        if self.training and self.landmark_sampling == "resample":
            # The default generator: gradient checkpointing restores it, so that the second pass draws the same landmarks.
            rows = torch.randperm(self.landmark_length, device=lengths.device)[: self.num_row_samples].sort().values
            columns = torch.randperm(self.head_size, device=lengths.device)[: self.num_column_samples].sort().values

        slots = torch.arange(rows.numel(), device=rows.device)
        scaled = (2 * rows + 1) * lengths // (2 * self.landmark_length)  # (B, s1), ascending
        repeated = F.pad(scaled[:, 1:] == scaled[:, :-1], (1, 0))
        takes_all = lengths <= rows.numel()
        counts = (slots < lengths) & (takes_all | ~repeated)
        # Slots that do not count point at the first real token, never at what lies under the mask.
        places = torch.where(counts, torch.where(takes_all, slots, scaled), 0)
        if mask is not None:
            # Token number k is the place where the running count of real tokens first reaches k + 1.
            places = (mask.cumsum(1)[:, None] <= places[:, :, None]).sum(2).clamp(max=length - 1)
        return places, counts, columns, lengths


def softmax_over(scores: torch.Tensor, counts: torch.Tensor, dim: int) -> torch.Tensor:
    """Softmax along `dim` over the entries that count, in float32; the others get zeros."""
    scores = at_least_float32(scores)
    weights = scores.masked_fill(~counts, torch.finfo(scores.dtype).min).softmax(dim)
    return weights.masked_fill(~counts, 0)  # a sequence with no real token at all gets zeros, not NaN
