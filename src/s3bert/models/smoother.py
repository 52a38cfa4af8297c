"""S3Attention's smoother (Section III-B, Algorithm 2): segment means, a learned Fourier convolution, a convolution stem.

Letters and the paper are those of mixer_s3.py. fast_smoother.py has the same numbers in fewer operations.
"""

from collections.abc import Callable
from types import ModuleType
from typing import cast

import torch
import torch.nn.functional as F
from torch import nn

from .numerics import at_least_float32, zero_padding
from .position_norm import PositionBatchNorm


# What follows the stem's norm: Algorithm 2's, and that of the authors' released program.
STEMS = ("dense", "pointwise", "depthwise")
STEM_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"relu": F.relu, "elu": F.elu}

# Distributions of a filter's first values, both of Kaiming's variance: Algorithm 2's, and that of the authors' released program.
FILTER_INITS = {"normal": "kaiming_normal_", "uniform": "kaiming_uniform_"}

# For a model's `_keep_in_fp32_modules_strict`: loading it in half precision leaves the filter and the statistics as they are.
FLOAT32_PARTS = ("smoother.filter", "smoother.norm")


class Smoother(nn.Module):
    """Segment means, a learned Fourier convolution and a convolution stem (Section III-B, Algorithm 2).

    Args:
        hidden_size: H.
        num_segments: r, must divide H; at r = H every channel is filtered by itself.
        max_length: N, tokens the filter spans.
        norm: "batch" (the paper's, per position) or "layer" (over H).
        dropout: rate after the stem's activation.
        use_fourier_convolution, use_convolution_stem: Table 7's switches. The stem reads [m; x], or x alone without
            the Fourier convolution; without the stem the Fourier output (or x) is returned as it is.
        stem: "dense", the paper's, has a kernel of 3 and reads all channels of [m; x] for each of its own; "pointwise" does so with a kernel of
            1; "depthwise", of 3, reads the same channel of m and x.
        stem_activation, filter_init: "relu" and "normal" in the paper; "elu" and "uniform" in the authors' released program, whose stem is
            pointwise.

    Raises:
        ValueError: r does not divide H; an unknown norm, stem, activation or distribution; a sequence is longer than N.
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
        stem: str = "dense",
        stem_activation: str = "relu",
        filter_init: str = "normal",
        layer_norm_eps: float = 1e-12,
    ):
        super().__init__()
        if hidden_size % num_segments:
            raise ValueError(f"hidden_size = {hidden_size} is not divisible by num_segments = {num_segments}.")
        choices = {
            "norm": (norm, ("batch", "layer")),
            "stem": (stem, STEMS),
            "stem_activation": (stem_activation, STEM_ACTIVATIONS),
            "filter_init": (filter_init, FILTER_INITS),
        }
        for name, (value, known) in choices.items():
            if not (isinstance(value, str) and value in known):
                raise ValueError(f"{name} = {value!r}: the smoother knows {', '.join(map(repr, known))}.")
        self.num_segments = num_segments
        self.max_length = max_length
        self.norm_kind = norm
        self.use_fourier_convolution = use_fourier_convolution
        self.use_convolution_stem = use_convolution_stem
        self.stem_activation = stem_activation
        self.filter_init = filter_init
        if use_fourier_convolution:
            # Real and imaginary part: complex parameters break fused AdamW, FSDP and casts.
            self.filter = nn.Parameter(torch.empty(max_length // 2 + 1, hidden_size, 2))  # (F, H, 2)
            self.initialize_filter()
        if use_convolution_stem:
            inputs = (1 + use_fourier_convolution) * hidden_size
            self.stem_groups, size = hidden_size if stem == "depthwise" else 1, 1 if stem == "pointwise" else 3
            self.stem = nn.Conv1d(inputs, hidden_size, size, padding=size // 2, groups=self.stem_groups)
            self.norm = PositionBatchNorm(max_length) if norm == "batch" else nn.LayerNorm(hidden_size, layer_norm_eps)
            self.dropout = nn.Dropout(dropout)

    def initialize_filter(self, init: ModuleType = nn.init) -> None:
        """First values of the filter, fan-in and with ReLU's gain (Algorithm 2), drawn by the functions of `init`."""
        getattr(init, FILTER_INITS[self.filter_init])(self.filter, nonlinearity="relu")

    def forward(
        self, hidden_states: torch.Tensor, mask: torch.Tensor | None = None, numbers: torch.Tensor | None = None
    ) -> torch.Tensor:
        """(B, S, H) -> (B, S, H), zero at padding, Algorithm 2 line by line; `numbers` are the per-position norm's."""
        inputs = self.inputs(hidden_states, mask)  # x
        smoothed = inputs
        if self.use_fourier_convolution:
            # The filter's output goes on beyond the last token, and the stem's kernel of 3 would carry it back.
            smoothed = zero_padding(self.fourier_convolution(inputs), mask)  # m
        if not self.use_convolution_stem:
            return smoothed
        both = torch.cat((smoothed, inputs), 2) if self.use_fourier_convolution else inputs  # (B, S, 2 H)
        if self.use_fourier_convolution and self.stem_groups > 1:  # a group reads its channel of m, then that of x
            both = both.unflatten(2, (2, -1)).transpose(2, 3).flatten(2)
        features = self.stem(both.transpose(1, 2)).transpose(1, 2)  # (B, S, H)
        return self.activate(features, mask, numbers)

    def fourier_convolution(self, inputs: torch.Tensor) -> torch.Tensor:
        """Each channel is its segment's mean under the channel's own N-long circular filter, (B, S, H)."""
        length, max_length = inputs.shape[1], self.max_length
        with torch.autocast(inputs.device.type, enabled=False):
            means = self.segment_means(inputs)
            means = F.pad(means, (0, 0, 0, max_length - length))[..., None]  # (B, N, r, 1)
            kernel = self.filter.to(means.dtype).unflatten(1, (self.num_segments, -1))  # (F, r, H / r, 2)
            transform = torch.fft.rfft(means, dim=1)  # (B, F, r, 1)
            product = transform * torch.view_as_complex(kernel)  # (B, F, r, H / r), eq. 3
            smoothed = torch.fft.irfft(product, n=max_length, dim=1).flatten(2)[:, :length]
        return smoothed.to(inputs.dtype)

    def segment_means(self, inputs: torch.Tensor) -> torch.Tensor:
        """Means over r contiguous groups of channels, (B, S, r) in at least float32 (eq. 4)."""
        inputs = at_least_float32(inputs)
        if self.num_segments == inputs.shape[2]:
            return inputs
        segments = inputs.unflatten(2, (self.num_segments, -1))
        return segments.sum(-1) / segments.shape[-1]  # divided after the sum, which is cheaper backward

    def inputs(self, hidden_states: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """The hidden states with zeros at padding, and no longer than the filter."""
        if (length := hidden_states.shape[1]) > self.max_length:
            raise ValueError(
                f"The sequence has {length} tokens and the smoother's filter spans {self.max_length}: "
                f"shorten the input, or lengthen the model with resize_position_embeddings."
            )
        return zero_padding(hidden_states, mask)

    def activate(self, features: torch.Tensor, mask: torch.Tensor | None, numbers: torch.Tensor | None) -> torch.Tensor:
        """What follows the stem: norm, activation, dropout."""
        if self.norm_kind == "batch":  # not isinstance: adapters wrap the module
            normalised = self.norm(features, mask, numbers)
        else:
            # The norm's weights may be float32 beside half-precision features (`_keep_in_fp32_modules_strict`).
            norm, exact = self.norm, at_least_float32(features)
            weight, bias = norm.weight.to(exact.dtype), norm.bias.to(exact.dtype)
            normalised = F.layer_norm(exact, exact.shape[2:], weight, bias, norm.eps).to(features.dtype)
            normalised = zero_padding(normalised, mask)
        return self.dropout(STEM_ACTIVATIONS[self.stem_activation](normalised))

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
            cast(PositionBatchNorm, self.norm).resize(length)  # an adapter may wrap it
        self.max_length = length
