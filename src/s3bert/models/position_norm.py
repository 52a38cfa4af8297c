"""The smoother's BatchNorm: one mean and variance for each position, over batch and channels, of real tokens only.

A token's position is its place, or its number where numbers are given. B batch, S length of this batch, N positions, H hidden.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.autograd.function import once_differentiable

from .numerics import at_least_float32, first_rows, zero_padding


def repeat_cyclically(tensor: torch.Tensor, length: int) -> torch.Tensor:
    """(N, ...) -> (length, ...), row t being row t mod N."""
    return tensor[torch.arange(length, device=tensor.device) % tensor.shape[0]]


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

    running_mean: torch.Tensor
    running_var: torch.Tensor

    def __init__(self, max_length: int, eps: float = 1e-5, momentum: float = 0.1):
        super().__init__()
        self.eps = eps
        self.momentum = momentum
        self.weight = nn.Parameter(torch.ones(max_length))
        self.bias = nn.Parameter(torch.zeros(max_length))
        self.register_buffer("running_mean", torch.zeros(max_length))
        self.register_buffer("running_var", torch.ones(max_length))

    def forward(
        self, hidden_states: torch.Tensor, mask: torch.Tensor | None = None, numbers: torch.Tensor | None = None
    ) -> torch.Tensor:
        """(B, S, H) -> (B, S, H), zero at padding that is finite.

        Args:
            mask: (B, S), True at real tokens.
            numbers: (B, S), the tokens' positions where they are not their places; a permutation of these in each sequence.
        """
        length = hidden_states.shape[1]
        if mask is None and numbers is None and not (self.training and _several_processes()):
            return self._torch_batch_norm(hidden_states)
        dtype = torch.promote_types(hidden_states.dtype, torch.float32)
        parameters = (self.weight, self.bias, self.running_mean, self.running_var)
        weight, bias, mean, variance = (first_rows(tensor, length).to(dtype) for tensor in parameters)  # (S)
        if self.training:
            mean, variance, count = self._batch_statistics(hidden_states, mask, numbers, mean, variance)
            inverse = torch.rsqrt(variance + self.eps)
            statistics = (weight, bias, mean, inverse, count)
            return _Normalisation.apply(hidden_states, mask, numbers, *statistics, self._over_processes)
        return _affine(hidden_states, mask, numbers, weight, bias, mean, torch.rsqrt(variance + self.eps))

    def _torch_batch_norm(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """The same in torch's own operation, whose channels are our positions: where statistics are of all entries, or given."""
        length = hidden_states.shape[1]
        statistics = first_rows(self.running_mean, length), first_rows(self.running_var, length)
        if self.training and _in_recomputation():
            statistics = statistics[0].clone(), statistics[1].clone()
        parameters = first_rows(self.weight, length), first_rows(self.bias, length)
        return F.batch_norm(hidden_states, *statistics, *parameters, self.training, self.momentum, self.eps)

    @torch.no_grad()
    def resize(self, length: int) -> None:
        """Gives the norm `length` positions, in place: parameters and statistics repeat cyclically, or are cropped."""
        for name in ("weight", "bias"):
            parameter = getattr(self, name)
            setattr(self, name, nn.Parameter(repeat_cyclically(parameter, length), parameter.requires_grad))
        for name in ("running_mean", "running_var"):
            setattr(self, name, repeat_cyclically(getattr(self, name), length))

    @torch.no_grad()
    def _batch_statistics(
        self,
        hidden_states: torch.Tensor,
        mask: torch.Tensor | None,
        numbers: torch.Tensor | None,
        running_mean: torch.Tensor,
        running_var: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Mean, biased variance and count (S) of the batch's real entries; updates the running statistics."""
        length, hidden = hidden_states.shape[1:]
        # Each token's own first, joined over the batch afterwards. LayerNorm's kernel has them in one pass over the largest
        # tensor; torch.var_mean takes ten times as long.
        inputs = at_least_float32(hidden_states)
        _, means, inverse = torch.native_layer_norm(inputs, (hidden,), None, None, 0.0)  # (B, S, 1)
        of_tokens = (zero_padding(tensor[..., 0], mask) for tensor in (means, inverse.pow(-2)))
        means, variances = (_by_position(tensor, numbers) for tensor in of_tokens)
        real = _by_position(torch.ones_like(means) if mask is None else mask.to(means.dtype), numbers)
        tokens, total = self._over_processes(real.sum(0), means.sum(0))
        mean = total / tokens.clamp(min=1)
        deviations = (means - mean) * real
        (squares,) = self._over_processes(torch.addcmul(variances, deviations, deviations).sum(0))  # over H
        variance = squares / tokens.clamp(min=1)

        reached = tokens > 0
        if not _in_recomputation():
            weight = (reached * self.momentum).to(self.running_mean.dtype)
            unbiased = squares / (tokens - 1 / hidden).clamp(min=1 / hidden)
            first_rows(self.running_mean, length).lerp_(mean.to(weight.dtype), weight)
            first_rows(self.running_var, length).lerp_(unbiased.to(weight.dtype), weight)
        return torch.where(reached, mean, running_mean), torch.where(reached, variance, running_var), tokens * hidden

    def _over_processes(self, *statistics: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Sums each (S) tensor over all processes, which may hold different lengths S up to N."""
        if not _several_processes():
            return statistics
        length, max_length = statistics[0].numel(), self.weight.numel()
        padded = torch.stack([F.pad(statistic, (0, max_length - length)) for statistic in statistics])
        dist.all_reduce(padded)
        return padded[:, :length].unbind()


class _Normalisation(torch.autograd.Function):
    """weight (x - mean) / std + bias with the statistics of x itself: the gradient in two passes, nothing but x kept.

    Arguments after mask and numbers are (S): weight, bias, mean, 1 / std, and the count of entries that mean and variance are of.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_states: torch.Tensor,
        mask: torch.Tensor | None,
        numbers: torch.Tensor | None,
        weight: torch.Tensor,
        bias: torch.Tensor,
        mean: torch.Tensor,
        inverse: torch.Tensor,
        count: torch.Tensor,
        over_processes: Callable[..., tuple[torch.Tensor, ...]],
    ) -> torch.Tensor:
        ctx.save_for_backward(hidden_states, mask, numbers, weight, mean, inverse, count)
        ctx.over_processes = over_processes
        return _affine(hidden_states, mask, numbers, weight, bias, mean, inverse)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden_states, mask, numbers, weight, mean, inverse, count = ctx.saved_tensors
        inputs, outer = at_least_float32(hidden_states), at_least_float32(gradient)
        of_tokens = (zero_padding(sums, mask) for sums in (outer.sum(2), torch.linalg.vecdot(outer, inputs)))  # (B, S)
        sums, products = (_by_position(tensor, numbers).sum(0) for tensor in of_tokens)
        products = products - mean * sums  # of gradient and deviation
        scale = weight * inverse
        total, total_products = ctx.over_processes(sums, products)
        # Through variance and mean, which real entries alone have a part in: slope * x + offset.
        share = (count > 0) * scale / count.clamp(min=1)
        slope = -share * inverse.square() * total_products
        offset = -share * total - slope * mean
        slope, offset, scale = (_of_tokens(tensor, numbers) for tensor in (slope, offset, scale))
        if mask is not None:
            slope, offset, scale = slope * mask, offset * mask, scale * mask  # (B, S)
        through_statistics = torch.addcmul(offset[..., None], inputs, slope[..., None])
        inner = through_statistics.addcmul_(outer, scale[..., None]).to(hidden_states.dtype)
        return inner, None, None, products * inverse, sums, None, None, None, None


def _affine(
    hidden_states: torch.Tensor,
    mask: torch.Tensor | None,
    numbers: torch.Tensor | None,
    weight: torch.Tensor,
    bias: torch.Tensor,
    mean: torch.Tensor,
    inverse: torch.Tensor,
) -> torch.Tensor:
    """weight (x - mean) / std + bias in one pass, (B, S, H), of (S) statistics in at least float32; zero at padding."""
    scale = weight * inverse
    shift = bias - mean * scale
    scale, shift = _of_tokens(scale, numbers), _of_tokens(shift, numbers)
    if mask is not None:
        scale, shift = scale * mask, shift * mask
    return torch.addcmul(shift[..., None], at_least_float32(hidden_states), scale[..., None]).to(hidden_states.dtype)


def _by_position(tensor: torch.Tensor, numbers: torch.Tensor | None) -> torch.Tensor:
    """What tokens have (B, S), in the order of their numbers: nothing is added, so no order of additions is left to chance."""
    return tensor if numbers is None else tensor.scatter(1, numbers, tensor)


def _of_tokens(tensor: torch.Tensor, numbers: torch.Tensor | None) -> torch.Tensor:
    """What positions have (S), for each token (B, S); (S) as it is where places are the positions."""
    return tensor if numbers is None else tensor[numbers]


def _several_processes() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _in_recomputation() -> bool:
    """Whether this forward is gradient checkpointing's second pass, which runs inside backward."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1
