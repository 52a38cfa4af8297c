"""S3Attention: the smoother and skeleton attention (Wang et al., "S3Attention: Improving Long Sequence Attention with
Smoothed Skeleton Sketching", IEEE JSTSP 2024). Equations and algorithms are cited by that paper's numbers.

Modules here take plain arguments, no config, so that each can be built and tested alone and serve other models. All of
them read (B, S, H) hidden states and an optional boolean mask (B, S), True at real tokens; what lies under the mask has
no influence on real tokens, and a mask of all ones gives what no mask gives.

    B batch    S length of this batch     N length the filter was trained for    F = N // 2 + 1 frequencies
    H hidden   h heads    p = H / h       r segments    s1 sampled rows (tokens)    s2 sampled columns (channels)
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from .fast_s3 import (
    ATTENTION_FORMS,
    SMOOTHER_FORMS,
    cheapest_attention_form,
    cheapest_smoother_form,
    column_reader,
    convolve,
    fft_length,
    fold_stem,
    folded_stem,
    inverse_transform,
    is_plain,
    low_rank_column_scores,
    multiply_pairs,
    projected_mixture,
    read_tokens,
    real_convolution,
    row_score_reader,
    short_spectrum,
    transform_means,
)
from .numerics import at_least_float32, zero_padding
from .position_norm import PositionBatchNorm


class Smoother(nn.Module):
    """Segment means, a learned Fourier convolution and a convolution stem (Section III-B, Algorithm 2).

    Args:
        hidden_size: H. num_segments: r, must divide H. max_length: N, tokens the filter spans.
        norm: "batch" (the paper's, per position) or "layer" (over H).
        dropout: rate after the stem's ReLU.
        use_fourier_convolution, use_convolution_stem: Table 7's switches. The stem reads [m; x], or x alone without
            the Fourier convolution; without the stem the Fourier output (or x) is returned as it is.

    Raises:
        ValueError: r does not divide H; an unknown norm; a sequence is longer than N.
    """

    def __init__(
        self,
        hidden_size: int,
        num_segments: int = 8,
        max_length: int = 512,
        *,
        norm: str = "batch",
        dropout: float = 0.1,
        use_fourier_convolution: bool = True,
        use_convolution_stem: bool = True,
        layer_norm_eps: float = 1e-12,
        form: str = "auto",
        fourier_impl: str = "fft",
    ):
        super().__init__()
        if hidden_size % num_segments:
            raise ValueError(f"hidden_size = {hidden_size} is not divisible by num_segments = {num_segments}.")
        for name, value, known in (
            ("norm", norm, ("batch", "layer")),
            ("form", form, ("auto", *SMOOTHER_FORMS)),
            ("fourier_impl", fourier_impl, ("fft", "matmul")),
        ):
            if value not in known:
                raise ValueError(f"{name} = {value!r}: the smoother knows {', '.join(map(repr, known))}.")
        self.num_segments = num_segments
        self.max_length = max_length
        self.norm_kind = norm
        self.use_fourier_convolution = use_fourier_convolution
        self.use_convolution_stem = use_convolution_stem
        self.form = form
        self.fourier_impl = fourier_impl
        self._kept: dict[
            int, tuple[int, ...]
        ] = {}  # points of each kept filter, and the weights' versions it was made of
        if use_fourier_convolution:
            # Real and imaginary part: complex parameters break fused AdamW, FSDP and casts.
            self.filter = nn.Parameter(torch.empty(max_length // 2 + 1, hidden_size, 2))  # (F, H, 2)
            nn.init.kaiming_normal_(self.filter, nonlinearity="relu")
        if use_convolution_stem:
            self.stem = nn.Conv1d((1 + use_fourier_convolution) * hidden_size, hidden_size, 3, padding=1)
            self.norm = PositionBatchNorm(max_length) if norm == "batch" else nn.LayerNorm(hidden_size, layer_norm_eps)
            self.dropout = nn.Dropout(dropout)

    def forward(
        self, hidden_states: torch.Tensor, mask: torch.Tensor | None = None, contiguous: bool = False
    ) -> torch.Tensor:
        """(B, S, H) -> (B, S, H); `contiguous` promises that the mask gives each sequence one run of real tokens."""
        batch, length, _ = hidden_states.shape
        if length > self.max_length:
            raise ValueError(
                f"The sequence has {length} tokens and the smoother's filter spans {self.max_length}: "
                f"shorten the input, or lengthen the model with resize_position_embeddings."
            )
        hidden_states = zero_padding(hidden_states, mask)
        form, points = self._form(batch, length, mask is None or contiguous)
        if form == "folded":
            features = self._folded_stem(hidden_states, mask, points)
        else:
            smoothed = hidden_states
            if self.use_fourier_convolution:
                # The filter's output goes on beyond the last token, and the stem's kernel of 3 would carry it back.
                smoothed = zero_padding(self.fourier_convolution(hidden_states, points), mask)
            if not self.use_convolution_stem:
                return smoothed
            features = self._stem(form, smoothed, hidden_states)
        return self.dropout(F.relu(self._normalise(features, mask)))

    def fourier_convolution(self, hidden_states: torch.Tensor, points: int | None = None) -> torch.Tensor:
        """Equations 3 and 4: each channel is its segment's mean under the channel's own N-long circular filter.

        `points` is the length of the FFT: N, or one that `short_spectrum` can serve.
        """
        length, points = hidden_states.shape[1], points or self.max_length
        with torch.autocast(hidden_states.device.type, enabled=False):
            means = self._segment_means(at_least_float32(hidden_states))  # (B, S, r), eq. 4
            kernel = short_spectrum(self.filter.to(means.dtype), self.max_length, points)  # (F, H, 2)
            kernel = kernel.unflatten(1, (1, self.num_segments, -1))  # (F, 1, r, H/r, 2)
            if self.fourier_impl == "matmul":
                smoothed = real_convolution(means, kernel, points).transpose(0, 1)  # (B, S, H)
            else:
                spectrum = transform_means(means, points)[:, :, :, None]  # (F, B, r, 1, 2)
                product = multiply_pairs(spectrum, kernel).flatten(2)  # (F, B, H)
                smoothed = inverse_transform(product, points, length)  # eq. 3
        return smoothed.to(hidden_states.dtype)

    def _stem(self, form: str, smoothed: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
        """The convolution over [m; x], or over x alone where there is no m, (B, S, H)."""
        if form == "direct":
            both = torch.cat((smoothed, hidden_states), -1) if self.use_fourier_convolution else hidden_states
            return self.stem(both.transpose(1, 2)).transpose(1, 2)
        weight, bias = self.stem.weight, self.stem.bias
        if not self.use_fourier_convolution:
            return convolve(hidden_states, weight, bias)
        filtered, passed = weight.chunk(2, 1)  # the parts that read m and x
        return convolve(smoothed, filtered) + convolve(hidden_states, passed, bias)

    def _segment_means(self, hidden_states: torch.Tensor) -> torch.Tensor:
        segments = hidden_states.unflatten(-1, (self.num_segments, -1))
        return segments.sum(-1) / segments.shape[-1]  # (B, S, r); the division after the sum is cheaper backward

    def _form(self, batch: int, length: int, contiguous: bool) -> tuple[str, int]:
        """How to compute, and the points of the FFT."""
        if self.form == "direct" or (self.use_convolution_stem and not is_plain(self.stem, nn.Conv1d)):
            return "direct", self.max_length
        if (
            self.fourier_impl == "matmul" or torch.compiler.is_exporting()
        ):  # no FFT to shorten; one graph for all lengths
            return "short", self.max_length
        points = fft_length(length, self.max_length)
        if not (contiguous and self._foldable()):
            return "short", points
        for kept in sorted(self._kept):
            if (2 * length <= kept or kept == self.max_length) and self._keeps(kept):
                return "folded", kept
        return (cheapest_smoother_form(batch, length, self.max_length) if self.form == "auto" else "folded"), points

    def _foldable(self) -> bool:
        """Whether there are a filter and a stem to fold, and folding is neither ruled out nor would skip a module's call."""
        both = self.use_fourier_convolution and self.use_convolution_stem and self.fourier_impl == "fft"
        return both and self.form not in ("direct", "short") and is_plain(self.stem, nn.Conv1d)

    def _keeps(self, points: int) -> bool:
        """Whether a filter kept by `fold` can serve this forward: no gradients are asked for, and it is up to date."""
        if self.training or torch.is_grad_enabled() or points not in self._kept:
            return False
        return torch.compiler.is_compiling() or self._kept[points] == self._versions()

    def _versions(self) -> tuple[int, ...]:
        weights = [
            weight for weight in (self.filter, self.stem.weight) if not weight.is_inference()
        ]  # those never change
        return tuple(number for weight in weights for number in (weight._version, weight.data_ptr()))

    def _folded_stem(self, hidden_states: torch.Tensor, mask: torch.Tensor | None, points: int) -> torch.Tensor:
        filtered, passed = self.stem.weight.chunk(2, 1)  # the parts that read the filter's output and its input
        features = convolve(hidden_states, passed, self.stem.bias)
        if self._keeps(points):
            spectrum, folded = getattr(self, f"spectrum_{points}"), getattr(self, f"folded_{points}")
        else:
            spectrum, folded = self._fold(filtered, points)
        means = self._segment_means(at_least_float32(hidden_states))
        return folded_stem(features, means, spectrum, folded, filtered, points, mask)

    def _fold(self, stem_weight: torch.Tensor, points: int) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.autocast(self.filter.device.type, enabled=False):
            spectrum = short_spectrum(self.filter, self.max_length, points)
        return spectrum, fold_stem(spectrum, stem_weight, self.num_segments, points)

    @torch.no_grad()
    def fold(self, length: int) -> None:
        """Keeps the folded filter for sequences of up to `length` tokens, for forwards in evaluation without gradients.

        It is dropped by `train()`, by loading weights, by moving or casting the module, and by `resize`; a change of the
        weights in place makes it unused.
        """
        points = fft_length(length, self.max_length)
        if not self._foldable() or self._kept.get(points) == self._versions():
            return
        for name, tensor in zip(("spectrum", "folded"), self._fold(self.stem.weight.chunk(2, 1)[0], points)):
            self.register_buffer(f"{name}_{points}", tensor.contiguous(), persistent=False)
        self._kept[points] = self._versions()

    def folded_bytes(self, length: int) -> int:
        """What `fold(length)` would add to what is kept; lengths that share an FFT share a filter."""
        points = fft_length(length, self.max_length)
        if not self._foldable() or points in self._kept:
            return 0
        frequencies, hidden = points // 2 + 1, self.filter.shape[1]
        return 2 * frequencies * hidden * (self.num_segments * self.stem.weight.itemsize + self.filter.itemsize)

    def unfold(self) -> None:
        """Drops what `fold` keeps."""
        for points in self._kept:
            delattr(self, f"spectrum_{points}")
            delattr(self, f"folded_{points}")
        self._kept = {}

    def train(self, mode: bool = True) -> "Smoother":
        if mode:
            self.unfold()
        return super().train(mode)

    def _apply(self, *args, **kwargs) -> "Smoother":
        self.unfold()
        return super()._apply(*args, **kwargs)

    def _load_from_state_dict(self, *args, **kwargs) -> None:
        self.unfold()
        super()._load_from_state_dict(*args, **kwargs)

    @torch.no_grad()
    def resize(self, length: int) -> None:
        """Gives filter and per-position norm another length N, in place.

        The filter keeps its taps at every lag that both lengths have; the lags between are zero.
        """
        if self.use_fourier_convolution:
            old, kept = self.max_length, min(self.max_length, length)
            spectrum = torch.view_as_complex(at_least_float32(self.filter).contiguous())
            taps = torch.fft.irfft(spectrum, n=old, dim=0)  # (N, H), lag j at j and lag -j at N - j
            resized = taps.new_zeros(length, taps.shape[1])
            resized[: kept // 2 + 1] = taps[: kept // 2 + 1]
            # The last tap of an even filter is lag N/2 and -N/2 at once: a longer filter takes it at both.
            negative = kept // 2 if length > old else (kept - 1) // 2
            if negative:
                resized[length - negative :] = taps[old - negative :]
            self.unfold()
            spectrum = torch.view_as_real(torch.fft.rfft(resized, dim=0)).to(self.filter.dtype)
            self.filter = nn.Parameter(spectrum, self.filter.requires_grad)
        if self.use_convolution_stem and self.norm_kind == "batch":
            self.norm.resize(length)
        self.max_length = length

    def _normalise(self, features: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        if self.norm_kind == "batch":  # not isinstance: adapters wrap the module
            return self.norm(features, mask)
        # The norm's weights may be float32 beside half-precision features (`_keep_in_fp32_modules_strict`).
        norm, inputs = self.norm, at_least_float32(features)
        weight, bias = norm.weight.to(inputs.dtype), norm.bias.to(inputs.dtype)
        return F.layer_norm(inputs, norm.normalized_shape, weight, bias, norm.eps).to(features.dtype)


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
