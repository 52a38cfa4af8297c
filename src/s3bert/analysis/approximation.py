"""How far approximate attentions are from the output of softmax attention inside BERT, after Skyformer's Figure 1 (Chen et al., NeurIPS 2021).

    error = |approximation of O - O|_2 / |O|_2,  O = softmax(Q K^T / sqrt(p)) V of one head, spectral norms

Q, K and V are those that a model, trained or not, forms of a text. All approximations stand for the same O. Everything runs in float64.
B batch, h heads, S length, p channels of a head, d landmarks, features or rows: the size of the approximation.
"""

from collections.abc import Callable, Mapping, Sequence
from statistics import mean, stdev
from typing import Any

import torch
from torch.nn import functional as F
from transformers import PreTrainedModel
from transformers.models.bert.modeling_bert import BertSelfAttention

from s3bert.models.mixers import build_mixer


Heads = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # Q, K and V, (B, h, S, p)


def skyformer(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, size: int) -> torch.Tensor:
    """Skyformer's A = exp(Q K^T / sqrt(p)), then the row sums D of that: D^-1 A V.

    A = D_Q^(1/2) C D_K^(1/2) with D_Q = diag exp(|q_i|^2 / sqrt(p)), D_K likewise, and C the Gaussian kernel's matrix, which Nystrom's method
    approximates with d random landmarks. D_Q^(1/2) is in A and in its row sums, and cancels.
    """
    exponents = key.square().sum(-1, keepdim=True) / (2 * key.shape[-1] ** 0.5)
    weights = (exponents - exponents.amax(2, keepdim=True)).exp()  # D_K^(1/2) up to a factor, (B, h, S, 1)
    sums = _mixer("skyformer", query, num_landmarks=size, inverse="solve").attend(
        query, key, torch.cat([weights * value, weights], -1), None
    )
    return sums[..., :-1] / sums[..., -1:]


def nystrom(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, size: int) -> torch.Tensor:
    """Nystromformer without its convolution: d means of consecutive queries and keys."""
    return _mixer("nystrom", query, num_landmarks=size, kernel_size=0).attend(query, key, value, None)


def performer(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, size: int) -> torch.Tensor:
    """Performer with d orthogonal random features."""
    seed = int(torch.randint(2**20, ()))
    return _mixer("performer", query, num_features=size, feature_seed=seed).attend(query, key, value, None)


def linformer(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, size: int) -> torch.Tensor:
    """Linformer with one random projection of keys and values to d rows, normal(0, 1 / d), as in the proof of its Theorem 2. Trained ones
    belong to a model that was trained with them."""
    mixer = _mixer("linformer", query, num_projections=size)
    projection = torch.randn_like(mixer.key_projection) / size**0.5
    mixer.key_projection.data = mixer.value_projection.data = projection
    return mixer.attend(query, key, value, None)


def skeleton_rows(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, size: int) -> torch.Tensor:
    """S3Attention's row attention: softmax attention over d random tokens (its Algorithm 1, step 2)."""
    rows = torch.randperm(key.shape[2])[:size]
    return F.scaled_dot_product_attention(query, key[:, :, rows], value[:, :, rows])


Approximation = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, int], torch.Tensor]
APPROXIMATIONS: Mapping[str, Approximation] = {
    "skyformer": skyformer,
    "nystrom": nystrom,
    "performer": performer,
    "linformer": linformer,
    "skeleton_rows": skeleton_rows,
}


def _mixer(name: str, query: torch.Tensor, **settings: Any):
    """A mixer for those heads whose landmarks or features are drawn as in training."""
    _, heads, length, head_size = query.shape
    return build_mixer(name, heads * head_size, heads, length, 0.0, 0, **settings).double().train()


@torch.no_grad()
def attention_inputs(model: PreTrainedModel, input_ids: torch.Tensor) -> list[Heads]:
    """Q, K and V of each layer of a BERT that reads ids (B, S) without padding.

    Raises:
        ValueError: the model has no attention of BERT's.
    """
    layers = [module for module in model.modules() if isinstance(module, BertSelfAttention)]
    if not layers:
        raise ValueError(f"A {model.config.model_type} has no softmax attention of BERT's to look into: name a BERT.")
    found: list[list[torch.Tensor]] = [[] for _ in layers]
    hooks = [
        linear.register_forward_hook(lambda _, __, states, kept=kept: kept.append(states))
        for layer, kept in zip(layers, found, strict=True)
        for linear in (layer.query, layer.key, layer.value)
    ]
    try:
        model.eval()(input_ids=input_ids)
    finally:
        for hook in hooks:
            hook.remove()
    heads = model.config.num_attention_heads
    return [
        tuple(states.double().unflatten(2, (heads, -1)).transpose(1, 2) for states in (query, key, value))
        for query, key, value in found
    ]


@torch.no_grad()
def approximation_errors(
    model: PreTrainedModel, input_ids: torch.Tensor, names: Sequence[str], lengths: Sequence[int], sizes: Sequence[int]
) -> dict[str, list[dict[str, float]]]:
    """For each approximation a list of its errors by `length` and `size`, each size below the length: `mean` and standard deviation `std` over
    sequences, heads and layers, `count` of them. Draws come from torch's default generator.

    Args:
        input_ids: (B, S); of each row as many tokens are read as a length says.
    """
    errors: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for length in lengths:
        layers = attention_inputs(model, input_ids[:, :length])
        outputs = [F.scaled_dot_product_attention(*heads) for heads in layers]
        for name in names:
            for size in sizes:
                if size < length:
                    found = [
                        error
                        for heads, exact in zip(layers, outputs, strict=True)
                        for error in relative_error(APPROXIMATIONS[name](*heads, size), exact).flatten().tolist()
                    ]
                    point = {"length": length, "size": size, "mean": mean(found), "std": stdev(found)}
                    errors[name].append(point | {"count": len(found)})
    return errors


def relative_error(approximation: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """|approximation - exact|_2 / |exact|_2 of each head, (B, h); both are (B, h, S, p)."""
    return torch.linalg.matrix_norm(approximation - exact, 2) / torch.linalg.matrix_norm(exact, 2)
