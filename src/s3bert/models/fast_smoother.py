"""The smoother in fewer operations: exact re-associations of smoother.py, the direct form, up to the rounding of float32.

    short FFT           S tokens need 2 S points of the N-periodic filter, not N
    folded stem         the filter's output is r signals through H filters and the stem is linear in it: one filter for both
    matrix products     the Fourier transforms as products with cosines and sines: no complex numbers, for exporting

The functions read the weights of a smoother's modules without calling them; mixer_s3.py says when that is the same. B, S, N, H, r
as there; M points of the FFT in use, F = M // 2 + 1 frequencies, d = H / r channels of a segment.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from .numerics import at_least_float32, first_rows, in_product_dtype, zero_padding
from .smoother import Smoother


def cheapest_smoother_form(batch: int, length: int, smoother: Smoother) -> str:
    """The form of "auto" for (B, S) tokens, unless a folded filter is kept.

    With a kernel of k, folding costs k M H^2 multiply-adds for the whole batch and saves k H^2 - 4 r H per token; fewer than 256 tokens do
    not pay for its number of operations. On an accelerator it takes three times as many, each of which is launched, and products are what is
    cheap there.
    """
    if smoother.filter.device.type != "cpu":
        return "short"
    worth_it = batch * length >= max(256, 4 * fft_length(length, smoother.max_length))
    return "folded" if worth_it and folding_saves(smoother) else "short"


def folding_saves(smoother: Smoother) -> bool:
    """Whether a folded filter, once there, makes a forward shorter: with as many segments as channels it does not."""
    if smoother.stem_groups > 1:  # a depthwise stem is no product
        return False
    hidden_size, _, kernel_size = smoother.stem.weight.shape
    return 8 * smoother.num_segments <= kernel_size * hidden_size


def fft_length(length: int, max_length: int) -> int:
    """M: the least of 2^k and 3 * 2^k points from 32 on that hold 2 S, or N if that is no more.

    Few sizes, so that compiled code and kept filters serve many lengths.
    """
    points = 32
    while points < max_length:
        for candidate in (points, points + points // 2):
            if 2 * length <= candidate < max_length:
                return candidate
        points *= 2
    return max_length


def short_smoother(
    smoother: Smoother,
    hidden_states: torch.Tensor,
    mask: torch.Tensor | None = None,
    numbers: torch.Tensor | None = None,
) -> torch.Tensor:
    """`smoother(hidden_states, mask, numbers)` with a short FFT, and the stem in the layout that runs fastest."""
    inputs = smoother.inputs(hidden_states, mask)
    smoothed = _short_convolution(smoother, inputs) if smoother.use_fourier_convolution else inputs
    if not smoother.use_convolution_stem:
        return zero_padding(smoothed, mask)
    weight, bias = smoother.stem.weight, smoother.stem.bias
    if not smoother.use_fourier_convolution:
        return smoother.activate(convolve(inputs, weight, bias), mask, numbers)
    # The filter's output goes on beyond the last token, and the stem's kernel of 3 would carry it back.
    inputs = in_product_dtype(inputs)
    smoothed = zero_padding(smoothed.to(inputs.dtype), mask)
    if smoother.stem_groups == 1:
        features = convolve(torch.cat((smoothed, inputs), 2), weight, bias)
    else:
        filtered, passed = weight.chunk(2, 1)  # the parts that read m and x
        features = convolve(smoothed, filtered, bias) + convolve(inputs, passed)
    return smoother.activate(features, mask, numbers)


def folded_smoother(
    smoother: Smoother,
    hidden_states: torch.Tensor,
    mask: torch.Tensor | None = None,
    numbers: torch.Tensor | None = None,
) -> torch.Tensor:
    """`smoother(hidden_states, mask, numbers)` of a smoother with Fourier convolution and stem, the two as one.

    `mask` gives each sequence one run of real tokens. In evaluation without gradients it uses what `fold` keeps.
    """
    inputs = smoother.inputs(hidden_states, mask)
    length = inputs.shape[1]
    filtered, passed = smoother.stem.weight.chunk(2, 1)  # the parts that read m and x
    features = convolve(inputs, passed, smoother.stem.bias)
    kept = kept_filter(smoother, length)
    points, spectrum, folded = kept or _fold(smoother, filtered, fft_length(length, smoother.max_length))
    means = smoother.segment_means(inputs)
    features = _add_filtered(features, means, spectrum, folded, filtered, points, mask)
    return smoother.activate(features, mask, numbers)


class ExportableSmoother(Smoother):
    """The smoother with its Fourier convolution in real matrix products: for `torch.export` and ONNX.

    N = P Q points are transformed in two steps (Cooley and Tukey 1965), with n = Q p + q and k = k1 + P k2:

        X[k1 + P k2] = sum_q e^{-i w q (k1 + P k2)} sum_p e^{-i w Q p k1} x[Q p + q]        w = 2 pi / N

    and back by the conjugates, in about 2 N Q + S P multiply-adds for each channel: as x is real, k1 up to P / 2 are enough. The cosines and
    sines depend on N alone: runtimes compute them once.
    """

    def fourier_convolution(self, inputs: torch.Tensor) -> torch.Tensor:
        points = self.max_length
        inner = max(count for count in range(1, math.isqrt(points) + 1) if points % count == 0)  # Q
        outer = points // inner  # P
        with torch.autocast(inputs.device.type, enabled=False):
            means = self.segment_means(inputs)
            batch, length, num_segments = means.shape
            dtype, device = means.dtype, means.device
            places = torch.arange(inner, device=device)
            cosine, sine = waves(torch.arange(outer, device=device), outer, dtype)  # (K, P), K = P // 2 + 1
            frequencies = torch.arange(outer // 2 + 1, device=device)[:, None] + outer * places  # k: (K, Q)
            turn_cosine, turn_sine = circle(frequencies[..., None] * places, points, dtype)  # (K, k2, q)
            above, below = torch.cat((turn_cosine, turn_sine), 2), torch.cat((-turn_sine, turn_cosine), 2)
            turns = torch.cat((above, below), 1)  # (K, 2 Q, 2 Q), of real and imaginary parts

            # Zeros up to N and the first S of N are gathered: exporters cannot follow paddings and slices of free lengths here.
            means = torch.cat((means, means.new_zeros(batch, 1, num_segments)), 1)
            means = means[:, torch.arange(points, device=device).clamp(max=length)]
            rows = torch.stack((cosine, -sine), 1).flatten(0, 1) @ means.view(batch, outer, -1)  # (B, 2 K, Q r)
            transform = turns @ rows.view(batch, -1, 2 * inner, num_segments)
            real, imaginary = transform.view(batch, -1, 2, inner, num_segments, 1).unbind(2)  # (B, K, Q, r, 1)

            mirrored = frequencies > points // 2  # where the filter has the mirror image, which is the conjugate
            kernel = self.filter.to(dtype)[torch.where(mirrored, points - frequencies, frequencies)]
            kernel_real, kernel_imaginary = kernel.unflatten(2, (num_segments, -1)).unbind(4)  # (K, Q, r, d)
            kernel_imaginary = kernel_imaginary * (1 - 2 * mirrored.to(dtype))[..., None, None]
            product_real = real * kernel_real - imaginary * kernel_imaginary
            product_imaginary = real * kernel_imaginary + imaginary * kernel_real
            product = torch.cat((product_real, product_imaginary), 2).flatten(3)  # (B, K, 2 Q, H)

            turned = (turns.transpose(1, 2) @ product).view(batch, 2 * len(frequencies), -1)
            weights = (inverse_weights(outer, dtype, device) / inner)[:, None]
            back = torch.stack((cosine * weights, -sine * weights), 1).flatten(0, 1).T  # (P, 2 K)
            used = torch.arange(length // inner + 2, device=device)  # two at least: exporters take one for a constant
            back = back[used.clamp(max=outer - 1)]
            smoothed = (back @ turned).unflatten(2, (inner, -1)).flatten(1, 2)
            smoothed = smoothed[:, torch.arange(length, device=device)]
        return smoothed.to(inputs.dtype)


class FoldedFilters(nn.Module):
    """What `fold` keeps of a smoother: a frozen snapshot, in buffers that no checkpoint holds.

    `train()`, loading a state dict, casting and moving drop it; a change of the weights in place is not noticed.
    """

    def __init__(self):
        super().__init__()
        self.points: tuple[int, ...] = ()  # ascending

    def keep(self, points: int, spectrum: torch.Tensor, folded: torch.Tensor) -> None:
        for name, tensor in (("spectrum", spectrum), ("folded", folded)):
            copy = tensor.clone(memory_format=torch.contiguous_format)  # at N points the spectrum is the filter itself
            self.register_buffer(f"{name}_{points}", copy, persistent=False)
        self.points = tuple(sorted((*self.points, points)))

    def get(self, points: int) -> tuple[int, torch.Tensor, torch.Tensor]:
        return points, getattr(self, f"spectrum_{points}"), getattr(self, f"folded_{points}")

    def drop(self) -> None:
        for points in self.points:
            delattr(self, f"spectrum_{points}")
            delattr(self, f"folded_{points}")
        self.points = ()

    def train(self, mode: bool = True) -> "FoldedFilters":
        if mode:
            self.drop()
        return super().train(mode)

    def _apply(self, *args: Any, **kwargs: Any) -> "FoldedFilters":
        self.drop()
        return super()._apply(*args, **kwargs)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self.drop()
        super()._load_from_state_dict(*args, **kwargs)


@torch.no_grad()
def fold(smoother: Smoother, length: int) -> None:
    """Keeps the folded filter for sequences of up to `length` tokens, as `smoother.kept`."""
    points = fft_length(length, smoother.max_length)
    kept = _kept(smoother)
    if kept is None:
        smoother.kept = kept = FoldedFilters()
    if points not in kept.points:
        kept.keep(*_fold(smoother, smoother.stem.weight.chunk(2, 1)[0], points))


def unfold(smoother: Smoother) -> None:
    """Drops what `fold` keeps."""
    if _kept(smoother) is not None:
        del smoother.kept


def folded_bytes(smoother: Smoother, length: int) -> int:
    """What `fold(smoother, length)` would add to what is kept; lengths that share an FFT share a filter."""
    points = fft_length(length, smoother.max_length)
    kept = _kept(smoother)
    if kept is not None and points in kept.points:
        return 0
    frequencies, hidden = points // 2 + 1, smoother.filter.shape[1]
    return 2 * frequencies * hidden * (smoother.num_segments * smoother.stem.weight.itemsize + smoother.filter.itemsize)


def kept_filter(smoother: Smoother, length: int) -> tuple[int, torch.Tensor, torch.Tensor] | None:
    """The shortest kept filter that serves this forward of S tokens: M, (F, H, 2) and (F, 2 r, H)."""
    kept = _kept(smoother)
    if smoother.training or torch.is_grad_enabled() or kept is None:
        return None
    for points in kept.points:
        if 2 * length <= points or points == smoother.max_length:
            return kept.get(points)
    return None


def _kept(smoother: Smoother) -> FoldedFilters | None:
    return getattr(smoother, "kept", None)


def _short_convolution(smoother: Smoother, inputs: torch.Tensor) -> torch.Tensor:
    """`smoother.fourier_convolution(inputs)` in as few points as the length asks for."""
    length, max_length = inputs.shape[1], smoother.max_length
    points = fft_length(length, max_length)
    with torch.autocast(inputs.device.type, enabled=False):
        means = smoother.segment_means(inputs)
        kernel = _short_spectrum(smoother.filter.to(means.dtype), max_length, points)
        # Frequencies last, as transforms leave and want them: the kernel is copied, which is smaller than the product.
        kernel = kernel.transpose(0, 1).contiguous().unflatten(0, (smoother.num_segments, -1))  # (r, d, F, 2)
        transform = _transform_means(means, points)[:, :, None]  # (B, r, 1, F, 2)
        product = _multiply_pairs(transform, kernel).flatten(1, 2)  # (B, H, F)
        smoothed = _inverse_transform(product.permute(2, 0, 1), points, length)
    return smoothed.to(inputs.dtype)


def _transform_means(means: torch.Tensor, points: int) -> torch.Tensor:
    """The Fourier transform (B, r, F, 2) of segment means (B, S, r) along their length, M points long."""
    # Explicit padding, and real pairs as soon as they can be: what compilers support.
    means = means.transpose(1, 2)  # (B, r, S)
    if points != means.shape[2]:
        means = F.pad(means, (0, points - means.shape[2]))
    return torch.view_as_real(torch.fft.rfft(means))


def _inverse_transform(spectrum: torch.Tensor, points: int, length: int) -> torch.Tensor:
    """The first S of M points of what has the Fourier transform (F, B, H), as (B, S, H)."""
    return first_rows(torch.fft.irfft(spectrum, n=points, dim=0), length).transpose(0, 1)


def _short_spectrum(kernel: torch.Tensor, max_length: int, points: int) -> torch.Tensor:
    """The filter's spectrum (N // 2 + 1, H, 2) as one (F, H, 2) that acts alike on sequences of up to M / 2 tokens."""
    kernel = at_least_float32(kernel)
    if points == max_length:
        return kernel
    taps = torch.fft.irfft(torch.view_as_complex(kernel), n=max_length, dim=0)  # (N, H), lag j at j and lag -j at N - j
    half = points // 2
    gap = taps.new_zeros(1, taps.shape[1])
    taps = torch.cat((taps[:half], gap, taps[max_length - half + 1 :]))  # (M, H)
    return torch.view_as_real(torch.fft.rfft(taps, dim=0))


