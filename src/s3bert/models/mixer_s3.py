"""S3Attention: the smoother and skeleton attention (Wang et al., "S3Attention: Improving Long Sequence Attention with
Smoothed Skeleton Sketching", IEEE JSTSP 2024). Equations and algorithms are cited by that paper's numbers.

Modules here take plain arguments, no config, so that each can be built and tested alone and serve other models. All of
them read (B, S, H) hidden states and an optional boolean mask (B, S), True at real tokens; what lies under the mask has
no influence on real tokens, and a mask of all ones gives what no mask gives.

    B batch    S length of this batch     N length the filter was trained for    F = N // 2 + 1 frequencies
    H hidden   h heads    p = H / h       r segments    s1 sampled rows (tokens)    s2 sampled columns (channels)
"""

import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


def at_least_float32(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in float32, or in float64 where it is: FFTs, softmaxes and statistics never run in half precision."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def zero_padding(tensor: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Zeroes the tokens of `tensor` (B, S, ...) that `mask` (B, S) excludes; a NaN there goes too."""
    if mask is None:
        return tensor
    return tensor.masked_fill(~mask.view(*mask.shape, *[1] * (tensor.dim() - 2)), 0)


def repeat_cyclically(tensor: torch.Tensor, length: int) -> torch.Tensor:
    """(N, ...) -> (length, ...), row t being row t mod N."""
    return tensor[torch.arange(length, device=tensor.device) % tensor.shape[0]]


def _in_recomputation() -> bool:
    """Whether this forward is gradient checkpointing's second pass, which runs inside backward."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


class _SumOverProcesses(torch.autograd.Function):
    """Sums a tensor over all processes; each process's gradient reaches all of them, so backward sums too."""

    @staticmethod
    def forward(ctx, tensor: torch.Tensor) -> torch.Tensor:
        total = tensor.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> torch.Tensor:
        total = gradient.clone()
        dist.all_reduce(total)
        return total


class PositionBatchNorm(nn.Module):
    """BatchNorm per position, over batch and channels (Algorithm 2's `BatchNorm1d(seq_len)` on (B, S, H)), with a mask.

    Statistics count real tokens only. A position no sequence of the batch reaches keeps its running statistics, which
    normalise it. With several processes the training statistics are those of all of them together, so that the result
    does not depend on how a batch is spread; gradient accumulation still sees one micro-batch at a time. The second pass
    of gradient checkpointing does not update the running statistics again.

    Args:
        max_length: N, number of positions.
        eps, momentum: as in `torch.nn.BatchNorm1d`.
    """

    def __init__(self, max_length: int, eps: float = 1e-5, momentum: float = 0.1):
        super().__init__()
        self.eps = eps
        self.momentum = momentum
        self.weight = nn.Parameter(torch.ones(max_length))
        self.bias = nn.Parameter(torch.zeros(max_length))
        self.register_buffer("running_mean", torch.zeros(max_length))
        self.register_buffer("running_var", torch.ones(max_length))

    def forward(self, hidden_states: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        length = hidden_states.shape[1]
        inputs = at_least_float32(hidden_states)
        mean = self.running_mean[:length].to(inputs.dtype)  # (S)
        variance = self.running_var[:length].to(inputs.dtype)
        if self.training:
            mean, variance = self._batch_statistics(inputs, mask, mean, variance)
        scale = self.weight[:length].to(inputs.dtype) * torch.rsqrt(variance + self.eps)
        outputs = (inputs - mean[:, None]) * scale[:, None] + self.bias[:length].to(inputs.dtype)[:, None]
        return outputs.to(hidden_states.dtype)

    @torch.no_grad()
    def resize(self, length: int) -> None:
        """Gives the norm `length` positions, in place: parameters and statistics repeat cyclically, or are cropped."""
        for name in ("weight", "bias"):
            parameter = getattr(self, name)
            setattr(self, name, nn.Parameter(repeat_cyclically(parameter, length), parameter.requires_grad))
        for name in ("running_mean", "running_var"):
            setattr(self, name, repeat_cyclically(getattr(self, name), length))

    def _batch_statistics(
        self, inputs: torch.Tensor, mask: torch.Tensor | None, running_mean: torch.Tensor, running_var: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and biased variance (S) over the batch's real tokens; updates the running statistics."""
        batch, length, hidden = inputs.shape
        tokens = inputs.new_full((length,), batch) if mask is None else mask.sum(0).to(inputs.dtype)
        count, total = self._over_processes(tokens * hidden, zero_padding(inputs, mask).sum((0, 2)))
        mean = total / count.clamp(min=1)
        deviations = zero_padding(inputs - mean[:, None], mask)
        (squares,) = self._over_processes(deviations.square().sum((0, 2)))
        variance = squares / count.clamp(min=1)

        reached = count > 0
        if not _in_recomputation():
            with torch.no_grad():
                weight = (reached * self.momentum).to(self.running_mean.dtype)
                unbiased = squares / (count - 1).clamp(min=1)
                self.running_mean[:length].lerp_(mean.to(weight.dtype), weight)
                self.running_var[:length].lerp_(unbiased.to(weight.dtype), weight)
        return torch.where(reached, mean, running_mean), torch.where(reached, variance, running_var)

    def _over_processes(self, *statistics: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Sums each (S) tensor over all processes; differentiable. Processes may hold different lengths S up to N."""
        if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
            return statistics
        length, max_length = statistics[0].numel(), self.weight.numel()
        padded = torch.stack([F.pad(statistic, (0, max_length - length)) for statistic in statistics])
        return _SumOverProcesses.apply(padded)[:, :length].unbind()


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
    ):
        super().__init__()
        if hidden_size % num_segments:
            raise ValueError(f"hidden_size = {hidden_size} is not divisible by num_segments = {num_segments}.")
        if norm not in ("batch", "layer"):
            raise ValueError(f"norm = {norm!r}: the smoother knows 'batch' and 'layer'.")
        self.num_segments = num_segments
        self.max_length = max_length
        self.norm_kind = norm
        self.use_fourier_convolution = use_fourier_convolution
        self.use_convolution_stem = use_convolution_stem
        if use_fourier_convolution:
            # Real and imaginary part: complex parameters break fused AdamW, FSDP and casts.
            self.filter = nn.Parameter(torch.empty(max_length // 2 + 1, hidden_size, 2))  # (F, H, 2)
            nn.init.kaiming_normal_(self.filter, nonlinearity="relu")
        if use_convolution_stem:
            self.stem = nn.Conv1d((1 + use_fourier_convolution) * hidden_size, hidden_size, 3, padding=1)
            self.norm = PositionBatchNorm(max_length) if norm == "batch" else nn.LayerNorm(hidden_size, layer_norm_eps)
            self.dropout = nn.Dropout(dropout)

    def forward(self, hidden_states: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """(B, S, H) -> (B, S, H)."""
        if hidden_states.shape[1] > self.max_length:
            raise ValueError(
                f"The sequence has {hidden_states.shape[1]} tokens and the smoother's filter spans {self.max_length}: "
                f"shorten the input, or lengthen the model with resize_position_embeddings."
            )
        hidden_states = zero_padding(hidden_states, mask)
        smoothed = self.fourier_convolution(hidden_states) if self.use_fourier_convolution else hidden_states
        # The filter's output goes on beyond the last token, and the stem's kernel of 3 would carry it back.
        smoothed = zero_padding(smoothed, mask)
        if not self.use_convolution_stem:
            return smoothed
        features = torch.cat((smoothed, hidden_states), -1) if self.use_fourier_convolution else hidden_states
        features = self.stem(features.transpose(1, 2)).transpose(1, 2)  # (B, S, H)
        return self.dropout(F.relu(self._normalise(features, mask)))

    def fourier_convolution(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Equations 3 and 4: each channel is its segment's mean under the channel's own N-long circular filter."""
        batch, length, hidden = hidden_states.shape
        width = hidden // self.num_segments
        with torch.autocast(hidden_states.device.type, enabled=False):
            inputs = at_least_float32(hidden_states)
            means = inputs.view(batch, length, self.num_segments, width).mean(-1)  # (B, S, r), eq. 4
            # Explicit padding, and complex numbers as pairs until the inverse: what export and compilers support. Time
            # comes last because that is how the FFT lays its output out anyway.
            means = F.pad(means.transpose(1, 2), (0, self.max_length - length))  # (B, r, N)
            spectrum = torch.view_as_real(torch.fft.rfft(means))[:, :, None]  # (B, r, 1, F, 2)
            kernel = self.filter.to(inputs.dtype).permute(1, 0, 2).reshape(self.num_segments, width, -1, 2)
            real = spectrum[..., 0] * kernel[..., 0] - spectrum[..., 1] * kernel[..., 1]  # (B, r, H/r, F)
            imaginary = spectrum[..., 0] * kernel[..., 1] + spectrum[..., 1] * kernel[..., 0]
            product = torch.complex(real, imaginary).flatten(1, 2)  # (B, H, F)
            smoothed = torch.fft.irfft(product, n=self.max_length)[..., :length]  # (B, H, S), eq. 3
        return smoothed.transpose(1, 2).to(hidden_states.dtype)

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
    ):
        super().__init__()
        if hidden_size % num_heads:
            raise ValueError(f"hidden_size = {hidden_size} is not divisible by num_heads = {num_heads}.")
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
        self, hidden_states: torch.Tensor, mask: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """(B, S, H) -> mixed states (B, S, H), row attention weights (B, h, S, s1) or None without row attention.

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
        query, key, value = (self._heads(linear(hidden_states)) for linear in (self.query, self.key, self.value))
        rows, columns = self._landmarks(hidden_states.device)
        mixed, row_weights = [], None
        if self.use_row_attention:
            places, counts = self._landmark_tokens(rows, lengths, mask)
            row, row_weights = self._row_attention(query, key, value, places, counts)
            mixed.append(self.row_norm(row.transpose(1, 2).flatten(2)))  # (B, S, H)
        if self.use_column_attention:
            column = self._column_attention(query, key[..., columns], value[..., columns], lengths, mask)
            mixed.append(self.column_norm(column.transpose(1, 2).flatten(2)))
        # Algorithm 1's average; eq. 1 prints the sum. Zeroed again, because at padded tokens the norms see all-zero
        # vectors, where their slope is 1 / sqrt(eps) and any gradient explodes.
        return zero_padding(sum(mixed) / len(mixed), mask), row_weights

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
        counts = torch.where(takes_all, slots < lengths, ~repeated)
        # Slots that do not count point at the first real token, never at what lies under the mask.
        numbers = torch.where(counts, torch.where(takes_all, slots, scaled), 0)
        if mask is None:
            return numbers, counts
        # Token number k is the place where the running count of real tokens first reaches k + 1.
        places = torch.searchsorted(mask.cumsum(1), numbers + 1)
        return places.clamp(max=mask.shape[1] - 1), counts

    def _row_attention(self, query, key, value, places, counts) -> tuple[torch.Tensor, torch.Tensor]:
        """softmax(Q K1^T / sqrt(p)) V1 over the landmark tokens; (B, h, S, p) and the weights (B, h, S, s1)."""
        index = places[:, None, :, None].expand(-1, self.num_heads, -1, self.head_size)
        key, value = key.gather(2, index), value.gather(2, index)  # (B, h, s1, p)
        scores = at_least_float32(query @ key.transpose(2, 3) / math.sqrt(self.head_size))  # (B, h, S, s1)
        excluded = ~counts[:, None, None]
        weights = scores.masked_fill(excluded, torch.finfo(scores.dtype).min).softmax(-1)
        weights = weights.masked_fill(excluded, 0)  # a sequence with no real token at all gets zeros, not NaN
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
