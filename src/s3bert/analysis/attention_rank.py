"""The rank of attention without its nearest tokens, after FMMformer's Figure 3 (Nguyen et al., NeurIPS 2021).

    rank of A - D above t: the number of singular values of A - D that are larger than t |A|,  A = softmax(Q K^T / sqrt(p)) of one head

D is A's band: a token itself and the k - 1 next to it, on either side where attention is not causal, as in `FmmAttention`; k = 0 for none.
|A| is A's largest singular value. B batch, h heads, S length.
"""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from s3bert.models.attention_heads import HeadAttention
from s3bert.models.mixer_softmax import SoftmaxAttention


@torch.no_grad()
def attention_matrices(model: PreTrainedModel, input_ids: torch.Tensor) -> list[torch.Tensor]:
    """A of each layer, (B, h, S, S), of a model that reads ids (B, S) without padding.

    Args:
        model: one with `SoftmaxAttention`, or of Transformers with attn_implementation="eager", whose matrices it returns itself.

    Raises:
        ValueError: the model has no softmax attention.
    """
    model.eval()
    attentions = [module for module in model.modules() if isinstance(module, HeadAttention)]
    if attentions:
        matrices = _of_own_layers(model, input_ids, attentions)
    else:
        matrices = list(getattr(model(input_ids=input_ids, output_attentions=True), "attentions", None) or [])
    length = input_ids.shape[1]
    if not matrices or any(matrix.shape[2:] != (length, length) for matrix in matrices):
        raise ValueError(
            f"This {model.config.model_type} has no softmax attention to look into: name a GPT-2, a BERT, or an fmmformer with "
            "bandwidth = None."
        )
    return matrices


def _of_own_layers(
    model: PreTrainedModel, input_ids: torch.Tensor, attentions: Sequence[HeadAttention]
) -> list[torch.Tensor]:
    """The layers' rule applied to unit vectors as values: they never form A themselves."""
    found: list[torch.Tensor] = []

    def keep(layer: SoftmaxAttention, inputs: tuple, _: torch.Tensor) -> None:
        query, key, _ = layer.split(inputs[0])
        units = torch.eye(key.shape[2], dtype=key.dtype, device=key.device).expand(*key.shape[:2], -1, -1)
        found.append(layer.attend(query, key, units, None))

    hooks = [layer.register_forward_hook(keep) for layer in attentions if isinstance(layer, SoftmaxAttention)]
    try:
        model(input_ids=input_ids)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def without_band(matrices: torch.Tensor, bandwidth: int) -> torch.Tensor:
    """A - D of matrices (..., S, S): zeros where two tokens are less than k apart."""
    places = torch.arange(matrices.shape[-1], device=matrices.device)
    return matrices.masked_fill((places[:, None] - places).abs() < bandwidth, 0)


def largest_rank(length: int, bandwidth: int, causal: bool) -> int:
    """The most that any matrix without its band can have: with the band go k of a causal matrix's rows and columns."""
    left = max(0, length - bandwidth)
    return left if causal else min(length, 2 * left)


def attention_ranks(
    model: PreTrainedModel, input_ids: torch.Tensor, bandwidths: Sequence[int], thresholds: Sequence[float]
) -> list[dict[str, Any]]:
    """For each threshold t and bandwidth k the `ranks` of all sequences, layers and heads, and `most`, the largest there can be.

    Args:
        input_ids: (B, S), read one sequence after the other.
    """
    points: list[dict[str, Any]] = [
        {"threshold": threshold, "bandwidth": bandwidth, "ranks": []}
        for threshold in thresholds
        for bandwidth in bandwidths
    ]
    for sequence in input_ids:
        matrices = torch.cat([matrix[0] for matrix in attention_matrices(model, sequence[None])])  # (layers h, S, S)
        sizes = torch.linalg.matrix_norm(matrices, 2)[:, None]
        shares = {
            bandwidth: torch.linalg.svdvals(without_band(matrices, bandwidth)) / sizes for bandwidth in bandwidths
        }
        causal = bool((matrices.triu(1) == 0).all())
        for point in points:
            point["ranks"] += (shares[point["bandwidth"]] > point["threshold"]).sum(1).tolist()
            point["most"] = largest_rank(matrices.shape[-1], point["bandwidth"], causal)
    return points
