"""What the papers print, to stand beside what is measured. Each table names its source; accuracies and scores are in percent.

The papers: S3Attention (Wang et al., the journal's version; its preprint is called SKTformer), Long Range Arena (Tay et al., ICLR
2021), FMMformer (Nguyen et al., NeurIPS 2021), Skyformer (Chen et al., NeurIPS 2021), FEDformer (Zhou et al., ICML 2022).
"""

from collections.abc import Callable, Iterable, Mapping
from math import isclose
from typing import Any, NamedTuple

from s3bert.tasks.forecasting import FORECAST_DATASETS
from s3bert.tasks.lra import LRA_TASKS


class Published(NamedTuple):
    """A paper's number, as it stands in a table, and the schedule it was trained by: a name of `_SCHEDULES`, or that of none."""

    text: str
    schedule: str


class _Row(NamedTuple):
    """A mixer's test accuracies, in the order of _TASKS, in a paper's table; the settings are those that differ from its defaults.

    A tuple of settings has one for each task."""

    paper: str
    mixer: str
    accuracies: tuple[float, ...]
    settings: Mapping[str, Any] = {}


_TASKS = ("listops", "text", "retrieval", "image", "pathfinder")
_BEST = "S3Attention, best"
ACCURACIES = (
    # S3Attention, Table 1: with 8 segments, 8 rows and 8 columns, and with its best samples, which are Table 9's.
    _Row("S3Attention", "s3", (38.30, 69.27, 83.26, 53.90, 75.82)),
    _Row(
        _BEST,
        "s3",
        (39.15, 71.58, 83.73, 57.73, 78.20),
        {"num_row_samples": (8, 8, 32, 16, 128), "num_column_samples": (8, 8, 32, 16, 32)},
    ),
    # S3Attention, Table 1. Whose training these are of is not known.
    _Row("S3Attention, Table 1", "fourier", (35.33, 65.11, 59.61, 38.67, 77.08)),
    _Row("S3Attention, Table 1", "ponet", (38.80, 69.82, 80.35, 46.88, 70.39), {"num_segments": (64, 2048, 64, 32, 1)}),
    # Long Range Arena, Table 1, of encoders of other sizes. S3Attention's Table 1 has the same accuracies of softmax.
    _Row("Long Range Arena", "softmax", (36.37, 64.27, 57.46, 42.44, 71.40)),
    _Row("Long Range Arena", "linformer", (35.70, 53.94, 52.27, 38.56, 76.34)),
    _Row("Long Range Arena", "linear", (16.13, 65.90, 53.09, 42.34, 75.30)),
    _Row("Long Range Arena", "performer", (18.01, 65.40, 53.82, 42.77, 77.05)),
    # FMMformer, Table 1, the last of them in S3Attention's Table 1, too.
    _Row("FMMformer", "softmax", (37.10, 64.17, 80.71, 39.06, 72.48)),
    _Row("FMMformer", "linear", (18.30, 64.22, 81.37, 38.29, 71.17)),
    _Row("FMMformer", "fmm", (33.22, 66.52, 81.50, 45.01, 71.29), {"kernels": ["elu"]}),
    _Row("FMMformer", "fmm", (36.74, 67.84, 81.88, 45.10, 72.12)),
    # Skyformer, Table 1.
    _Row("Skyformer", "softmax", (38.37, 61.95, 80.69, 40.57, 65.26)),
    _Row("Skyformer", "kernelized", (38.78, 60.22, 81.77, 41.29, 70.73)),
    _Row("Skyformer", "nystrom", (38.51, 64.83, 80.52, 41.30, 69.48)),
    _Row("Skyformer", "linformer", (37.45, 58.93, 78.19, 37.96, 60.93)),
    _Row("Skyformer", "performer", (38.02, 64.19, 80.04, 41.43, 66.30)),
    _Row("Skyformer", "skyformer", (38.69, 64.70, 82.06, 40.77, 70.73)),
)
# The mixers' defaults for what the papers set.
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "s3": {"num_segments": 8, "num_row_samples": 8, "num_column_samples": 8},
    "fmm": {"bandwidth": 5, "kernels": ["elu", "elu_flip"]},
    "skyformer": {"num_landmarks": 128},
    "nystrom": {"num_landmarks": 128},
    "linformer": {"num_projections": 128},
    "performer": {"num_features": 128},
    "ponet": {"num_segments": 64},
}
# Where there are several readings of a paper, or its number is of any: dropout is a matter of training, and FMMformer's
# accuracies are of its program, which blends otherwise than its equation.
_ANY = ("dropout", "blend")

