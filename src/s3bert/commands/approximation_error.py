"""Measures how close linear attentions come to the matrix they stand for.

    s3bert approximation --output_dir runs/approximation
    s3bert approximation --scale 0.5 --lengths 256 1024 --sizes 16 64 256 --output_dir runs/approximation-small

The measurement of Skyformer's Metric 1 (Chen et al., NeurIPS 2021), on Gaussian queries and keys: |C' - C| / |C| in the spectral norm,
against sketch size and length, C the matrix that values are multiplied by. Skyformer stands for Kernelized Attention's matrix, Nystromformer and Performer for softmax
attention's. (Linformer's projections are learnt, so a drawn one approximates nothing.) The paper draws queries and keys from models; Gaussian ones, whose spectrum decays slowest, are the hard case.
The output folder gets `all_results.json`, `results.md` and `errors.png`.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from s3bert.arguments import option, parse_arguments, save_arguments
from s3bert.commands import run
from s3bert.files import write_text


@dataclass
class ErrorArguments:
    """Matrices: which, and of what size."""

    output_dir: str = option(help="folder of the results")
    mixers: list[str] = option(
        help="approximations to measure", default_factory=lambda: ["skyformer", "nystrom", "performer"]
    )
    lengths: list[int] = option(help="tokens of a sequence", default_factory=lambda: [256, 512, 1024])
    sizes: list[int] = option(help="landmarks or features", default_factory=lambda: [16, 32, 64, 128, 256])
    head_size: int = option(help="channels of a head", default=32)
    scale: float = option(help="standard deviation of queries and keys", default=1.0)
    num_draws: int = option(help="draws of queries, keys and sketches at each length and size", default=5)
    seed: int = option(help="of the first draw", default=0)

    def __post_init__(self):
        from s3bert.analysis.approximation import APPROXIMATIONS  # not at the top: `--help` has no need of torch

        if unknown := [name for name in self.mixers if name not in APPROXIMATIONS]:
            raise ValueError(f"mixers: {unknown[0]} approximates no matrix; there is {', '.join(APPROXIMATIONS)}.")
        for name in ("lengths", "sizes"):
            if not getattr(self, name) or min(getattr(self, name)) < 2:
                raise ValueError(f"{name} = {getattr(self, name)}: give numbers of at least 2.")
        if self.num_draws < 1:
            raise ValueError(f"num_draws = {self.num_draws}: give at least 1.")


def main(argv: list[str] | None = None) -> dict[str, list[dict]]:
    """Runs the command; returns the errors by approximation."""
    (arguments,) = parse_arguments((ErrorArguments,), argv, __doc__)
    from tqdm.auto import tqdm

    from s3bert.analysis.approximation import relative_error
    from s3bert.reports.approximation import error_table, plot_approximation

    measured = [(name, n, d) for name in arguments.mixers for n in arguments.lengths for d in arguments.sizes if d <= n]
    errors: dict[str, list[dict]] = {name: [] for name in arguments.mixers}
    for name, length, size in tqdm(measured, unit="error", disable=None):
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
    content = {"title": title, "description": description, "errors": errors}
    plot_approximation(folder / "errors.png", {title: content})
    write_text(folder / "all_results.json", json.dumps(content, indent=1) + "\n")
    print(text)
    print(f"\nTable, numbers and plot are in {folder}.")
    return errors


if __name__ == "__main__":
    run("approximation")
