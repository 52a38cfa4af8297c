"""PoNet's pooling network (Tan et al., "PoNet: Pooling Network for Efficient Token Mixing in Long Sequences", ICLR 2022,
section 3): global aggregation, segment max-pooling and local max-pooling in place of attention, linear in the length.

B batch, S length, H hidden, h heads, p = H / h.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

from .numerics import at_least_float32, zero_padding


class PoolingMixer(nn.Module):
    """Three poolings of a sequence, fused for each token; with the output projection that follows it does 6 H^2
    multiply-adds a token where self-attention does 4.

    Linear layers carry the names of the authors' program, in which the key is the value too.

    Args:
        hidden_size: H. num_heads: h, of the global aggregation.
        use_global_aggregation, use_segment_pooling, use_local_pooling: which of the three there are.

    Raises:
        ValueError: h does not divide H.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        use_global_aggregation: bool = True,
        use_segment_pooling: bool = True,
        use_local_pooling: bool = True,
    ):
        super().__init__()
        if hidden_size % num_heads:
            raise ValueError(f"hidden_size = {hidden_size} is not divisible by num_heads = {num_heads}.")
        self.num_heads = num_heads
        self.use_global_aggregation = use_global_aggregation
        self.use_segment_pooling = use_segment_pooling
        self.use_local_pooling = use_local_pooling
        if use_global_aggregation:
            self.dense_q = nn.Linear(hidden_size, hidden_size)
            self.dense_k = nn.Linear(hidden_size, hidden_size)
        self.dense_o = nn.Linear(hidden_size, hidden_size)
        if use_local_pooling:
            self.dense_local = nn.Linear(hidden_size, hidden_size)
        if use_segment_pooling:
            self.dense_segment = nn.Linear(hidden_size, hidden_size)

    def forward(
        self,
        hidden_states: torch.Tensor,
        mask: torch.Tensor | None = None,
        segments: torch.Tensor | None = None,
        apart: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(B, S, H) -> mixed states (B, S, H), zero at padding, and the global aggregation's weights (B, h, S), zero without it.

        Args:
            mask: (B, S), True at real tokens. What lies under it has no influence on them.
            segments: (B, S) integers from 0 to S, equal at the tokens of a segment; one segment when absent.
            apart: (B, S), True at tokens that neither give to nor take from segment and local pooling.
        """
        hidden_states = zero_padding(hidden_states, mask)
        pooled = mask
        if apart is not None:
            pooled = ~apart if mask is None else mask & ~apart
        context = []  # what a token is multiplied with
        if self.use_global_aggregation:
            summary, weights = self._global_aggregation(hidden_states, mask)  # (B, 1, H)
            context.append(summary)
        else:
            weights = hidden_states.new_zeros(hidden_states.shape[0], self.num_heads, hidden_states.shape[1])
        if self.use_segment_pooling:
            context.append(segment_max(self.dense_segment(hidden_states), segments, pooled))
        mixed = sum(context[1:], context[0]) * self.dense_o(hidden_states)
        if self.use_local_pooling:
            mixed = mixed + local_max(self.dense_local(hidden_states), pooled)
        return zero_padding(mixed, mask), weights

    def _global_aggregation(
        self, hidden_states: torch.Tensor, mask: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One attention of the mean query over all tokens: its output (B, 1, H) and weights (B, h, S)."""
        dtype = hidden_states.dtype
        query = at_least_float32(zero_padding(self.dense_q(hidden_states), mask))
        key = self.dense_k(hidden_states).unflatten(2, (self.num_heads, -1)).transpose(1, 2)  # (B, h, S, p)
        count = hidden_states.shape[1] if mask is None else mask.sum(1).clamp(min=1)[:, None]
        mean = (query.sum(1) / count).unflatten(1, (self.num_heads, -1))  # (B, h, p)
        with torch.autocast(hidden_states.device.type, enabled=False):
            exact = at_least_float32(key)
            scores = (exact @ mean[..., None]).squeeze(3) / math.sqrt(exact.shape[-1])  # (B, h, S)
            if mask is not None:
                scores = scores.masked_fill(~mask[:, None], torch.finfo(scores.dtype).min)
            weights = scores.softmax(-1)
            if mask is not None:
                weights = weights.masked_fill(~mask[:, None], 0)  # no real token at all gives zeros
            summary = (weights[:, :, None] @ exact).transpose(1, 2).flatten(2)  # (B, 1, H)
        return summary.to(dtype), weights


def segment_max(states: torch.Tensor, segments: torch.Tensor | None, pooled: torch.Tensor | None) -> torch.Tensor:
    """Each channel's maximum over the token's segment, (B, S, H); zero at tokens that are not `pooled` (B, S)."""
    batch, length, hidden = states.shape
    if pooled is not None:
        states = states.masked_fill(~pooled[..., None], -math.inf)
    if segments is None:
        maxima = states.amax(1, keepdim=True).expand(-1, length, -1)
    else:
        index = segments[..., None].expand(-1, -1, hidden)
        maxima = states.new_full((batch, length + 1, hidden), -math.inf)
        maxima = maxima.scatter_reduce(1, index, states, "amax").gather(1, index)
    # Before they meet anything else: infinities times a zero gradient are NaN.
    return maxima if pooled is None else maxima.masked_fill(~pooled[..., None], 0)


def local_max(states: torch.Tensor, pooled: torch.Tensor | None) -> torch.Tensor:
    """Each channel's maximum over the token and its two neighbours, (B, S, H); zero at tokens that are not `pooled`."""
    if pooled is not None:
        # Not -inf, which pooling pads with: where a window holds nothing else, compiled code would point outside the sequence.
        states = states.masked_fill(~pooled[..., None], torch.finfo(states.dtype).min)
    maxima = F.max_pool2d(states, kernel_size=(3, 1), stride=1, padding=(1, 0))
    return maxima if pooled is None else maxima.masked_fill(~pooled[..., None], 0)


class PoNetMixer(nn.Module):
    """PoNet's pooling over equal segments of the longest sequence, from its first real token on, and the output projection.

    Args:
        hidden_size, num_heads, max_length, dropout: the contract's; the authors have no dropout here.
        num_segments: m; a segment has floor(N / m) + 1 tokens, N = max_length, as in the authors' program.

    Raises:
        ValueError: m is not between 1 and N.
    """

    def __init__(self, hidden_size: int, num_heads: int, max_length: int, dropout: float = 0.0, num_segments: int = 64):
        super().__init__()
        if not 1 <= num_segments <= max_length:
            raise ValueError(f"num_segments = {num_segments}: give between 1 and max_length = {max_length}.")
        self.segment_length = max_length // num_segments + 1
        self.pooling = PoolingMixer(hidden_size, num_heads)
        self.output = nn.Linear(hidden_size, hidden_size)

    def forward(self, hidden_states: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """(B, S, H) -> (B, S, H), zero at padding."""
        batch, length, _ = hidden_states.shape
        places = torch.arange(length, device=hidden_states.device).expand(batch, -1)
        if mask is not None:
            places = (places - mask.int().argmax(1, keepdim=True)).clamp(min=0)
        segments = places // self.segment_length
        mixed, _ = self.pooling(hidden_states, mask, segments)
        return zero_padding(self.output(mixed), mask)
