"""How evenly tokens spread over the directions that matter: mu-incoherence (the S3Attention paper's Definition 1, Table 14)."""

import torch
from torch import nn

from s3bert.models.numerics import zero_padding
from s3bert.models.smoother import Smoother


def incoherence(matrix: torch.Tensor, rank: int) -> float:
    """mu of a matrix (n, d) at a rank k: max(n / k max_i |W_k's row i|^2, d / k max_i |V_k's row i|^2), where W_k and V_k hold the
    leading k left and right singular vectors. At least 1; n / k or d / k where one row or column stands alone.

    Raises:
        ValueError: k is not between 1 and min(n, d).
    """
    if not 1 <= rank <= min(matrix.shape):
        raise ValueError(f"rank = {rank}: a matrix of {tuple(matrix.shape)} has ranks 1 to {min(matrix.shape)}.")
    left, _, right = torch.linalg.svd(matrix.cpu().double(), full_matrices=False)
    vectors = (left[:, :rank], right[:rank].T)
    return max(len(v) / rank * v.square().sum(1).max().item() for v in vectors)


@torch.no_grad()
def token_incoherence(model: nn.Module, input_ids: torch.Tensor, ranks: tuple[int, ...] = (32, 16)) -> dict[str, float]:
    """Incoherence of the tokens before and after the Fourier convolution: means over all layers of a model and all sequences with more
    real tokens than the rank, as `incoherence_before_32`, ...

    Args:
        model: holds S3's smoothers. input_ids: (B, S).
    """
    found: dict[str, list[float]] = {f"incoherence_{when}_{rank}": [] for rank in ranks for when in ("before", "after")}

    def look(smoother: Smoother, inputs: tuple) -> None:
        states, mask = inputs[0], inputs[1] if len(inputs) > 1 else None
        states = zero_padding(states, mask)
        smoothed = smoother.fourier_convolution(states)
        for i in range(len(states)):
            real = slice(None) if mask is None else mask[i]
            for when, tokens in (("before", states[i][real]), ("after", smoothed[i][real])):
                for rank in ranks:
                    if rank <= min(tokens.shape):
                        found[f"incoherence_{when}_{rank}"].append(incoherence(tokens, rank))

    hooks = [
        module.register_forward_pre_hook(look)
        for module in model.modules()
        if isinstance(module, Smoother) and module.use_fourier_convolution
    ]
    try:
        model(input_ids=input_ids)
    finally:
        for hook in hooks:
            hook.remove()
    return {name: sum(values) / len(values) for name, values in found.items() if values}
