"""How close linear attentions come to the matrix they stand for: spectral-norm error against sketch size and length.

    python scripts/approximation_error.py --output_dir runs/approximation
    python scripts/approximation_error.py --scale 0.5 --lengths 256 1024 --sizes 16 64 256 --output_dir runs/approximation-small

The measurement of Skyformer's Figure 1 (Chen et al., NeurIPS 2021), on Gaussian queries and keys: |C' - C| / |C| in the spectral norm,
C the matrix that values are multiplied by. Skyformer stands for Kernelized Attention's matrix, Nystromformer and Performer for softmax
attention's. (Linformer's projections are learnt, so a drawn one approximates nothing.) The paper draws queries and keys from models; Gaussian ones, whose spectrum decays slowest, are the hard case.
The output folder gets `all_results.json`, `results.md` and `errors.png`.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, stdev

import matplotlib
import torch
from tqdm.auto import tqdm
from transformers.hf_argparser import HfArg

from s3bert.config import parse_arguments, run_as_script, save_arguments
from s3bert.files import replacing, write_text
from s3bert.markdown import table
from s3bert.models.mixers import build_mixer


matplotlib.use("Agg")
import matplotlib.pyplot as plt


# approximation: what it stands for, its settings, and the name of its size
APPROXIMATIONS = {
    "skyformer": ("kernelized", {}, "num_landmarks"),
    "nystrom": ("softmax", {"kernel_size": 0}, "num_landmarks"),
    "performer": ("softmax", {}, "num_features"),
}


@dataclass
class ErrorArguments:
    """Which matrices, of what size."""

    output_dir: str = HfArg(help="folder of the results")
    mixers: list[str] = HfArg(help="approximations to measure", default_factory=lambda: list(APPROXIMATIONS))
    lengths: list[int] = HfArg(help="tokens of a sequence", default_factory=lambda: [256, 512, 1024])
    sizes: list[int] = HfArg(help="landmarks or features", default_factory=lambda: [16, 32, 64, 128, 256])
    head_size: int = HfArg(help="channels of a head", default=32)
    scale: float = HfArg(help="standard deviation of queries and keys", default=1.0)
    num_draws: int = HfArg(help="draws of queries, keys and sketches for each cell", default=5)
    seed: int = HfArg(help="of the first draw", default=0)

    def __post_init__(self):
        if unknown := [name for name in self.mixers if name not in APPROXIMATIONS]:
            raise ValueError(f"mixers: {unknown[0]} approximates no matrix; there is {', '.join(APPROXIMATIONS)}.")
        for name in ("lengths", "sizes"):
            if not getattr(self, name) or min(getattr(self, name)) < 2:
                raise ValueError(f"{name} = {getattr(self, name)}: give numbers of at least 2.")
        if self.num_draws < 1:
            raise ValueError(f"num_draws = {self.num_draws}: give at least 1.")


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


def plot(file: Path, errors: Mapping[str, list[dict]]) -> None:
    """Error against size, a panel an approximation and a line a length; bars are standard deviations over draws."""
    figure, panels = plt.subplots(
        1, len(errors), figsize=(3.6 * len(errors) + 1, 4), sharey=True, squeeze=False, layout="constrained"
    )
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
    with replacing(file) as aside:
        figure.savefig(aside, dpi=150, format="png")
    plt.close(figure)


def main(argv: list[str] | None = None) -> dict[str, list[dict]]:
    """Runs the script; returns the errors by approximation."""
    (arguments,) = parse_arguments((ErrorArguments,), argv, __doc__)
    cells = [(name, n, d) for name in arguments.mixers for n in arguments.lengths for d in arguments.sizes if d <= n]
    errors: dict[str, list[dict]] = {name: [] for name in arguments.mixers}
    for name, length, size in tqdm(cells, unit="cell", disable=None):
        draws = [
            relative_error(name, size, length, arguments.head_size, arguments.scale, arguments.seed + draw)
            for draw in range(arguments.num_draws)
        ]
        errors[name].append({"length": length, "size": size, "errors": draws})
    folder = Path(arguments.output_dir)
    save_arguments(folder / "arguments.yaml", arguments)
    title = "error of approximations"
    description = (
        f"|approximation - matrix| / |matrix| in the spectral norm, mean of {arguments.num_draws} draws of normal queries and keys "
        f"of scale {arguments.scale:g} and size {arguments.head_size}, by sketch size."
    )
    text = error_table(errors)
    write_text(folder / "results.md", f"# {title}\n\n{description}\n\n{text}\n")
    plot(folder / "errors.png", errors)
    content = {"title": title, "description": description, **asdict(arguments), "errors": errors}
    write_text(folder / "all_results.json", json.dumps(content, indent=1) + "\n")
    print(text)
    return errors


if __name__ == "__main__":
    run_as_script(main)
