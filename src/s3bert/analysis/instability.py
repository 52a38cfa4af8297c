"""How much a small change of a model's weights changes what it says: Skyformer's instability score (its Table 3)."""

import torch
from torch import nn


@torch.no_grad()
def instability(model: nn.Module, input_ids: torch.Tensor, scale: float = 0.01, draws: int = 8, seed: int = 0) -> float:
    """Mean over examples and draws of |f(W + D) - f(W)|^2, f the logits.

    Every tensor of weights gets normal noise D of `scale` times its own root mean square, after Liu et al. (2020,
    "Understanding the difficulty of training transformers"), whom Skyformer follows; its own noise is not published, so that
    scores are to be compared with one another and not with its table's.

    Args:
        model: in evaluation mode; its weights are the same afterwards. input_ids: (B, S), or (B, 2, S) for pairs.
        scale: of the noise. draws: of the noise. seed: of the draws.
    """
    generator = torch.Generator().manual_seed(seed)
    weights = list(model.parameters())
    kept = [weight.clone() for weight in weights]
    logits = model(input_ids=input_ids).logits.float()
    total = 0.0
    try:
        for _ in range(draws):
            for weight, value in zip(weights, kept, strict=True):
                noise = torch.randn(value.shape, generator=generator).to(value)
                weight.copy_(value + scale * value.square().mean().sqrt() * noise)
            total += (model(input_ids=input_ids).logits.float() - logits).square().sum(-1).mean().item()
    finally:
        for weight, value in zip(weights, kept, strict=True):
            weight.copy_(value)
    return total / draws