_EPOCHS = (5, 30, 15, 60, 100)  # S3Attention, Table 8: the schedule of Tables 1 and 7
_BEST_EPOCHS = (10, 30, 15, 60, 100)  # S3Attention, Table 9
_NYSTROMFORMER_STEPS = (5_000, 20_000, 30_000, 35_000, 62_400)  # of Nystromformer's LRA code, which FMMformer trains by
_BATCHES = (32, 32, 32, 256, 256)  # S3Attention, Tables 8 and 9
_TRAIN_ROWS = (96_000, 22_500, 147_086, 45_000, 160_000)  # all, but for what Text and Image lay aside for validation
_ENCODER = {"num_hidden_layers": 2, "hidden_size": 64}  # of Nystromformer's LRA code, which all three papers train


def _for_epochs(epochs: tuple[int, ...]) -> Callable[[int, Mapping[str, Any]], bool]:
    return lambda place, trial: (
        isclose(trial["epoch"], epochs[place], rel_tol=0.01) and trial["batch_size"] == _BATCHES[place]
    )


# By name: whether a trial, on the task of that place in _TASKS, was trained as long.
_SCHEDULES: Mapping[str, Callable[[int, Mapping[str, Any]], bool]] = {
    "S3Attention": _for_epochs(_EPOCHS),
    _BEST: _for_epochs(_BEST_EPOCHS),
    "FMMformer": lambda place, trial: trial["steps"] == _NYSTROMFORMER_STEPS[place],
    "Skyformer": lambda place, trial: trial["steps"] == 50_000,
    # S3Attention, Table 5
    "noise": lambda place, trial: trial["steps"] == 5_000 and trial["batch_size"] == _BATCHES[place],
    "incoherence": lambda place, trial: trial["steps"] == 100,  # S3Attention, Table 14
}
# S3Attention, Table 7: accuracy lost without a part.
_LOST_WITHOUT: Mapping[str, tuple[float, ...]] = {
    "without Fourier convolution": (0.47, 4.04, 13.98, 5.64, 6.59),
    "without convolution stem": (0.13, 0.55, 1.51, 1.76, 0.47),
    "without column attention": (1.16, 8.00, 9.16, 10.63, 12.45),
    "without row attention": (0.38, 1.92, 1.97, 2.64, 2.56),
}
# S3Attention, Table 5: accuracy on Image under uniform noise, by amplitude, after 5,000 steps.
_NOISE_ON_IMAGE: Mapping[str, Mapping[float, float]] = {
    "softmax": {0: 41.39, 2: 40.29, 4: 28.56, 8: 28.12},
    "s3": {0: 57.47, 2: 57.06, 4: 55.32, 8: 54.70},
}
# S3Attention, Table 14, after 100 steps; by the names of `analysis.incoherence.token_incoherence`.
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
# S3's curves in the appendix of an earlier version of the paper, which lies in the authors' repository: test accuracy by step, at a batch size.
_CURVES: Mapping[tuple[str, int], Mapping[int, float]] = {
    ("listops", 32): {500: 17.1, 1500: 17.4, 2500: 17.5, 3000: 27.3, 5000: 36.4},
    ("text", 32): {500: 50.6, 1500: 52.8, 2500: 63.2, 3000: 64.9, 5000: 69.6},
    ("pathfinder", 256): {500: 50.1, 1500: 50.2, 2500: 50.5, 3000: 50.9, 5000: 52.9},
    ("image", 256): {500: 40.7, 1500: 47.0, 2500: 50.5, 3000: 51.4, 5000: 52.3},
}
# FMMformer, Table 2: perplexities of WikiText-103, validation and test, by the names of `s3bert compare-clm`; bands of 20.
PERPLEXITIES: Mapping[str, tuple[float, float]] = {
    "softmax": (33.15, 34.29),
    "linear": (37.27, 38.40),
    "fast-weight": (35.75, 36.63),
    "fast-weight+linear": (34.78, 35.95),
    "band": (38.18, 39.19),
    "linear+band": (35.41, 36.43),
    "fast-weight+band": (34.54, 35.47),
    "2-linear+band": (35.10, 36.11),
    "fast-weight+linear+band": (34.16, 34.71),
}
# S3Attention, Table 3: development scores, base size, up to a million steps of pretraining. The text's relative numbers (96.0, 4.6)
# differ from this table's own arithmetic (95.8, 4.8); the table is what is kept.
GLUE_SCORES: Mapping[str, Mapping[str, float]] = {
    "bert": {"mnli": 81.98, "qqp": 89.25, "qnli": 88.22, "sst2": 91.07, "cola": 48.08, "stsb": 87.98, "mrpc": 86.43, "rte": 69.98},
    "fnet": {"mnli": 73.20, "qqp": 85.83, "qnli": 80.57, "sst2": 88.66, "cola": 40.67, "stsb": 80.64, "mrpc": 80.88, "rte": 57.41},
    "ponet": {"mnli": 77.02, "qqp": 87.59, "qnli": 84.37, "sst2": 89.29, "cola": 45.38, "stsb": 84.66, "mrpc": 81.82, "rte": 64.27},
    "s3bert": {"mnli": 76.86, "qqp": 87.67, "qnli": 84.12, "sst2": 90.14, "cola": 46.72, "stsb": 84.87, "mrpc": 81.84, "rte": 63.87},
}  # fmt: skip
# S3Attention, Table 2: (MSE, MAE) at the four horizons, by dataset and context. The journal prints "ETTh2" over the first; its lengths
# and the preprint say ETTm2. ILI has a context of 36 weeks in the journal, and of 60, with other errors, in the preprint.
# FEDformer's are read there, too; its program gives ILI 36 weeks.
FORECASTS: Mapping[str, Mapping[tuple[str, int], tuple[tuple[float, float], ...]]] = {
    "S3Attention, the paper's": {
        ("ettm2", 96): ((0.192, 0.283), (0.255, 0.324), (0.324, 0.364), (0.431, 0.433)),
        ("electricity", 96): ((0.218, 0.332), (0.259, 0.361), (0.267, 0.367), (0.293, 0.385)),
        ("exchange", 96): ((0.086, 0.204), (0.188, 0.292), (0.356, 0.433), (0.727, 0.669)),
        ("traffic", 96): ((0.592, 0.352), (0.583, 0.343), (0.598, 0.346), (0.641, 0.397)),
        ("weather", 96): ((0.182, 0.262), (0.228, 0.306), (0.295, 0.355), (0.383, 0.418)),
        ("ili", 36): ((2.431, 0.997), (2.287, 0.972), (2.418, 1.002), (2.425, 1.043)),
        ("ili", 60): ((2.185, 0.926), (2.155, 0.937), (2.333, 0.954), (2.018, 0.958)),
    },
    "FEDformer, the paper's": {
        ("ettm2", 96): ((0.203, 0.287), (0.269, 0.328), (0.325, 0.366), (0.421, 0.415)),
        ("electricity", 96): ((0.183, 0.297), (0.195, 0.308), (0.212, 0.313), (0.231, 0.343)),
        ("exchange", 96): ((0.139, 0.276), (0.256, 0.369), (0.426, 0.464), (1.090, 0.800)),
        ("traffic", 96): ((0.562, 0.349), (0.562, 0.346), (0.570, 0.323), (0.596, 0.368)),
        ("weather", 96): ((0.217, 0.296), (0.276, 0.336), (0.339, 0.380), (0.403, 0.428)),
        ("ili", 36): ((2.203, 0.963), (2.272, 0.976), (2.209, 0.981), (2.545, 1.061)),
    },
}


