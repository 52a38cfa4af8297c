"""S3Attention's smoother (Section III-B, Algorithm 2): segment means, a learned Fourier convolution, a convolution stem.

Letters and the paper are those of mixer_s3.py.
"""

import torch
import torch.nn.functional as F
from torch import nn

from .fast_s3 import (
    SMOOTHER_FORMS,
    cheapest_smoother_form,
    convolve,
    fft_length,
    fold_stem,
    folded_stem,
    inverse_transform,
    is_plain,
    multiply_pairs,
    real_convolution,
    short_spectrum,
    transform_means,
)
from .numerics import at_least_float32, zero_padding
from .position_norm import PositionBatchNorm


# For a model's `_keep_in_fp32_modules_strict`: loading it in half precision leaves the filter and the statistics as they are.
FLOAT32_PARTS = ("smoother.filter", "smoother.norm")


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
