"""S3Attention in fewer operations: exact re-associations of the direct forms in smoother.py and skeleton_attention.py, and the
rule that picks one.

    low-rank attention  skeleton attention mixes s1 + s2 vectors a head, so no H x H projection has to touch every token
    skip-KV attention   full queries, but keys and values only where they are read: s1 tokens and s2 channels
    short FFT           S tokens need 2 S points of the N-periodic filter, not N
    folded stem         the filter's output is r signals through H filters and the stem is linear in it: one filter for both

Each gives the direct form's numbers up to the rounding of float32, outputs and gradients, and reads the weights of modules
without calling them: `is_plain` says when that is the same. B, S, N, H, h, p, r, s1, s2 as in mixer_s3.py; M points of the
FFT in use, F = M // 2 + 1 frequencies, d = H / r channels of a segment. Costs are multiply-adds (MAC) a token.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from .numerics import at_least_float32, zero_padding


ATTENTION_FORMS = ("direct", "skip_kv", "low_rank")
SMOOTHER_FORMS = ("direct", "short", "folded")


def is_plain(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether reading the weights of `module` is the same as calling it.

    It is not for adapters (LoRA), quantised or parametrised layers, sharded weights, modules with hooks of their own, and
    those whose `forward` was replaced (offloading does that).
    """
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return (
        type(module) is kind
        and not any(hooks)
        and "forward" not in module.__dict__
        and not is_traceable_wrapper_subclass(module.weight)
    )


def cheapest_attention_form(length: int, head_size: int, num_rows: int, num_columns: int, batch: int | None) -> str:
    """The attention form of "auto" for (B, S) tokens; B None where it is unknown, and taken to be large.

    In units of H^2 MAC a token the direct form costs 4 and low-rank (2 s1 + 4 s2) / p + (4 s1 + 2 s2) / S, in smaller
    products that run less efficiently: it is taken up to 2.5, from 512 tokens in the batch on (measured on a CPU at H 256
    and 768: with fewer, its number of operations outweighs their size). Skip-KV costs 2 + 2 s2 / p + 2 s1 / S, and is
    taken under 4.
    """
    costs = (2 * num_rows + 4 * num_columns) * length + (4 * num_rows + 2 * num_columns) * head_size  # times p S
    if (batch is None or batch * length >= 512) and 2 * costs <= 5 * head_size * length:
        return "low_rank"
    return "skip_kv" if num_columns * length + num_rows * head_size < head_size * length else "direct"


def cheapest_smoother_form(batch: int, length: int, max_length: int) -> str:
    """The smoother form of "auto" for (B, S) tokens under an N-long filter, unless a folded filter is kept.

    Folding costs 3 M H^2 MAC for the whole batch and saves 3 H^2 a token.
    """
    return "folded" if batch * length >= 4 * fft_length(length, max_length) else "short"