def published_accuracies(task: str, mixer: str, settings: Mapping[str, Any]) -> list[Published]:
    """A mixer's accuracies on a task in the papers that give one for these settings; S3's first.

    Other papers than S3Attention's are named.
    """
    defaults = DEFAULTS.get(mixer, {})
    own = defaults | {name: value for name, value in settings.items() if not any(word in name for word in _ANY)}
    place, found = _TASKS.index(task), []
    for row in ACCURACIES:
        of_task = {name: value[place] if isinstance(value, tuple) else value for name, value in row.settings.items()}
        if row.mixer == mixer and own == defaults | of_task:
            accuracy = f"{row.accuracies[place]:.2f}"
            named = {"S3Attention": accuracy, _BEST: f"best {accuracy}"}.get(row.paper, f"{accuracy} ({row.paper})")
            found.append(Published(named, row.paper))
    return found


def published_change(task: str, part: str, settings: Mapping[str, Any]) -> list[Published]:
    """By how much accuracy changes without a part of S3; `settings` are those of the whole."""
    if part not in _LOST_WITHOUT or not published_accuracies(task, "s3", settings):
        return []
    return [Published(f"{-_LOST_WITHOUT[part][_TASKS.index(task)]:+.2f}", "S3Attention")]


def published_under_noise(task: str, mixer: str, settings: Mapping[str, Any], amplitude: float) -> list[Published]:
    """Accuracy on inputs with uniform noise of that amplitude; S3's for its best samples alone, which 57.47 without noise must be of."""
    accuracy = _NOISE_ON_IMAGE.get(mixer, {}).get(amplitude) if task == "image" else None
    papers = {entry.schedule for entry in published_accuracies(task, mixer, settings)}
    if accuracy is None or not papers or (mixer == "s3" and _BEST not in papers):
        return []
    return [Published(f"{accuracy:.2f}", "noise")]