def _fold(smoother: Smoother, stem_weight: torch.Tensor, points: int) -> tuple[int, torch.Tensor, torch.Tensor]:
    """M, the spectrum L (F, H, 2) of `_short_spectrum`, and filter and stem as one, (F, 2 r, H): for each segment the real part,
    then the imaginary part, of

        G[f, s, c'] = sum_k e^{i w_f (k - k // 2)} sum_{c in s} W[c', c, k] L[f, c]        w_f = 2 pi f / M

    for the part W (H, H, taps) of the stem's weight that reads the filter's output.
    """
    num_segments = smoother.num_segments
    with torch.autocast(smoother.filter.device.type, enabled=False):
        spectrum = _short_spectrum(smoother.filter, smoother.max_length, points)
    frequencies, hidden, _ = spectrum.shape
    width = hidden // num_segments
    # The taps are applied before the product over channels, where the data is r times smaller.
    taps = stem_weight.shape[2]
    cosine, sine = waves(torch.arange(taps, device=spectrum.device) - taps // 2, points, spectrum.dtype)  # (F, taps)
    real, imaginary = spectrum[:, None, :, 0], spectrum[:, None, :, 1]  # (F, 1, H)
    cosine, sine = cosine[..., None], sine[..., None]
    left = torch.stack((real * cosine - imaginary * sine, imaginary * cosine + real * sine))  # (2, F, taps, H)
    left = left.view(2, frequencies, taps, num_segments, width).permute(3, 0, 1, 2, 4)
    right = stem_weight.view(-1, num_segments, width, taps).permute(1, 3, 2, 0)  # (r, taps, d, H)
    left, right = (
        left.reshape(num_segments, 2 * frequencies, taps * width),
        right.reshape(num_segments, taps * width, -1),
    )
    folded = torch.bmm(left.to(right.dtype), right)  # (r, 2 F, H)
    return points, spectrum, folded.view(2 * num_segments, frequencies, -1).transpose(0, 1)


def _add_filtered(
    features: torch.Tensor,
    means: torch.Tensor,
    spectrum: torch.Tensor,
    folded: torch.Tensor,
    stem_weight: torch.Tensor,
    points: int,
    mask: torch.Tensor | None,
) -> torch.Tensor:
    """`features` (B, S, H) plus what the stem makes of the Fourier convolution's output.

    Args:
        features: what the stem makes of the hidden states, its bias included.
        means: segment means (B, S, r), zero at padding. mask: (B, S), one run of real tokens a sequence; what comes out
            elsewhere is arbitrary.
        spectrum, folded: (F, H, 2) and (F, 2 r, H) of `_fold`, at M = `points`.
        stem_weight: W (H, H, taps), the part that reads the filter's output.
    """
    batch, length, _ = means.shape
    with torch.autocast(means.device.type, enabled=False):
        transform = _transform_means(means, points).permute(2, 0, 1, 3).contiguous()
    real, imaginary = transform.unbind(3)  # (F, B, r)
    # Real arithmetic: B rows that give the product's real part and B rows that give its imaginary part.
    rows = torch.cat((torch.stack((real, -imaginary), 3), torch.stack((imaginary, real), 3)), 1)
    rows = rows.flatten(2)  # (F, 2 B, 2 r)
    product = at_least_float32(torch.bmm(rows.to(folded.dtype), folded))  # (F, 2 B, H)
    outputs = _inverse_transform(torch.complex(*product.chunk(2, 1)), points, length)
    features = features + outputs.to(features.dtype)
    if stem_weight.shape[2] == 1:
        return features

    # The filter's output goes on around both ends, where the stem has to see zeros: what its outer taps read there goes.
    if mask is None:
        first = torch.zeros(batch, dtype=torch.long, device=means.device)
        last = torch.full_like(first, length - 1)
    else:
        first = mask.long().argmax(1)
        last = first + mask.sum(1) - 1
    outside = _filter_output(transform, spectrum, torch.stack((first - 1, last + 1)), points).to(stem_weight.dtype)
    ends = torch.bmm(outside, stem_weight[:, :, ::2].permute(2, 1, 0)).flatten(0, 1)  # (2 B, H)
    places = (torch.arange(batch, device=means.device).repeat(2), torch.cat((first, last)))
    return features.index_put_(places, -ends.to(features.dtype), accumulate=True)


def _filter_output(transform: torch.Tensor, spectrum: torch.Tensor, places: torch.Tensor, points: int) -> torch.Tensor:
    """The M-periodic Fourier convolution (K, B, H) at K places (K, B) of each sequence, of transformed means (F, B, r, 2)."""
    frequencies, batch, num_segments, _ = transform.shape
    count = places.shape[0]
    cosine, sine = waves(places, points, spectrum.dtype)  # (F, K, B)
    weights = inverse_weights(points, spectrum.dtype, spectrum.device)[:, None, None]
    cosine, sine = (cosine * weights)[..., None], (sine * weights)[..., None]
    real, imaginary = transform[:, None, ..., 0], transform[:, None, ..., 1]  # (F, 1, B, r)
    turned = torch.stack((real * cosine - imaginary * sine, real * sine + imaginary * cosine), 1)  # (F, 2, K, B, r)
    # Both parts meet both parts of the filter: half of this small product is waste, and no copy of the filter is made.
    rows = turned.flatten(1, 3).permute(2, 1, 0)  # (r, 2 K B, F)
    filters = spectrum.reshape(frequencies, num_segments, -1).transpose(0, 1)  # (r, F, 2 d)
    product = torch.bmm(rows, filters).view(num_segments, 2, count, batch, -1, 2)  # (r, 2, K, B, d, 2)
    return (product[:, 0, ..., 0] - product[:, 1, ..., 1]).permute(1, 2, 0, 3).flatten(2)


def waves(places: torch.Tensor, points: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin of 2 pi f t / M, (F, ...) each, for integer places t (...)."""
    frequencies = torch.arange(points // 2 + 1, device=places.device).view(-1, *[1] * places.dim())
    return circle(frequencies * places, points, dtype)


def circle(steps: torch.Tensor, points: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin of 2 pi t / M for integers t; in float64, with t reduced first."""
    exact = torch.float32 if steps.device.type == "mps" else torch.float64
    angles = (steps % points).to(exact) * (2 * math.pi / points)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def inverse_weights(points: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """What each of the F frequencies counts in the inverse transform: 2 / M, and 1 / M where it has no mirror image."""
    frequencies = torch.arange(points // 2 + 1, device=device)
    alone = (frequencies == 0) | (2 * frequencies == points)
    return (2 - alone.to(dtype)) / points


def _multiply_pairs(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """The product of complex numbers held as pairs (..., 2), as a complex tensor."""
    if not torch.compiler.is_compiling():
        return torch.view_as_complex(left) * torch.view_as_complex(right)
    # Compilers generate no complex arithmetic, and copy where complex numbers are put together from two tensors.
    real = left[..., 0] * right[..., 0] - left[..., 1] * right[..., 1]
    imaginary = left[..., 0] * right[..., 1] + left[..., 1] * right[..., 0]
    return torch.view_as_complex(torch.stack((real, imaginary), -1))


def convolve(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """A `Conv1d` of kernel 3 and padding 1, or kernel 1, on (B, S, C) -> (B, S, H), in the layout that runs fastest.

    Of a weight (H, C / g, k), g groups.

    As a convolution of images one token high, whose channels lie last in memory anyway, it needs no copy.
    """
    # Reshaped twice, for a copy where it is needed and the usual strides where it is not: they decide the output's layout.
    inputs = inputs.reshape(-1, inputs.shape[2]).view(inputs.shape)
    image = inputs.transpose(1, 2).unsqueeze(2)  # (B, C, 1, S), channels last in memory
    groups = inputs.shape[2] // weight.shape[1]
    padding = (0, weight.shape[2] // 2)
    return F.conv2d(image, weight.unsqueeze(2), bias, padding=padding, groups=groups).squeeze(2).transpose(1, 2)
