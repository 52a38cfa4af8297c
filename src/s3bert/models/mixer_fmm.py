"""FMMformer attention (Nguyen et al., NeurIPS 2021, arXiv 2108.02347): a band of softmax attention and low-rank kernels.

    out = sigmoid(w1) D V + sigmoid(w2) sum_l L_l V            (eqs. 9, 10)

D is a softmax over the neighbours within the band, L_l linear attention under the feature map l (eq. 4), or in the causal form fast
weights by the delta rule. All are linear in the length, in time and memory.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import nn
from torch.nn import functional as F

from .attention_heads import HeadAttention, zero_padded_keys
from .band_attention import band_attention
from .delta_rule import delta_rule
from .fmm_state import FmmState
from .mixer_linear import SMALLEST_DENOMINATOR, causal_feature_sums, feature_sums
from .numerics import at_least_float32, zero_padding


# tanh, as the paper prints it, is odd: half of its denominators are negative, and the smallest make outputs explode.
# The authors' program shifts it; the literal form is there, guarded, and never a default.
FEATURE_MAPS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "elu": lambda x: F.elu(x) + 1,
    "elu_flip": lambda x: F.elu(-x) + 1,
    "tanh": lambda x: torch.tanh(x) + 1,
    "tanh_raw": torch.tanh,
}
_RAW_GUARD = 1e-2  # of the mean size of a sequence's denominators
_DELTA = "delta_"  # before a feature map's name: fast weights
_KERNELS = (*FEATURE_MAPS, *(_DELTA + name for name in FEATURE_MAPS if name != "tanh_raw"))


class FmmAttention(HeadAttention):
    """Near-field and far-field attention, blended by learnt weights.

    Args:
        hidden_size, num_heads, max_length, dropout: as in `HeadAttention`; dropout acts on the band.
        bandwidth: k; neighbours up to k - 1 tokens away are in the band, 2 k - 1 diagonals, as in the authors' program. (The
            paper's "0.125% of the matrix at 4K" would be k diagonals for its k = 5.) 0 for no band.
        kernels: of the far field, feature maps in `FEATURE_MAPS`; none for the band alone. "delta_elu", "delta_elu_flip" and
            "delta_tanh" are fast weights under that map, its features divided by their sum: causal alone, without a denominator.
        causal: a token reads itself and those before it.
        blend: how several parts are weighed; one part alone has no weight. "sigmoid", the paper's, has a weight of the band and one of
            the far field for each head, both 1/2 at first; kernels without a band are summed. "per_channel", the authors' program's, has
            unconstrained weights for each channel, of the band and of each kernel: 0 and 1 / r at first.
        bias: the projections have one.

    Raises:
        ValueError: k under 0, neither band nor kernel, an unknown kernel, "tanh_raw" in the causal form, whose guard looks ahead, fast
            weights in the other, an unknown blend.
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
        bias: bool = True,
    ):
        super().__init__(hidden_size, num_heads, max_length, dropout, bias)
        if bandwidth < 0:
            raise ValueError(f"bandwidth = {bandwidth}: give 0 for no band, or from 1, the token itself, on.")
        unknown = [name for name in kernels if name not in _KERNELS]
        if unknown:
            raise ValueError(f"kernels = {list(kernels)}: name some of {', '.join(_KERNELS)}, or none.")
        if not (bandwidth or kernels):
            raise ValueError("bandwidth = 0 and kernels = []: give a band, kernels, or both.")
        delta = [name for name in kernels if name.startswith(_DELTA)]
        if causal and "tanh_raw" in kernels:
            raise ValueError("kernels: tanh_raw has no causal form; take tanh.")
        if delta and not causal:
            raise ValueError(f"kernels: {delta[0]} writes one token after the other; it is causal alone.")
        if blend not in ("sigmoid", "per_channel"):
            raise ValueError(
                f"blend = {blend!r}: there is sigmoid, the paper's, and per_channel, the authors' program's."
            )
        self.bandwidth, self.kernels, self.causal, self.blend = bandwidth, tuple(kernels), causal, blend
        self.write_strength = nn.Linear(hidden_size, len(delta) * num_heads, bias=False) if delta else None
        both, count, channels = bool(bandwidth and kernels), len(kernels), (num_heads, self.head_size)
        self.near_weight = self.far_weight = None
        if blend == "sigmoid" and both:
            self.near_weight = nn.Parameter(torch.zeros(num_heads))  # w1, before the sigmoid
            self.far_weight = nn.Parameter(torch.zeros(num_heads))  # w2
        elif blend == "per_channel":
            if both:
                self.near_weight = nn.Parameter(torch.zeros(channels))
            if both or count > 1:
                self.far_weight = nn.Parameter(torch.full((count, *channels), 1 / count))

    def forward(
        self, hidden_states: torch.Tensor, mask: torch.Tensor | None = None, past: FmmState | None = None
    ) -> torch.Tensor:
        """As `HeadAttention`'s; `past` holds what the causal form keeps of tokens that came before, and is given the new ones."""
        hidden_states = zero_padding(hidden_states, mask)
        query, key, value = self.split(hidden_states)
        strengths = None
        if self.write_strength is not None:
            # (B, S, d h) to (d, B, h, S, 1), for d kernels of fast weights
            strengths = self.write_strength(hidden_states).unflatten(2, (-1, self.num_heads, 1)).permute(2, 0, 3, 1, 4)
        return self.join(self.attend(query, key, value, mask, strengths, past), hidden_states, mask)

    def attend(self, query, key, value, mask, strengths=None, past=None):
        """`strengths`: of the writes of d kernels of fast weights, before the sigmoid, (d, B, h, S, 1)."""
        with torch.autocast(query.device.type, enabled=False):
            query, key, value = (at_least_float32(states) for states in (query, key, value))
            near, far, writes = None, [], iter(() if strengths is None else at_least_float32(strengths))
            band = (key, value, mask) if past is None else past.extend(key, value, mask)
            if self.bandwidth:
                near = self._near_field(query, *band)
            for number, name in enumerate(self.kernels):
                if name.startswith(_DELTA):
                    far.append(self._fast_weights(number, query, key, value, mask, next(writes), past))
                else:
                    far.append(self._linear(number, query, key, value, mask, past))
            return self._blended(near, far)

    def _blended(self, near, far):
        if self.far_weight is not None and self.blend == "per_channel":
            far = [weight[:, None] * states for weight, states in zip(self.far_weight, far, strict=True)]
        if not far:
            return near
        total = sum(far[1:], far[0])  # not from 0, which would be an addition more
        if self.far_weight is not None and self.blend == "sigmoid":
            total = self.far_weight.sigmoid()[:, None, None] * total
        if self.near_weight is None:
            return total
        share = self.near_weight.sigmoid()[:, None] if self.blend == "sigmoid" else self.near_weight
        return torch.addcmul(total, share[:, None], near)

    def _near_field(self, query, key, value, mask):
        """The band's softmax; keys and values begin with those of a window before the queries, if there is one."""
        length, window = query.shape[2], key.shape[2] - query.shape[2]
        if window and length == 1:  # all that is there is in the band
            dropout, allowed = self.dropout.p if self.training else 0.0, None
            if mask is not None:
                itself = torch.arange(window + 1, device=key.device) == window
                allowed = (mask | itself)[:, None, None]  # (B, 1, 1, k)
            return F.scaled_dot_product_attention(query, key, value, attn_mask=allowed, dropout_p=dropout)
        if window:
            query = F.pad(query, (0, 0, window, 0))
        near = band_attention(query, key, value, mask, self.bandwidth, self.causal, self.dropout)
        return near[:, :, window:] if window else near

    def _linear(self, number, query, key, value, mask, past):
        """Linear attention under one feature map."""
        name = self.kernels[number]
        query, key = (FEATURE_MAPS[name](states) for states in (query, key))
        key = zero_padded_keys(key, mask)
        if past is None:
            numerator, denominator = feature_sums(query, key, value, self.causal)
        else:
            numerator, denominator, past.sums[number] = causal_feature_sums(query, key, value, past.sums[number])
        if name != "tanh_raw":
            return numerator / denominator.clamp(min=SMALLEST_DENOMINATOR)
        sizes = zero_padded_keys(denominator.abs(), mask)
        count = denominator.shape[2] if mask is None else mask.sum(1).clamp(min=1)[:, None, None, None]
        smallest = (_RAW_GUARD * sizes.sum(2, keepdim=True) / count).clamp(min=SMALLEST_DENOMINATOR)
        sign = torch.where(denominator < 0, -1.0, 1.0)
        return numerator / (sign * denominator.abs().maximum(smallest))

    def _fast_weights(self, number, query, key, value, mask, strength, past):
        """The delta rule under one feature map; padding writes nothing."""
        feature_map = FEATURE_MAPS[self.kernels[number].removeprefix(_DELTA)]
        query, key = (feature_map(states) for states in (query, key))
        # A key's features sum to 1: with a strength under 1 no write makes the state grow (Schlag et al., section 4.2).
        query, key = (x / x.sum(3, keepdim=True).clamp(min=SMALLEST_DENOMINATOR) for x in (query, key))
        strength = zero_padded_keys(strength.sigmoid(), mask)
        reads, state = delta_rule(query, key, value, strength, None if past is None else past.sums[number])
        if past is not None:
            past.sums[number] = state
        return reads
