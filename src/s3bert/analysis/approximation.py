"""How far approximate attentions are from the matrix they stand for, after Skyformer's Figure 1 (Chen et al., NeurIPS 2021)."""

import torch

from s3bert.models.mixers import build_mixer


# approximation: what it stands for, its settings, and the name of its size
APPROXIMATIONS = {
    "skyformer": ("kernelized", {}, "num_landmarks"),
    "nystrom": ("softmax", {"kernel_size": 0}, "num_landmarks"),
    "performer": ("softmax", {}, "num_features"),
}


@torch.no_grad()
def relative_error(name: str, size: int, length: int, head_size: int, scale: float, seed: int) -> float:
    """|C' - C| / |C| for one draw, in float64; the sketch is drawn as in training."""
    target, own, size_name = APPROXIMATIONS[name]
    torch.manual_seed(seed)
    query, key = scale * torch.randn(2, 1, 1, length, head_size, dtype=torch.float64)
    if name == "performer":
        own = own | {"feature_seed": seed}
    identity = torch.eye(length, dtype=torch.float64)[None, None]  # values that give the matrix itself
    sketch, exact = (
        build_mixer(mixer, head_size, 1, length, 0.0, 0, **settings).double().train().attend(query, key, identity, None)
        for mixer, settings in ((name, own | {size_name: size}), (target, {}))
    )
    norms = torch.linalg.matrix_norm(torch.stack([sketch - exact, exact])[:, 0, 0], 2)
    return (norms[0] / norms[1]).item()
