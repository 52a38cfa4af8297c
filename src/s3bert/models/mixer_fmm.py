"""FMMformer attention (Nguyen et al., NeurIPS 2021, arXiv 2108.02347): a band of softmax attention and low-rank kernels.

    out = sigmoid(w1) D V + sigmoid(w2) sum_l L_l V            (eqs. 9, 10)

D is a softmax over the neighbours within the band, L_l linear attention under the feature map l (eq. 4). Both are linear in
the length, in time and memory.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import nn
from torch.nn import functional as F

from .attention_heads import HeadAttention, zero_padded_keys
from .mixer_linear import SMALLEST_DENOMINATOR, feature_sums
from .numerics import at_least_float32


# tanh, as the paper prints it, is odd: half of its denominators are negative, and the smallest make outputs explode.
# The authors' program shifts it; the literal form is there, guarded, and never a default.
FEATURE_MAPS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "elu": lambda x: F.elu(x) + 1,
    "elu_flip": lambda x: F.elu(-x) + 1,
    "tanh": lambda x: torch.tanh(x) + 1,
    "tanh_raw": torch.tanh,
}
_RAW_GUARD = 1e-2  # of the mean size of a sequence's denominators
_SMALLEST_CHUNK = 16  # tokens; smaller products cost more than what narrow bands save


def _with_neighbours(states: torch.Tensor, chunk: int, before: int, after: int) -> torch.Tensor:
    """(B, h, blocks chunk, p) to (B, h, blocks, before + chunk + after, p): each block with the ends of those beside it, zeros outside.

    `before` and `after` are at most `chunk`."""
    blocks = states.unflatten(2, (-1, chunk))
    outside = torch.zeros_like(blocks[:, :, :1])
    left = torch.cat([outside[:, :, :, :before], blocks[:, :, :-1, chunk - before :]], 2)
    right = torch.cat([blocks[:, :, 1:, :after], outside[:, :, :, :after]], 2)
    return torch.cat([left, blocks, right], 3)


class FmmAttention(HeadAttention):
    """Near-field and far-field attention, blended by learnt weights.

    Args:
        hidden_size, num_heads, max_length, dropout: as in `HeadAttention`; dropout acts on the band.
        bandwidth: k; neighbours up to k - 1 tokens away are in the band, 2 k - 1 diagonals, as in the authors' program. (The
            paper's "0.125% of the matrix at 4K" would be k diagonals for its k = 5.)
        kernels: feature maps of the far field, names in `FEATURE_MAPS`.
        causal: a token reads itself and those before it.
        blend: "sigmoid", the paper's, has a weight of the band and one of the far field for each head, both 1/2 at first. "per_channel",
            the authors' program's, has unconstrained weights for each channel, of the band and of each kernel: 0 and 1 / r at first.

    Raises:
        ValueError: k under 1, no or an unknown kernel, "tanh_raw" in the causal form, whose guard looks ahead, an unknown blend.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        max_length: int,
        dropout: float = 0.0,
        bandwidth: int = 5,
        kernels: Sequence[str] = ("elu", "elu_flip"),
        causal: bool = False,
        blend: Literal["sigmoid", "per_channel"] = "sigmoid",
    ):
        super().__init__(hidden_size, num_heads, max_length, dropout)
        if bandwidth < 1:
            raise ValueError(f"bandwidth = {bandwidth}: the band has the token itself at least, which is 1.")
        unknown = [name for name in kernels if name not in FEATURE_MAPS]
        if unknown or not kernels:
            raise ValueError(f"kernels = {list(kernels)}: name one or more of {', '.join(FEATURE_MAPS)}.")
        if causal and "tanh_raw" in kernels:
            raise ValueError("kernels: tanh_raw has no causal form; take tanh.")
        if blend not in ("sigmoid", "per_channel"):
            raise ValueError(
                f"blend = {blend!r}: there is sigmoid, the paper's, and per_channel, the authors' program's."
            )
        self.bandwidth, self.kernels, self.causal, self.blend = bandwidth, tuple(kernels), causal, blend
        if blend == "sigmoid":
            self.near_weight = nn.Parameter(torch.zeros(num_heads))  # w1, before the sigmoid
            self.far_weight = nn.Parameter(torch.zeros(num_heads))  # w2
        else:
            channels, count = (num_heads, self.head_size), len(kernels)
            self.near_weight = nn.Parameter(torch.zeros(channels))
            self.far_weight = nn.Parameter(torch.full((count, *channels), 1 / count))

    def attend(self, query, key, value, mask):
        with torch.autocast(query.device.type, enabled=False):
            query, key, value = (at_least_float32(states) for states in (query, key, value))
            near = self._near_field(query, key, value, mask)
            far = [self._far_field(name, query, key, value, mask) for name in self.kernels]
            if self.blend == "per_channel":
                weighted = (weight[:, None] * states for weight, states in zip(self.far_weight, far, strict=True))
                return self.near_weight[:, None] * near + sum(weighted)
            near_weight, far_weight = (w.sigmoid()[:, None, None] for w in (self.near_weight, self.far_weight))
            return near_weight * near + far_weight * sum(far)

    def _near_field(self, query, key, value, mask):
        """Softmax over the band: tokens in blocks of `chunk`, each a small product with its block and the band's rest on both sides."""
        length = query.shape[2]
        before = min(self.bandwidth, length) - 1
        after = 0 if self.causal else before
        chunk = max(_SMALLEST_CHUNK, before)
        pad = -length % chunk
        counts = torch.ones(len(query), length, dtype=torch.bool, device=query.device) if mask is None else mask
        counts = _with_neighbours(F.pad(counts, (0, pad))[:, None, :, None], chunk, before, after)[..., 0]
        query, key, value = (F.pad(states, (0, 0, 0, pad)) for states in (query, key, value))
        keys, values = (_with_neighbours(states, chunk, before, after) for states in (key, value))
        # (B, h, blocks, chunk, before + chunk + after); entry (i, j) is of the neighbour j - i - before places away.
        scores = query.unflatten(2, (-1, chunk)) @ keys.transpose(3, 4) / self.head_size**0.5
        rows, columns = (torch.arange(size, device=query.device) for size in scores.shape[3:])
        offsets = columns - rows[:, None]
        # A token may always read itself, so that padding, zeroed afterwards, is never a softmax over nothing.
        admissible = (counts[:, :, :, None] & (offsets >= 0) & (offsets <= before + after)) | (offsets == before)
        weights = scores.masked_fill(~admissible, torch.finfo(scores.dtype).min).softmax(4)
        return (self.dropout(weights) @ values).flatten(2, 3)[:, :, :length]

    def _far_field(self, name, query, key, value, mask):
        """Linear attention under one feature map."""
        feature_map = FEATURE_MAPS[name]
        features = zero_padded_keys(feature_map(key), mask)
        numerator, denominator = feature_sums(feature_map(query), features, value, self.causal)
        if name != "tanh_raw":
            return numerator / denominator.clamp(min=SMALLEST_DENOMINATOR)
        sizes = zero_padded_keys(denominator.abs(), mask)
        count = denominator.shape[2] if mask is None else mask.sum(1).clamp(min=1)[:, None, None, None]
        smallest = (_RAW_GUARD * sizes.sum(2, keepdim=True) / count).clamp(min=SMALLEST_DENOMINATOR)
        sign = torch.where(denominator < 0, -1.0, 1.0)
        return numerator / (sign * denominator.abs().maximum(smallest))
