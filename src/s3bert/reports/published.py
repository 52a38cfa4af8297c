"""What the papers print for Long Range Arena: test accuracy in percent, to stand beside what is measured.

S3, softmax, FNet, PoNet and FMMformer from the S3Attention paper's Table 1; Kernelized Attention, Skyformer and Nystromformer
from Skyformer's Table 1 (another schedule: 50,000 steps); what S3's parts are worth from Table 7; noise from Table 5 (after 5,000
steps); incoherence, which is no accuracy, from Table 14 (after 100 steps).
"""

from collections.abc import Iterable, Mapping
from typing import Any


_TASKS = ("listops", "text", "retrieval", "image", "pathfinder")
# By mixer, in the order of _TASKS.
_MIXERS: Mapping[str, tuple[float, ...]] = {
    "s3": (38.30, 69.27, 83.26, 53.90, 75.82),
    "softmax": (36.37, 64.27, 57.46, 42.44, 71.40),
    "fourier": (35.33, 65.11, 59.61, 38.67, 77.08),
    "ponet": (38.80, 69.82, 80.35, 46.88, 70.39),
    "fmm": (36.74, 67.84, 81.88, 45.10, 72.12),
    "kernelized": (38.78, 60.22, 81.77, 41.29, 70.73),
    "skyformer": (38.69, 64.70, 82.06, 40.77, 70.73),
    "nystrom": (38.51, 64.83, 80.52, 41.30, 69.48),
}
_S3_BEST = (39.15, 71.58, 83.73, 57.73, 78.20)
# A figure stands beside a variant with the settings it is for. These are the mixers' defaults, which are the papers' settings but for
# what follows; a mixer that is not here has figures with its defaults alone.
_USUAL: Mapping[str, Mapping[str, Any]] = {
    "s3": {"num_segments": 8, "num_row_samples": 8, "num_column_samples": 8},
    "fmm": {"bandwidth": 5, "kernels": ["elu", "elu_flip"]},
    "skyformer": {"num_landmarks": 128},
    "ponet": {"num_segments": 64},
}
_PONET_SEGMENTS = (64, 2048, 64, 32, 1)
_S3_BEST_SAMPLES = ((8, 8), (8, 8), (32, 32), (16, 16), (128, 32))  # s1, s2
_LOST_WITHOUT: Mapping[str, tuple[float, ...]] = {
    "without Fourier convolution": (0.47, 4.04, 13.98, 5.64, 6.59),
    "without convolution stem": (0.13, 0.55, 1.51, 1.76, 0.47),
    "without column attention": (1.16, 8.00, 9.16, 10.63, 12.45),
    "without row attention": (0.38, 1.92, 1.97, 2.64, 2.56),
}
_NOISE_ON_IMAGE: Mapping[str, Mapping[float, float]] = {
    "softmax": {0: 41.39, 2: 40.29, 4: 28.56, 8: 28.12},
    "s3": {0: 57.47, 2: 57.06, 4: 55.32, 8: 54.70},
}
# By the names of `smoothness.token_incoherence`.
_INCOHERENCE: Mapping[str, Mapping[str, float]] = {
    "text": {
        "incoherence_before_32": 2.75,
        "incoherence_after_32": 2.05,
        "incoherence_before_16": 3.98,
        "incoherence_after_16": 3.23,
    },
    "pathfinder": {
        "incoherence_before_32": 3.83,
        "incoherence_after_32": 1.99,
        "incoherence_before_16": 4.88,
        "incoherence_after_16": 3.48,
    },
}


def published_accuracy(task: str, mixer: str, settings: Mapping[str, Any]) -> str:
    """A mixer's accuracy on a task, S3's as its best where the settings are those; nothing where no paper of these gives it for a
    mixer of these settings. Dropout, a matter of training, may be any."""
    if mixer not in _MIXERS:
        return ""
    place, usual = _TASKS.index(task), _USUAL.get(mixer, {})
    own = usual | {name: value for name, value in settings.items() if name != "smoother_dropout"}
    papers = {"num_segments": _PONET_SEGMENTS[place]} if mixer == "ponet" else usual
    figures = [f"{_MIXERS[mixer][place]:.2f}"] if own == papers else []
    rows, columns = _S3_BEST_SAMPLES[place]
    if mixer == "s3" and own == usual | {"num_row_samples": rows, "num_column_samples": columns}:
        figures.append(f"best {_S3_BEST[place]:.2f}")
    return ", ".join(figures)


def published_change(task: str, part: str, settings: Mapping[str, Any]) -> str:
    """By how much accuracy changes without a part of S3; `settings` are those of the whole."""
    if part not in _LOST_WITHOUT or not published_accuracy(task, "s3", settings):
        return ""
    return f"{-_LOST_WITHOUT[part][_TASKS.index(task)]:+.2f}"


def published_under_noise(task: str, mixer: str, settings: Mapping[str, Any], amplitude: float) -> str:
    """Accuracy on inputs with uniform noise of that amplitude."""
    figure = _NOISE_ON_IMAGE.get(mixer, {}).get(amplitude) if task == "image" else None
    return "" if figure is None or not published_accuracy(task, mixer, settings) else f"{figure:.2f}"


def published_incoherence(task: str, settings: Mapping[str, Any]) -> Mapping[str, float]:
    """How unevenly S3's tokens spread, by measure; nothing where the paper does not give it."""
    return _INCOHERENCE.get(task, {}) if published_accuracy(task, "s3", settings) else {}


def tasks_in_order(tasks: Iterable[str]) -> list[str]:
    """Tasks in the order of the papers' tables."""
    return sorted(set(tasks), key=_TASKS.index)
