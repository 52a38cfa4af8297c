"""Draws what is proved of S3Attention, Skyformer and FMMformer beside what is found on drawn matrices.

python examples/why_it_works.py --output why-it-works.png
"""

import argparse
import math
from pathlib import Path
from statistics import median

import torch

from s3bert.analysis.incoherence import incoherence
from s3bert.analysis.theory import cur, cur_bound, cur_failure, sampling_error
from s3bert.models.mixer_kernelized import gaussian_kernel
from s3bert.models.mixers import build_mixer
from s3bert.models.skeleton_attention import SkeletonAttention
from s3bert.plots import save, subplots


ROWS, COLUMNS = 128, 64
SAMPLES = [2, 3, 4, 6, 8, 12, 16, 24, 32, 48]
LENGTH, HEAD_SIZE = 64, 8
LANDMARKS = [8, 16, 32, 64, 128]


def norm(matrix):
    return torch.linalg.matrix_norm(matrix, 2).item()


def directions(size, spread):
    """Two orthonormal columns: a cosine and a sine, or two single entries."""
    if not spread:
        return torch.eye(size)[:, :2].double()
    angle = 2 * math.pi * torch.arange(size).double() / size
    return torch.stack([angle.cos(), angle.sin()], 1) * math.sqrt(2 / size)


def draw_s3(axes, draws):
    """A matrix of rank 2 and noise, from rows and columns that S3Attention samples; the bound is likely to hold at low incoherence alone."""
    bounds = [cur_bound((ROWS, COLUMNS), number, number) for number in SAMPLES]
    for spread, color in ((True, "C0"), (False, "C3")):
        noise = 0.01 / (math.sqrt(ROWS) + math.sqrt(COLUMNS)) * torch.randn(ROWS, COLUMNS).double()
        matrix = directions(ROWS, spread) @ directions(COLUMNS, spread).T + noise
        unit, mu = torch.linalg.svdvals(matrix)[2].item(), incoherence(matrix, 2)
        errors = []
        for number in SAMPLES:
            layer = SkeletonAttention(COLUMNS, 1, number, number, landmark_length=ROWS)
            errors.append([])
            for layer.landmark_seed in range(draws):
                errors[-1].append(norm(matrix - cur(matrix, *layer.seeded_landmarks())) / unit)
        medians, least, most = ([of(found) for found in errors] for of in (median, min, max))
        axes.plot(SAMPLES, medians, color, marker="o", markersize=3, label=f"incoherence {mu:.1f}")
        axes.fill_between(SAMPLES, least, most, color=color, alpha=0.2, linewidth=0)
        missed = [min(1.0, cur_failure(mu, 2, number, number)) for number in SAMPLES]
        name = f"S3Attention, incoherence {mu:4.1f}"
        print(f"{name}: error {medians[4]:6.2f} at 8 samples, {medians[8]:5.2f} at 32")
        print(f"{name}: bound {bounds[4]:6.2f} at 8 samples, {bounds[8]:5.2f} at 32")
        print(f"{name}: missed with probability at most {missed[4]:.1g} at 8 samples, {missed[8]:.1g} at 32")
    axes.plot(SAMPLES, bounds, "k--", label="bound, at incoherence 1")
    axes.set(title="S3Attention: C U R", xlabel="sampled rows and columns", ylabel="error / third singular value")


def draw_skyformer(axes, draws):
    """Kernelized Attention's matrix from Skyformer's landmarks, and twice the lowest level at which they have the MA property."""
    identity = torch.eye(LENGTH).double()[None, None]
    for scale, color in ((0.5, "C0"), (1.0, "C3")):
        query, key = scale * torch.randn(2, 1, 1, LENGTH, HEAD_SIZE).double()
        rows = [states * HEAD_SIZE**-0.25 for states in (query, key)]
        points = torch.cat(rows, 2)[0, 0]
        gram = gaussian_kernel(points, points)
        exact = gram[:LENGTH, LENGTH:]
        medians, bounds = [], []
        for number in LANDMARKS:
            settings = {"num_landmarks": number, "ridge": 1e-6, "inverse": "solve"}
            mixer = build_mixer("skyformer", HEAD_SIZE, 1, LENGTH, 0.0, 0, **settings).double().train()
            errors, levels = [], []
            for seed in range(draws):
                torch.manual_seed(seed)
                landmarks = mixer._landmarks(*rows, None)[0][0, 0]
                torch.manual_seed(seed)  # the same landmarks
                errors.append(norm(exact - mixer.attend(query, key, identity, None)[0, 0]) / norm(exact))
                drawn = torch.cdist(landmarks, points).argmin(1)
                levels.append(next(2**i for i in range(-2, 9) if sampling_error(gram, drawn, 2**i) <= 0.5))
            medians.append(median(errors))
            bounds.append(2 * median(levels) / norm(exact))
        axes.plot(LANDMARKS, medians, color, marker="o", markersize=3, label=f"scale {scale:g}")
        axes.plot(LANDMARKS, bounds, color, linestyle="--", label=f"scale {scale:g}: bound")
        for name, found in (("error", medians), ("bound", bounds)):
            print(f"Skyformer, scale {scale:.1f}: {name} {found[1]:.3f} at 16 landmarks, {found[4]:.3f} at 128")
    axes.set(title="Skyformer", xlabel="landmarks", ylabel="error / norm of the matrix", ylim=(2e-4, 30))


def draw_fmm(axes):
    """Softmax attention between sinusoidal positions, less its band."""
    channels = torch.arange(32).double()
    angles = torch.arange(128).double()[:, None] * 10000 ** (-channels / 32)
    states = 2 * torch.cat([angles.sin(), angles.cos()], 1)[None, None]
    softmax = build_mixer("softmax", 64, 1, 128, 0.0, 0).double()
    matrix = softmax.attend(states, states, torch.eye(128).double()[None, None], None)[0, 0]
    distance = (torch.arange(128)[:, None] - torch.arange(128)).abs()
    for bandwidth in (0, 2, 5, 10, 20):
        values = torch.linalg.svdvals(matrix * (distance >= bandwidth)) / norm(matrix)
        axes.plot(range(1, 129), values, label=f"without a band of {bandwidth}" if bandwidth else "whole")
        print(f"FMMformer, bandwidth {bandwidth:2}: {(values > 0.01).sum():3} singular values above 1%")
    axes.set(title="FMMformer: less its band", xlabel="number", ylabel="singular value / largest", ylim=(1e-5, 2))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", required=True, help="file of the plot, a PNG")
    parser.add_argument("--draws", type=int, default=10, help="draws of landmarks at each point")
    parser.add_argument("--seed", type=int, default=0, help="of the matrices")
    arguments = parser.parse_args()

    torch.manual_seed(arguments.seed)
    figure, panels = subplots(1, 3, figsize=(12, 4))
    draw_s3(panels[0], arguments.draws)
    draw_skyformer(panels[1], arguments.draws)
    draw_fmm(panels[2])
    for axes in panels:
        axes.set_yscale("log")
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    for axes, ticks in zip(panels, ([2, 4, 8, 16, 32], LANDMARKS)):
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, map(str, ticks))
    save(figure, Path(arguments.output), dpi=80)


if __name__ == "__main__":
    main()
