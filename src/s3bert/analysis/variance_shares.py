"""What S3 makes of its inputs, by shares of variance: how much hangs on the landmark tokens, what row attention and the Fourier branch bring.

At first values row attention is nearly one vector that all tokens of an input share, drawn from a few landmark tokens, and its LayerNorm
makes that vector large: these numbers tell how far a model has come from there. All tokens count as real. B inputs, S tokens, H hidden.
"""

from collections import defaultdict

import torch
from torch import nn
from torch.nn import functional as F

from s3bert.models.modeling_lra import LraModel
from s3bert.models.position_norm import PositionBatchNorm
from s3bert.models.skeleton_attention import SkeletonAttention
from s3bert.models.smoother import Smoother


@torch.no_grad()
def settle_statistics(encoder: LraModel, input_ids: torch.Tensor) -> None:
    """Gives the norms per position the statistics of these inputs (B, S), in place, as training would in time: a new model's are 0 and 1."""
    changes = {PositionBatchNorm: ("momentum", 1.0), nn.Dropout: ("p", 0.0)}
    changed = [(module, *changes[type(module)]) for module in encoder.modules() if type(module) in changes]
    before = [getattr(module, name) for module, name, _ in changed]
    for module, name, value in changed:
        setattr(module, name, value)
    encoder.train()
    encoder(input_ids, torch.ones_like(input_ids))
    encoder.eval()
    for (module, name, _), value in zip(changed, before, strict=True):
        setattr(module, name, value)


def landmark_tokens(encoder: LraModel, length: int) -> torch.Tensor:
    """The tokens, ascending, that a layer's row attention reads, and their neighbours that its stem's kernel brings into them."""
    places = []
    for layer in encoder.layers:
        smoother, attention = layer.mixer.smoother, layer.mixer.attention
        reach = smoother.stem.kernel_size[0] // 2 if smoother.use_convolution_stem else 0
        landmarks, counts, _, _ = attention.landmarks(torch.empty(1, length, 0), None)
        landmarks = landmarks[0] if counts is None else landmarks[counts]
        places.append(landmarks[:, None] + torch.arange(-reach, reach + 1))
    found = torch.cat([place.flatten() for place in places]).unique()
    return found[(found >= 0) & (found < length)]


def share_of_tokens(encoder: LraModel, input_ids: torch.Tensor, tokens: torch.Tensor, batch_size: int = 64) -> float:
    """The share of the pooled vectors' variance over inputs that hangs on some tokens L, their total effect (Sobol's total index):

        E |p(x) - p(x')|^2 / (2 E |p(x) - E p|^2),  x' = x with the tokens L of another input

    p is the mean of the encoder's states over tokens. 0: these tokens change nothing; about 1: all that differs between inputs is theirs. Shares
    of different tokens need not add up to 1.

    Args:
        input_ids: (B, S), in random order: the other input is the next. tokens: L.
    """
    mixed = input_ids.clone()
    mixed[:, tokens] = input_ids.roll(1, 0)[:, tokens]
    pooled, changed = (pooled_vectors(encoder, ids, batch_size) for ids in (input_ids, mixed))
    variance = (pooled - pooled.mean(0)).square().sum(1).mean()
    return ((pooled - changed).square().sum(1).mean() / (2 * variance)).item()


@torch.no_grad()
def pooled_vectors(encoder: LraModel, input_ids: torch.Tensor, batch_size: int = 64) -> torch.Tensor:
    """Means over tokens of the encoder's states, (B, H) in float64."""
    parts = [encoder(ids, torch.ones_like(ids)).last_hidden_state for ids in input_ids.split(batch_size)]
    return torch.cat([states.double().mean(1) for states in parts])


def effective_rank(matrices: torch.Tensor) -> torch.Tensor:
    """exp of the entropy of singular values that are divided by their sum, (...) of matrices (..., n, d): between 1 and min(n, d) (Roy and
    Vetterli, "The effective rank", EUSIPCO 2007)."""
    values = torch.linalg.svdvals(matrices.double())
    shares = values / values.sum(-1, keepdim=True)
    return torch.special.entr(shares).sum(-1).exp()


