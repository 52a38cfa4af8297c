"""How far approximate attentions are from the matrix they stand for, after Skyformer's Figure 1 (Chen et al., NeurIPS 2021)."""

from collections.abc import Mapping
from pathlib import Path
from statistics import mean, stdev

import torch

from s3bert.files import table
from s3bert.models.mixers import build_mixer
from s3bert.plots import save, subplots


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


def error_table(errors: Mapping[str, list[dict]]) -> str:
    """A Markdown table: a row for each approximation and length, a column for each size."""
    sizes = sorted({cell["size"] for cells in errors.values() for cell in cells})
    rows = []
    for name, cells in errors.items():
        for length in sorted({cell["length"] for cell in cells}):
            found = {cell["size"]: cell["errors"] for cell in cells if cell["length"] == length}
            values = [f"{mean(found[size]):.3g}" if size in found else "" for size in sizes]
            rows.append([name, str(length), *values])
    return table(["", "tokens", *map(str, sizes)], rows)


def plot_errors(file: Path, errors: Mapping[str, list[dict]]) -> None:
    """Error against size, a panel an approximation and a line a length; bars are standard deviations over draws."""
    figure, panels = subplots(1, len(errors), figsize=(3.6 * len(errors) + 1, 4), sharey=True, squeeze=False)
    for axes, (name, cells) in zip(panels[0], errors.items(), strict=True):
        for length in sorted({cell["length"] for cell in cells}):
            points = [cell for cell in cells if cell["length"] == length]
            bars = [stdev(cell["errors"]) if len(cell["errors"]) > 1 else 0.0 for cell in points]
            axes.errorbar(
                [cell["size"] for cell in points], [mean(cell["errors"]) for cell in points], bars, marker="o",
                markersize=3, label=f"{length} tokens",
            )  # fmt: skip
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set(xlabel="sketch size", title=f"{name} for {APPROXIMATIONS[name][0]}")
        axes.grid(alpha=0.3)
    panels[0][0].set(ylabel="relative spectral-norm error")
    panels[0][-1].legend(fontsize="small")
    save(figure, file)
