"""How evenly tokens spread over the directions that matter: mu-incoherence (the S3Attention paper's Definition 1, Table 14)."""

from collections.abc import Iterable
from statistics import mean, pstdev

import torch
from torch import nn

from s3bert.models.numerics import zero_padding
from s3bert.models.smoother import Smoother


# A singular value under this share of the largest is float32's rounding: singular vectors there are anyone's choice.
SMALLEST_SINGULAR_VALUE = 1e-5


def incoherence(matrix: torch.Tensor, rank: int) -> float:
    """mu of a matrix (n, d) at a rank k: max(n / k max_i |W_k's row i|^2, d / k max_i |V_k's row i|^2), where W_k and V_k hold the
    leading k left and right singular vectors. At least 1; n / k or d / k where one row or column stands alone; NaN where the matrix has a
    lower rank.

    Raises:
        ValueError: k is not between 1 and min(n, d).
    """
    if not 1 <= rank <= min(matrix.shape):
        raise ValueError(f"rank = {rank}: a matrix of {tuple(matrix.shape)} has ranks 1 to {min(matrix.shape)}.")
    return incoherences(matrix[None], [rank], torch.tensor([len(matrix)]))[rank].item()


def incoherences(matrices: torch.Tensor, ranks: Iterable[int], lengths: torch.Tensor) -> dict[int, torch.Tensor]:
    """`incoherence` of many matrices (B, S, d) at each rank, (B,); NaN for one of lower rank, too.

    Args:
        matrices: rows beyond a matrix's own are zero, and so are then those of W_k. lengths: its own rows n, (B,).
    """
    lengths = lengths.cpu()
    left, values, right = torch.linalg.svd(matrices.cpu().double(), full_matrices=False)  # (B, S, m), (B, m), (B, m, d)
    vectors = left, right.transpose(1, 2)
    found = {}
    for rank in ranks:
        rows, columns = (part[..., :rank].square().sum(2).amax(1) / rank for part in vectors)  # (B,)
        mu = torch.maximum(lengths * rows, matrices.shape[2] * columns)
        whole = values[:, rank - 1 : rank] > SMALLEST_SINGULAR_VALUE * values[:, :1]  # (B, 1), or (B, 0) where k > m
        found[rank] = mu.where(whole.any(1), torch.nan)
    return found


@torch.no_grad()
def token_incoherence(
    model: nn.Module, batches: Iterable[torch.Tensor], ranks: tuple[int, ...] = (32, 16)
) -> dict[str, float]:
    """Incoherence of the tokens before and after the Fourier convolution, over all sequences that have it at the rank.

    `incoherence_before_32` is the mean over layers and sequences; `incoherence_before_32_layer_1` the mean over sequences of the first
    layer, `incoherence_before_32_layer_1_std` their standard deviation.

    Args:
        model: in evaluation mode, holds S3's smoothers. batches: ids (B, S), or (B, 2, S) for pairs.
    """
    smoothers = [
        module for module in model.modules() if isinstance(module, Smoother) and module.use_fourier_convolution
    ]
    found: dict[tuple[str, int, int], list[float]] = {}

    def look(smoother: Smoother, inputs: tuple) -> None:
        states, mask = inputs[0], inputs[1] if len(inputs) > 1 else None
        lengths = torch.full((len(states),), states.shape[1]) if mask is None else mask.sum(1)
        before = zero_padding(states, mask)
        after = zero_padding(smoother.fourier_convolution(before), mask)
        for when, tokens in (("before", before), ("after", after)):
            for rank, values in incoherences(tokens, ranks, lengths).items():
                kept = found.setdefault((when, rank, smoothers.index(smoother)), [])
                kept += values[~values.isnan()].tolist()

    hooks = [smoother.register_forward_pre_hook(look) for smoother in smoothers]
    try:
        for input_ids in batches:
            model(input_ids=input_ids)
    finally:
        for hook in hooks:
            hook.remove()
    metrics = {}
    for rank in ranks:
        for when in ("before", "after"):
            layers = [found.get((when, rank, layer), []) for layer in range(len(smoothers))]
            if not all(layers):
                continue
            name = f"incoherence_{when}_{rank}"
            metrics[name] = mean(value for values in layers for value in values)
            for layer, values in enumerate(layers, 1):
                metrics |= {f"{name}_layer_{layer}": mean(values), f"{name}_layer_{layer}_std": pstdev(values)}
    return metrics
