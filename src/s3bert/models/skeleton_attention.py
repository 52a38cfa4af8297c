"""S3Attention's skeleton attention (Section III-A, Algorithm 1): attention over a few sampled tokens and channels.

Letters and the paper are those of mixer_s3.py.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from .fast_s3 import (
    ATTENTION_FORMS,
    cheapest_attention_form,
    column_reader,
    is_plain,
    low_rank_column_scores,
    projected_mixture,
    read_tokens,
    row_score_reader,
)
from .numerics import at_least_float32, zero_padding


class SkeletonAttention(nn.Module):
    """Row attention over sampled tokens and column attention over sampled channels (Section III-A, Algorithm 1).

    The landmarks are persistent buffers drawn by a private generator, so a checkpoint keeps them and building a model
    leaves the global generator alone. `row_positions` are fractions of `landmark_length`: a sequence of n real tokens
    takes its tokens number floor((i + 0.5) n / landmark_length), each once, or all its tokens when n <= s1.

    Args:
        hidden_size: H. num_heads: h. num_row_samples: s1. num_column_samples: s2.
        landmark_length: tokens of a sequence for which `row_positions` are the sampled positions themselves.
        landmark_sampling: "fixed", or "resample" for fresh landmarks in every training forward.
        landmark_seed, layer_index: seed of this layer's landmarks.
        dropout: rate on both attention weights.

    Raises:
        ValueError: h does not divide H.
    """

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
        layer_norm_eps: float = 1e-12,
        form: str = "auto",
    ):
        super().__init__()
        if hidden_size % num_heads:
            raise ValueError(f"hidden_size = {hidden_size} is not divisible by num_heads = {num_heads}.")
        if form not in ("auto", *ATTENTION_FORMS):
            raise ValueError(
                f"form = {form!r}: skeleton attention knows 'auto', {', '.join(map(repr, ATTENTION_FORMS))}."
            )
        self.form = form
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
        if use_column_attention:
            self.column_norm = nn.LayerNorm(hidden_size, eps=layer_norm_eps)
        row_positions, column_indices = self.seeded_landmarks()
        self.register_buffer("row_positions", row_positions)  # (s1), sorted
        self.register_buffer("column_indices", column_indices)  # (s2), sorted, shared by the heads

    def seeded_landmarks(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The fixed landmarks (s1) and (s2), a function of `landmark_seed` and `layer_index` alone (Algorithm 1)."""
        # A prime multiplier keeps (seed, layer) pairs apart for any realistic number of layers.
        generator = torch.Generator().manual_seed(self.landmark_seed * 1_000_003 + self.layer_index)
        rows = torch.randperm(self.landmark_length, generator=generator)[: self.num_row_samples]
        columns = torch.randperm(self.head_size, generator=generator)[: self.num_column_samples]
        return rows.sort().values, columns.sort().values

    def forward(
        self,
        hidden_states: torch.Tensor,
        mask: torch.Tensor | None = None,
        projection: Callable[[], nn.Module] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """(B, S, H) -> mixed states (B, S, H), row attention weights (B, h, S, s1) or None without row attention.

        Where `projection` names a module (H to H), what that makes of the mixed states is returned in their place. It comes
        as a function because frameworks that move a module's arguments to its device would move the module.

        The last axis of the weights runs over the landmark tokens in their order; slots a sequence does not fill (it is
        shorter than s1, or one of its tokens was drawn twice) hold zeros. Column attention's weights, (B, h, p, s2)
        over the sampled channels, are not returned.
        """
        batch, length, _ = hidden_states.shape
        hidden_states = zero_padding(hidden_states, mask)
        if mask is None:
            lengths = torch.full((batch, 1), length, device=hidden_states.device)
        else:
            lengths = mask.sum(1, keepdim=True)  # (B, 1), real tokens
        rows, columns = self._landmarks(hidden_states.device)
        places, counts = self._landmark_tokens(rows, lengths, mask)
        projection = None if projection is None else projection()
        form = self._form(batch, length, projection)
        if form == "low_rank":
            return self._low_rank_attention(hidden_states, mask, lengths, places, ~counts, columns, projection)

        query = self._heads(self.query(hidden_states))  # (B, h, S, p)
        if form == "direct":
            key, value = (self._heads(linear(hidden_states)) for linear in (self.key, self.value))
            index = places[:, None, :, None].expand(-1, self.num_heads, -1, self.head_size)
            landmark_key, landmark_value = key.gather(2, index), value.gather(2, index)  # (B, h, s1, p)
            key, value = key[..., columns], value[..., columns]  # (B, h, S, s2)
        mixed, row_weights = [], None
        if self.use_row_attention:
            if form == "skip_kv":
                landmark_key, landmark_value = self._landmark_states(hidden_states, places)
            row, row_weights = self._row_attention(query, landmark_key, landmark_value, ~counts)
            mixed.append(self.row_norm(row.transpose(1, 2).flatten(2)))  # (B, S, H)
        if self.use_column_attention:
            if form == "skip_kv":
                readers = [column_reader(layer, columns, self.num_heads) for layer in (self.key, self.value)]
                key, value = (self._sampled(seen).transpose(2, 3) for seen in read_tokens(hidden_states, readers))
            column = self._column_attention(query, key, value, lengths, mask)
            mixed.append(self.column_norm(column.transpose(1, 2).flatten(2)))
        # Algorithm 1's average; eq. 1 prints the sum. Zeroed again, because at padded tokens the norms see all-zero
        # vectors, where their slope is 1 / sqrt(eps) and any gradient explodes.
        mixed = zero_padding(sum(mixed) / len(mixed), mask)
        return mixed if projection is None else projection(mixed), row_weights

    def _form(self, batch: int | None, length: int, projection: nn.Module | None) -> str:
        """The form asked for, or the next exact one where modules must be called."""
        form = self.form
        if form == "auto":
            if torch.compiler.is_exporting():  # the graph is used at all sizes: the rule takes the landmarks' length
                batch, length = None, self.landmark_length
            samples = self.num_row_samples, self.num_column_samples
            form = cheapest_attention_form(length, self.head_size, *samples, batch)
        if form == "low_rank":
            norms = [getattr(self, name) for name in ("row_norm", "column_norm") if hasattr(self, name)]
            plain = projection is not None and is_plain(projection, nn.Linear) and is_plain(self.query, nn.Linear)
            # A head of column attention is a multiple of one channel then, and the variance of so few loses digits.
            degenerate = self.use_column_attention and self.num_column_samples == 1
            if degenerate or not (plain and all(is_plain(norm, nn.LayerNorm) for norm in norms)):
                form = "skip_kv"
        plain = is_plain(self.key, nn.Linear) and is_plain(self.value, nn.Linear)
        return form if plain else "direct"

    def _heads(self, states: torch.Tensor) -> torch.Tensor:
        return states.unflatten(-1, (self.num_heads, self.head_size)).transpose(1, 2)  # (B, h, S, p)

    def _landmarks(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        if not (self.training and self.landmark_sampling == "resample"):
            return self.row_positions, self.column_indices
        # The default generator: gradient checkpointing restores it, so that the second pass draws the same landmarks.
        rows = torch.randperm(self.landmark_length, device=device)[: self.num_row_samples]
        columns = torch.randperm(self.head_size, device=device)[: self.num_column_samples]
        return rows.sort().values, columns.sort().values

    def _landmark_tokens(
        self, rows: torch.Tensor, lengths: torch.Tensor, mask: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Where each sequence's landmark tokens lie, (B, s1) indices into S, and which slots count, (B, s1) booleans."""
        slots = torch.arange(rows.numel(), device=rows.device)
        scaled = (2 * rows + 1) * lengths // (2 * self.landmark_length)  # (B, s1), ascending
        repeated = F.pad(scaled[:, 1:] == scaled[:, :-1], (1, 0))
        takes_all = lengths <= rows.numel()
        counts = (slots < lengths) & (takes_all | ~repeated)
        # Slots that do not count point at the first real token, never at what lies under the mask.
        numbers = torch.where(counts, torch.where(takes_all, slots, scaled), 0)
        if mask is None:
            return numbers, counts
        # Token number k is the place where the running count of real tokens first reaches k + 1.
        places = (mask.cumsum(1)[:, None] <= numbers[:, :, None]).sum(2)
        return places.clamp(max=mask.shape[1] - 1), counts

    def _landmark_states(self, hidden_states, places) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of the landmark tokens alone, (B, h, s1, p) each."""
        batch, length, _ = hidden_states.shape
        offsets = torch.arange(batch, device=places.device)[:, None] * length
        landmarks = hidden_states.flatten(0, 1).index_select(0, (places + offsets).flatten())
        landmarks = landmarks.unflatten(0, (batch, -1))  # (B, s1, H)
        return self._heads(self.key(landmarks)), self._heads(self.value(landmarks))

    def _row_attention(self, query, key, value, excluded) -> tuple[torch.Tensor, torch.Tensor]:
        """softmax(Q K1^T / sqrt(p)) V1 over the landmark tokens; (B, h, S, p) and the weights (B, h, S, s1)."""
        scores = query @ key.transpose(2, 3) / math.sqrt(self.head_size)
        weights = _softmax_without(scores, excluded[:, None, None], dim=3)
        return self.dropout(weights).to(value.dtype) @ value, weights

    def _column_attention(self, query, key, value, lengths, mask) -> torch.Tensor:
        """V2 softmax(Q^T K2 / sqrt(n))^T over the sampled channels, n each sequence's real tokens; (B, h, S, p)."""
        if mask is not None:
            key = key.masked_fill(~mask[:, None, :, None], 0)
        # Scaled before the sum over tokens, which could leave fp16's range.
        key = key * lengths.clamp(min=1).to(key.dtype).rsqrt()[:, :, None, None]  # (B, h, S, s2)
        scores = at_least_float32(query.transpose(2, 3) @ key)  # (B, h, p, s2)
        weights = self.dropout(scores.softmax(-1)).to(value.dtype)
        return value @ weights.transpose(2, 3)

    def _low_rank_attention(self, hidden_states, mask, lengths, places, excluded, columns, projection):
        """`forward` by the low-rank form, in which tokens meet only the s1 + s2 vectors a head that they mix."""
        readers = []
        if self.use_row_attention:
            landmark_key, landmark_value = self._landmark_states(hidden_states, places)  # (B, h, s1, p)
            readers.append(row_score_reader(landmark_key / math.sqrt(self.head_size), self.query))
        if self.use_column_attention:
            readers += [column_reader(layer, columns, self.num_heads) for layer in (self.key, self.value)]
        seen = [self._sampled(tokens) for tokens in read_tokens(hidden_states, readers)]  # (B, h, s, S) each
        coefficients, vectors, norms, row_weights = [], [], [], None
        if self.use_row_attention:
            weights = _softmax_without(seen.pop(0), excluded[:, None, :, None], dim=2)  # (B, h, s1, S)
            row_weights = weights.transpose(2, 3)
            coefficients.append(self.dropout(weights))
            vectors.append(landmark_value)
            norms.append(self.row_norm)
        if self.use_column_attention:
            key, value = seen
            if mask is not None:
                key = key.masked_fill(~mask[:, None, None], 0)
            key = key * lengths.clamp(min=1).to(key.dtype).rsqrt()[:, :, None, None]
            scores = at_least_float32(low_rank_column_scores(hidden_states, key, self.query))
            weights = self.dropout(scores.softmax(2))  # (B, h, s2, p)
            coefficients.append(value)
            vectors.append(weights.to(value.dtype))
            norms.append(self.column_norm)
        return projected_mixture(coefficients, vectors, norms, projection, mask), row_weights

    def _sampled(self, seen: torch.Tensor) -> torch.Tensor:
        return seen.unflatten(1, (self.num_heads, -1))  # (B, h, s, S)


def _softmax_without(scores: torch.Tensor, excluded: torch.Tensor, dim: int) -> torch.Tensor:
    """Softmax along `dim` over the entries that are not `excluded`, in float32; those get zeros."""
    scores = at_least_float32(scores)
    weights = scores.masked_fill(excluded, torch.finfo(scores.dtype).min).softmax(dim)
    return weights.masked_fill(excluded, 0)  # a sequence with no real token at all gets zeros, not NaN