@torch.no_grad()
def layer_measures(encoder: LraModel, input_ids: torch.Tensor) -> list[dict[str, float]]:
    """For each layer, over inputs (B, S):

    - `row_rms`: root mean square of row attention's output R (B, S, H) before its LayerNorm. `row_constant`, `row_shared`, `row_token`: shares of
      its mean square that are one vector for all (the mean of R over inputs and tokens), one vector for each input that its tokens
      share (the rest of the mean over tokens), and what differs between tokens. They add up to 1.
    - `row_normed_rms`: root mean square after the LayerNorm.
    - `fourier_share`: of the variance of the stem's output before its norm, over inputs and tokens, the share of the Fourier branch m:
      Var(W_m m) / (Var(W_m m) + Var(W_x x)), W = [W_m, W_x] the stem's weights, summed over channels.
    - `token_rank`: effective rank of the tokens' states (S, H) after the layer, mean over inputs.

    A layer without the part lacks its measures.
    """
    found: list[dict[str, float]] = [defaultdict(float) for _ in encoder.layers]
    hooks = []
    for layer, measures in zip(encoder.layers, found, strict=True):
        smoother, attention = layer.mixer.smoother, layer.mixer.attention
        if attention.use_row_attention:
            hooks.append(attention.row_norm.register_forward_hook(_row_measures(measures)))
        if smoother.use_fourier_convolution and smoother.use_convolution_stem:
            hooks.append(smoother.register_forward_pre_hook(_fourier_measure(measures)))
        hooks.append(layer.register_forward_hook(_rank_measure(measures)))
    try:
        encoder.eval()(input_ids, torch.ones_like(input_ids))
    finally:
        for hook in hooks:
            hook.remove()
    return [dict(measures) for measures in found]


def _row_measures(measures: dict[str, float]):
    def look(norm: nn.Module, inputs: tuple, output: torch.Tensor) -> None:
        row = inputs[0].double()
        square, shared = row.square().mean(), row.mean(1)
        constant = shared.mean(0)
        measures["row_rms"] = square.sqrt().item()
        measures["row_normed_rms"] = output.double().square().mean().sqrt().item()
        measures["row_constant"] = (constant.square().mean() / square).item()
        measures["row_shared"] = ((shared - constant).square().mean() / square).item()
        measures["row_token"] = ((row - shared[:, None]).square().mean() / square).item()

    return look


def _fourier_measure(measures: dict[str, float]):
    def look(smoother: Smoother, inputs: tuple) -> None:
        states = inputs[0]
        branches = (smoother.fourier_convolution(states), states)  # m, x: the stem's order
        weights = smoother.stem.weight.chunk(2, 1)
        outputs = [
            F.conv1d(branch.transpose(1, 2), weight, padding=smoother.stem.padding, groups=smoother.stem_groups)
            for branch, weight in zip(branches, weights, strict=True)
        ]
        fourier, direct = (output.double().var((0, 2)).sum() for output in outputs)
        measures["fourier_share"] = (fourier / (fourier + direct)).item()

    return look


def _rank_measure(measures: dict[str, float]):
    def look(layer: nn.Module, inputs: tuple, output: torch.Tensor) -> None:
        measures["token_rank"] = effective_rank(output).mean().item()

    return look


def variance_shares(encoder: LraModel, input_ids: torch.Tensor, batch_size: int = 64, seed: int = 0) -> dict:
    """All of it for inputs (B, S): `landmark_tokens`, how many there are; `landmark_share` and, of as many other tokens, `other_share`
    (`share_of_tokens`); `pooled_rank`, the effective rank of the pooled vectors about their mean; `layers` (`layer_measures`, of the first batch).

    Raises:
        ValueError: the encoder's mixer is not S3.
    """
    if not isinstance(getattr(encoder.layers[0].mixer, "attention", None), SkeletonAttention):
        raise ValueError(f"mixer = {encoder.config.mixer}: only S3 has landmark tokens; give s3 with any settings.")
    encoder.eval()
    length = input_ids.shape[1]
    tokens = landmark_tokens(encoder, length)
    others = torch.ones(length, dtype=torch.bool).index_fill(0, tokens, False).nonzero()[:, 0]
    drawn = others[torch.randperm(len(others), generator=torch.Generator().manual_seed(seed))[: len(tokens)]]
    pooled = pooled_vectors(encoder, input_ids, batch_size)
    return {
        "landmark_tokens": len(tokens),
        "landmark_share": share_of_tokens(encoder, input_ids, tokens, batch_size),
        "other_share": share_of_tokens(encoder, input_ids, drawn, batch_size),
        "pooled_rank": effective_rank(pooled - pooled.mean(0)).item(),
        "layers": layer_measures(encoder, input_ids[:batch_size]),
    }
