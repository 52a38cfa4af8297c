"""S3Attention's skeleton attention (Section III-A, Algorithm 1): attention over a few sampled tokens and channels.

Letters and the paper are those of mixer_s3.py. fast_attention.py has the same numbers in fewer operations.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from .numerics import zero_padding


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
        index = places[:, None, :, None].expand(key.shape[0], self.num_heads, -1, self.head_size)
        row_parts = key.gather(2, index), value.gather(2, index)  # K1, V1: (B, h, s1, p)
        scaled = scale_keys(key[..., columns].transpose(1, 2), lengths, mask).transpose(1, 2)
        column_parts = scaled, value[..., columns]  # K2 / sqrt(n), V2: (B, h, S, s2)
        return self.mix(query, row_parts, column_parts, counts, mask, use_sdpa)

    def mix(
        self,
        query: torch.Tensor,
        row_parts: Sequence[torch.Tensor],
        column_parts: Sequence[torch.Tensor],
        counts: torch.Tensor | None,
        mask: torch.Tensor | None,
        use_sdpa: bool,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Algorithm 1 of queries (B, h, S, p) and of keys and values where they are read, (B, h, s1, p) and (B, h, S, s2); as
        `forward` returns it."""
        query = query.contiguous()  # once: each product would copy it
        mixed, row_weights = [], None
        if self.use_row_attention:
            key, value = row_parts
            row, row_weights = self.row_attention(query, key, value, counts, use_sdpa)
            mixed.append(self.row_norm(row.transpose(1, 2).flatten(2)))  # (B, S, H)
        if self.use_column_attention:
            key, value = column_parts
            column = self.column_attention(query, key, value)
            mixed.append(self.column_norm(column.transpose(1, 2).flatten(2)))
        # Algorithm 1's average; eq. 1 prints the sum. Zeroed again, because at padded tokens the norms see all-zero
        # vectors, where their slope is 1 / sqrt(eps) and any gradient explodes.
        return zero_padding(sum(mixed) / len(mixed), mask), row_weights

    def row_attention(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        counts: torch.Tensor | None,
        use_sdpa: bool,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """softmax(Q K1^T / sqrt(p)) V1 over the landmark tokens; (B, h, S, p) and the weights (B, h, S, s1).

        With `use_sdpa` it runs in torch's `scaled_dot_product_attention`, which gives no weights.
        """
        if use_sdpa:
            if counts is not None:
                # A sequence with no real token at all reads slot 0, for finite numbers that padding zeroes.
                counts = counts | (torch.arange(counts.shape[-1], device=counts.device) == 0)
                counts = counts[:, None, None]  # (B, 1, 1, s1)
            rate = self.dropout.p if self.training else 0.0
            return F.scaled_dot_product_attention(query, key, value, attn_mask=counts, dropout_p=rate), None
        scores = key @ query.transpose(2, 3) / math.sqrt(self.head_size)
        weights = softmax_over(scores, counts)  # (B, h, s1, S)
        return self.dropout(weights).to(value.dtype).transpose(2, 3) @ value, weights.transpose(2, 3)

    def column_attention(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """V2 softmax(Q^T K2 / sqrt(n))^T over the sampled channels, of keys that `scale_keys` gave; (B, h, S, p)."""
        weights = self.dropout(softmax_over(key.transpose(2, 3) @ query, None))  # (B, h, s2, p)
        return value @ weights.to(value.dtype)

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
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor | int]:
        """Where the landmark tokens lie, (B or 1, s1) indices into S; which of these slots count, (B or 1, s1) booleans, None where all
        do; the sampled channels (s2); and each sequence's real tokens (B, 1), or S where no mask is given."""
        length = hidden_states.shape[1]
        rows, columns = self.row_positions, self.column_indices
        if self.training and self.landmark_sampling == "resample":
            # The default generator: gradient checkpointing restores it, so that the second pass draws the same landmarks.
            rows = torch.randperm(self.landmark_length, device=rows.device)[: self.num_row_samples].sort().values
            columns = torch.randperm(self.head_size, device=rows.device)[: self.num_column_samples].sort().values
        if mask is None and not torch.compiler.is_exporting() and length == self.landmark_length:
            return rows[None], None, columns, length

        lengths = torch.full((1, 1), length, device=rows.device) if mask is None else mask.sum(1, keepdim=True)
        slots = torch.arange(rows.numel(), device=rows.device)
        scaled = (2 * rows + 1) * lengths // (2 * self.landmark_length)
        places = torch.where(lengths <= rows.numel(), slots, scaled)  # (B or 1, s1), ascending
        counts = (slots < lengths) & F.pad(places[:, 1:] != places[:, :-1], (1, 0), value=True)
        # Slots that do not count point at the first real token, never at what lies under the mask.
        places = places * counts
        if mask is None:
            return places, counts, columns, length
        # Token number k is the place where the running count of real tokens first reaches k + 1.
        places = (mask.cumsum(1)[:, None] <= places[:, :, None]).sum(2).clamp(max=length - 1)
        return places, counts, columns, lengths


def scale_keys(keys: torch.Tensor, lengths: torch.Tensor | int, mask: torch.Tensor | None) -> torch.Tensor:
    """K2 / sqrt(n), (B, S, ...), n each sequence's real tokens (B, 1), and zeros at padding.

    Before the sum over tokens, which could leave fp16's range.
    """
    if mask is None or isinstance(lengths, int):
        return keys * lengths**-0.5
    scale = mask * lengths.clamp(min=1).to(keys.dtype).rsqrt()  # (B, S)
    return keys * scale.view(*scale.shape, *[1] * (keys.dim() - 2))


def softmax_over(scores: torch.Tensor, counts: torch.Tensor | None) -> torch.Tensor:
    """Softmax in at least float32 along dimension 2 of (B, h, n, ...), over the entries that count; the others get zeros.

    Along a last axis of so few entries a CPU takes ten times as long.

    Args:
        counts: (B or 1, n) booleans; None where all count.
    """
    dtype = torch.promote_types(scores.dtype, torch.float32)
    if counts is None:
        return scores.softmax(2, dtype=dtype)
    left_out = ~counts[:, None, :, None]
    weights = scores.masked_fill(left_out, torch.finfo(scores.dtype).min).softmax(2, dtype=dtype)
    return weights.masked_fill(left_out, 0)  # a sequence with no real token at all gets zeros, not NaN