def published_incoherence(task: str, settings: Mapping[str, Any]) -> Mapping[str, float]:
    """How unevenly S3's tokens spread, by measure; nothing where the paper does not give it."""
    return _INCOHERENCE.get(task, {}) if published_accuracies(task, "s3", settings) else {}


def published_curve(task: str, length: int, batch_size: int) -> Mapping[int, float]:
    """The authors' curve of S3: test accuracy by optimiser step; {} for another length or batch size than theirs."""
    return _CURVES.get((task, batch_size), {}) if _is_whole(task, length) else {}


def trained_alike(schedule: str, task: str, run: Mapping[str, Any], trials: Iterable[Mapping[str, Any]]) -> bool:
    """Whether all trials of a run trained the paper's encoder by that schedule, on inputs of its length, so that its number may stand
    beside theirs. Rows may be fewer than the task has if none was read twice."""
    place = _TASKS.index(task)
    if schedule not in _SCHEDULES or not _is_whole(task, run["length"]):
        return False
    if any(run.get(name) != size for name, size in _ENCODER.items()):
        return False
    few = run["rows"]["train"] < _TRAIN_ROWS[place]
    return all(_SCHEDULES[schedule](place, trial) and not (few and trial["epoch"] > 1) for trial in trials)


def _is_whole(task: str, length: int) -> bool:
    """Whether that is the paper's length: 2,000 and 4,000 tokens, which the recipes have from Nystromformer's code, count as the tables'
    2,048 and 4,096."""
    return length >= 0.95 * LRA_TASKS[task].max_length


def published_errors(dataset: str, context_length: int, horizon: int) -> dict[str, tuple[float, float]]:
    """The papers' (MSE, MAE) by row name; {} for a context or a horizon that they do not have."""
    horizons = FORECAST_DATASETS[dataset].horizons
    if horizon not in horizons:
        return {}
    place = horizons.index(horizon)
    tables = {name: by_series.get((dataset, context_length)) for name, by_series in FORECASTS.items()}
    return {name: errors[place] for name, errors in tables.items() if errors}