def fft_length(length: int, max_length: int) -> int:
    """M: the least of 2^k and 3 * 2^k points from 64 on that hold 2 S, or N if that is no more.

    Few sizes, so that compiled code and kept filters serve many lengths.
    """
    points = 64
    while points < max_length:
        for candidate in (points, points + points // 2):
            if 2 * length <= candidate < max_length:
                return candidate
        points *= 2
    return max_length


def transform_means(means: torch.Tensor, points: int) -> torch.Tensor:
    """The Fourier transform (F, B, r, 2) of segment means (B, S, r) along their length, M points long."""
    # Explicit padding, and real pairs as soon as they can be: what export and compilers support.
    padded = F.pad(means.transpose(1, 2), (0, points - means.shape[1]))  # (B, r, M)
    return torch.view_as_real(torch.fft.rfft(padded)).permute(2, 0, 1, 3)


def inverse_transform(spectrum: torch.Tensor, points: int, length: int) -> torch.Tensor:
    """The first S of M points of what has the Fourier transform (F, B, H), as (B, S, H)."""
    if spectrum.device.type == "cpu" and not torch.compiler.is_compiling():
        return _SpreadInverseTransform.apply(spectrum, points, length)
    return torch.fft.irfft(spectrum, n=points, dim=0)[:length].transpose(0, 1)


class _SpreadInverseTransform(torch.autograd.Function):
    """`inverse_transform` on a CPU, where a transform across rows a power of two apart lets them evict each other from the
    cache: rows are first copied to uneven distances, backward always, forward where it pays (measured: from 1,024 points).
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(spectrum: torch.Tensor, points: int, length: int) -> torch.Tensor:
        if points >= 1024:
            spectrum = _spread(spectrum, spectrum.shape[0])
        return torch.fft.irfft(spectrum, n=points, dim=0)[:length].transpose(0, 1)

    @staticmethod
    def setup_context(ctx, inputs: tuple[torch.Tensor, int, int], output: torch.Tensor) -> None:
        ctx.points = inputs[1]

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        transform = torch.fft.rfft(_spread(gradient.transpose(0, 1), ctx.points), dim=0, norm="forward")
        transform[1 : (ctx.points + 1) // 2] *= 2  # frequencies that have a mirror image
        return transform, None, None


def _spread(rows: torch.Tensor, count: int) -> torch.Tensor:
    """A copy of (n, B, H), zeros appended to `count` rows, whose rows lie a cache line more than B H entries apart."""
    filled, width = rows.shape[0], rows[0].numel()
    spread = rows.new_empty(count, width + 64 // rows.itemsize)[:, :width].unflatten(1, rows.shape[1:])
    spread[:filled] = rows
    if filled < count:
        spread[filled:] = 0
    return spread


def short_spectrum(kernel: torch.Tensor, max_length: int, points: int) -> torch.Tensor:
    """The filter's spectrum (N // 2 + 1, H, 2) as one (F, H, 2) that acts alike on sequences of up to M / 2 tokens."""
    kernel = at_least_float32(kernel)
    if points == max_length:
        return kernel
    taps = torch.fft.irfft(torch.view_as_complex(kernel), n=max_length, dim=0)  # (N, H), lag j at j and lag -j at N - j
    half = points // 2
    gap = taps.new_zeros(1, taps.shape[1])
    taps = torch.cat((taps[:half], gap, taps[max_length - half + 1 :]))  # (M, H)
    return torch.view_as_real(torch.fft.rfft(taps, dim=0))


def fold_stem(spectrum: torch.Tensor, stem_weight: torch.Tensor, num_segments: int, points: int) -> torch.Tensor:
    """Filter and stem as one, (F, 2 r, H): for each segment the real part, then the imaginary part, of

        G[f, s, c'] = sum_k e^{i w_f (k - 1)} sum_{c in s} W[c', c, k] L[f, c]        w_f = 2 pi f / M

    for the spectrum L (F, H, 2) and the part W (H, H, 3) of the stem's weight that reads the filter's output.
    """
    frequencies, hidden, _ = spectrum.shape
    width = hidden // num_segments
    # The taps are applied before the product over channels, where the data is r times smaller.
    taps = torch.arange(-1, 2, device=spectrum.device)
    cosine, sine = waves(taps, points, spectrum.dtype)  # (F, 3)
    real, imaginary = spectrum[:, None, :, 0], spectrum[:, None, :, 1]  # (F, 1, H)
    cosine, sine = cosine[..., None], sine[..., None]
    left = torch.stack((real * cosine - imaginary * sine, imaginary * cosine + real * sine))  # (2, F, 3, H)
    left = left.view(2, frequencies, 3, num_segments, width).permute(3, 0, 1, 2, 4)
    right = stem_weight.view(-1, num_segments, width, 3).permute(1, 3, 2, 0)  # (r, 3, d, H)
    left, right = left.reshape(num_segments, 2 * frequencies, 3 * width), right.reshape(num_segments, 3 * width, -1)
    folded = torch.bmm(left.to(right.dtype), right)  # (r, 2 F, H)
    return folded.view(2 * num_segments, frequencies, -1).transpose(0, 1)


def folded_stem(
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
        spectrum, folded: (F, H, 2) of `short_spectrum` and (F, 2 r, H) of `fold_stem`, at M = `points`.
        stem_weight: W (H, H, 3), the part that reads the filter's output.
    """
    batch, length, _ = means.shape
    with torch.autocast(means.device.type, enabled=False):
        transform = transform_means(means, points)
    real, imaginary = transform.unbind(3)  # (F, B, r)
    # Real arithmetic: B rows that give the product's real part and B rows that give its imaginary part.
    rows = torch.cat((torch.stack((real, -imaginary), 3), torch.stack((imaginary, real), 3)), 1)
    rows = rows.flatten(2)  # (F, 2 B, 2 r)
    product = at_least_float32(torch.bmm(rows.to(folded.dtype), folded))  # (F, 2 B, H)
    outputs = inverse_transform(torch.complex(*product.chunk(2, 1)), points, length)
    features = features + outputs.to(features.dtype)

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
    """cos and sin of 2 pi f t / M, (F, ...) each, for integer places t (...); in float64, with f t reduced first."""
    frequencies = torch.arange(points // 2 + 1, device=places.device).view(-1, *[1] * places.dim())
    exact = torch.float32 if places.device.type == "mps" else torch.float64
    angles = (frequencies * places % points).to(exact) * (2 * math.pi / points)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def inverse_weights(points: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """What each of the F frequencies counts in the inverse transform: 2 / M, and 1 / M where it has no mirror image."""
    frequencies = torch.arange(points // 2 + 1, device=device)
    alone = (frequencies == 0) | (2 * frequencies == points)
    return (2 - alone.to(dtype)) / points


def multiply_pairs(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """The product of complex numbers held as pairs (..., 2), as a complex tensor."""
    if not torch.compiler.is_compiling():
        return torch.view_as_complex(left) * torch.view_as_complex(right)
    # Compilers and exporters generate no complex arithmetic.
    real = left[..., 0] * right[..., 0] - left[..., 1] * right[..., 1]
    imaginary = left[..., 0] * right[..., 1] + left[..., 1] * right[..., 0]
    return torch.complex(real, imaginary)


def real_convolution(means: torch.Tensor, kernel: torch.Tensor, points: int) -> torch.Tensor:
    """The Fourier convolution in real matrix products: means (B, S, r) and a filter (F, 1, r, d, 2) to (S, B, H)."""
    batch, length, num_segments = means.shape
    cosine, sine = waves(torch.arange(length, device=means.device), points, means.dtype)  # (F, S)
    rows = means.transpose(0, 1).flatten(1)  # (S, B r)
    real, imaginary = ((wave @ rows).view(-1, batch, num_segments, 1) for wave in (cosine, -sine))  # (F, B, r, 1)
    weights = inverse_weights(points, means.dtype, means.device)[:, None]
    product_real = (real * kernel[..., 0] - imaginary * kernel[..., 1]).flatten(1) * weights  # (F, B H)
    product_imaginary = (real * kernel[..., 1] + imaginary * kernel[..., 0]).flatten(1) * weights
    return (cosine.T @ product_real - sine.T @ product_imaginary).view(length, batch, -1)


def convolve(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """A `Conv1d` of kernel 3 and padding 1 on (B, S, C) -> (B, S, H), in the layout that runs fastest.

    As a convolution of images one token high, whose channels lie last in memory anyway, it needs no copy.
    """
    if torch.compiler.is_exporting():  # what follows looks at sizes, which are symbols then
        return F.conv1d(inputs.transpose(1, 2), weight, bias, padding=1).transpose(1, 2)
    few = inputs.shape[0] < 4 and inputs.device.type == "cpu" and not torch.is_autocast_enabled("cpu")
    if few and torch.is_grad_enabled() and weight.requires_grad:
        return _ConvolutionOfFew.apply(inputs, weight, bias)
    return _convolve(inputs, weight, bias)


def _convolve(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    # Reshaped twice, for a copy where it is needed and the usual strides where it is not: they decide the output's layout.
    inputs = inputs.reshape(-1, inputs.shape[2]).view(inputs.shape)
    image = inputs.transpose(1, 2).unsqueeze(2)  # (B, C, 1, S), channels last in memory
    return F.conv2d(image, weight.unsqueeze(2), bias, padding=(0, 1)).squeeze(2).transpose(1, 2)


class _ConvolutionOfFew(torch.autograd.Function):
    """`_convolve` for few long sequences: the library spreads the gradient of a convolution's weight over sequences."""

    generate_vmap_rule = True

    @staticmethod
    def forward(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return _convolve(inputs, weight, bias)

    @staticmethod
    def setup_context(ctx, inputs: tuple[torch.Tensor | None, ...], output: torch.Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.biased = inputs[2] is not None

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        inputs, weight = ctx.saved_tensors
        # Backwards through the convolution is the convolution with the kernel reversed, and its channels exchanged.
        inner = _convolve(gradient, weight.flip(2).transpose(0, 1))
        rows = gradient.transpose(1, 2)  # (B, H, S)
        taps = (
            torch.bmm(rows[..., 1:], inputs[:, :-1]),
            torch.bmm(rows, inputs),
            torch.bmm(rows[..., :-1], inputs[:, 1:]),
        )
        return inner, torch.stack([tap.sum(0) for tap in taps], -1), gradient.sum((0, 1)) if ctx.biased else None


def read_tokens(
    hidden_states: torch.Tensor, readers: list[tuple[torch.Tensor, torch.Tensor]]
) -> tuple[torch.Tensor, ...]:
    """What several readers see in each token, (B, n, S) each, as one product.

    A reader is weights (n, H) or (B, n, H) and offsets (n, 1) or (B, n, 1).
    """
    batch = hidden_states.shape[0]
    weights = torch.cat([weight.expand(batch, -1, -1) for weight, _ in readers], 1)
    offsets = torch.cat([offset.expand(batch, -1, -1) for _, offset in readers], 1)
    # Tokens first, so that their gradient comes in their own layout; then with tokens last, which suits all that follows.
    seen = torch.baddbmm(offsets.transpose(1, 2), hidden_states, weights.transpose(1, 2)).transpose(1, 2).contiguous()
    return seen.split([weight.shape[-2] for weight, _ in readers], 1)


def column_reader(layer: nn.Linear, columns: torch.Tensor, num_heads: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A linear layer's channels `columns` (s2) of each head, as a reader of h s2 rows."""
    weight, bias = (
        tensor.unflatten(0, (num_heads, -1)).index_select(1, columns) for tensor in (layer.weight, layer.bias)
    )
    return weight.flatten(0, 1), bias.view(-1, 1)


def row_score_reader(keys: torch.Tensor, query: nn.Linear) -> tuple[torch.Tensor, torch.Tensor]:
    """K1 Q^T for keys of landmark tokens (B, h, s1, p), as a reader of h s1 rows."""
    num_heads = keys.shape[1]
    weights = _by_head(keys, query.weight.unflatten(0, (num_heads, -1)))  # (B, h, s1, H)
    offsets = keys @ query.bias.view(num_heads, -1, 1)  # (B, h, s1, 1)
    return weights.flatten(1, 2), offsets.flatten(1, 2)


def low_rank_column_scores(hidden_states: torch.Tensor, keys: torch.Tensor, query: nn.Linear) -> torch.Tensor:
    """K2^T Q, (B, h, s2, p), of tokens (B, S, H) and scaled keys (B, h, s2, S) that are zero at padding."""
    num_heads = keys.shape[1]
    summary = torch.bmm(keys.flatten(1, 2), hidden_states).unflatten(1, (num_heads, -1))  # (B, h, s2, H)
    scores = _by_head(summary, query.weight.unflatten(0, (num_heads, -1)).transpose(1, 2))
    return scores + query.bias.view(num_heads, 1, -1) * keys.sum(-1, keepdim=True)


def projected_mixture(
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
    num_heads = vectors[0].shape[1]
    scaled, projected, shift = [], [], 0
    for x, r, norm in zip(coefficients, vectors, norms):
        with torch.autocast(x.device.type, enabled=False):
            x, exact = at_least_float32(x).flatten(1, 2), at_least_float32(r)  # (B, h s, S)
            means = exact.mean(-1, keepdim=True)  # (B, h, s, 1)
            centred = exact - means
            gram = centred @ centred.transpose(2, 3) / (num_heads * exact.shape[-1])  # (B, h, s, s)
            moments = torch.cat((_block_diagonal(gram), _block_diagonal(means.transpose(2, 3))), 1) @ x
            within, of_heads = moments.split((x.shape[1], num_heads), 1)  # (B, h s, S), (B, h, S)
            between = (of_heads - of_heads.mean(1, keepdim=True)).square().mean(1, keepdim=True)
            variance = (within * x).sum(1, keepdim=True) + between
            scaled.append(x * torch.rsqrt(variance.clamp(min=0) + norm.eps))
        gain = projection.weight * norm.weight  # (H, H), columns scaled
        rows = _by_head(r, gain.unflatten(1, (num_heads, -1)).permute(1, 2, 0))  # (B, h, s, H)
        rows = rows - means.to(rows.dtype) / num_heads * gain.sum(1)
        projected.append(rows.flatten(1, 2))
        shift = shift + norm.bias
    # What every token takes once is one more vector; padding takes the projection's bias alone.
    scaled.append(torch.ones_like(scaled[0][:, :1]))
    constant = F.linear(shift / parts, projection.weight)
    if mask is not None:
        scaled = [zero_padding(x.transpose(1, 2), mask).transpose(1, 2) for x in scaled]
    elif projection.bias is not None:
        constant = constant + projection.bias
    rows = torch.cat((*(rows / parts for rows in projected), constant.expand(x.shape[0], 1, -1)), 1)
    mixed = torch.bmm(torch.cat(scaled, 1).transpose(1, 2).to(rows.dtype), rows)
    return mixed if mask is None or projection.bias is None else mixed + projection.bias


def _block_diagonal(blocks: torch.Tensor) -> torch.Tensor:
    """(B, h, m, n) -> (B, h m, h n)."""
    num_heads = blocks.shape[1]
    head = torch.eye(num_heads, dtype=blocks.dtype, device=blocks.device)[:, None, :, None]
    return (blocks[:, :, :, None] * head).flatten(3).flatten(1, 2)


def _by_head(rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """(B, h, s, m) times a matrix of each head (h, m, n): (B, h, s, n)."""
    batch, _, count, _ = rows.shape
    product = torch.bmm(rows.transpose(0, 1).flatten(1, 2), weights)  # (h, B s, n)
    return product.unflatten(1, (batch, count)).transpose(0, 1)
