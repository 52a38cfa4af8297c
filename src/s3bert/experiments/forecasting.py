"""The long-term forecasting benchmark: its forecasters, their trials, and one forecast of each to draw."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils import set_seed
from transformers import PatchTSTConfig, PatchTSTForPrediction, PreTrainedModel

from s3bert.arguments import close_match, named_settings
from s3bert.data.shuffled import ShuffledBatches
from s3bert.models.configuration_forecast import S3ForecastConfig
from s3bert.models.dlinear import DLinearConfig, DLinearModel
from s3bert.models.modeling_forecast import S3ForecastModel
from s3bert.tasks.forecasting import ForecastEvaluation, Windows
from s3bert.training.arguments import GridConfig, TrainingConfig
from s3bert.training.grid import Setting, grid_results, run_grid, with_test_metrics
from s3bert.training.loop import TrainingResult, train
from s3bert.training.settings import model_settings


# PatchTST at the size of its authors' program, but for the benchmark's short context.
_PATCHTST = {"patch_length": 16, "patch_stride": 8, "d_model": 128, "num_attention_heads": 16, "num_hidden_layers": 3}
_PATCHTST |= {"ffn_dim": 256, "attention_dropout": 0.2, "ff_dropout": 0.2, "head_dropout": 0.2, "scaling": "std"}
TRAINED = {
    "s3": (S3ForecastConfig, S3ForecastModel, {}),
    "dlinear": (DLinearConfig, DLinearModel, {}),
    "patchtst": (PatchTSTConfig, PatchTSTForPrediction, _PATCHTST),
}
NAIVE = ("last", "seasonal")  # the last value, and the last period, again and again


def build_forecaster(text: str, variables: int, context_length: int, prediction_length: int) -> PreTrainedModel:
    """A forecaster with new weights, of a name with settings.

    Raises:
        ValueError: its configuration has no such setting.
    """
    name, own = named_settings(text)
    config_class, model_class, settings = TRAINED[name]
    fields = {"context_length": context_length, "prediction_length": prediction_length, "num_input_channels": variables}
    known = config_class().to_dict()
    if unknown := [key for key in own if key not in known]:
        raise ValueError(f"{config_class.__name__} has no field {unknown[0]!r}.{close_match(unknown[0], known)}")
    return model_class(config_class(**{key: value for key, value in fields.items() if key in known} | settings | own))


def run_model(
    text: str, splits: dict[str, Windows], grid: GridConfig, settings: dict[str, Any]
) -> tuple[dict[str, Any], Path]:
    """Trains the grid's trials of a forecaster; what they gave, and the best one's folder; `settings` say what the windows are of."""
    variables = splits["train"].values.shape[1]
    context_length, prediction_length = splits["train"].context_length, splits["train"].prediction_length
    config = build_forecaster(text, variables, context_length, prediction_length).config

    def train_trial(trial: TrainingConfig) -> TrainingResult:
        set_seed(trial.seed)
        model = build_forecaster(text, variables, context_length, prediction_length)
        batches = ShuffledBatches(splits["train"], trial.sequences_per_step, trial.seed)
        trial = replace(trial, save_steps=trial.save_steps or len(batches))
        size = trial.per_device_eval_batch_size
        result = train(model, batches, trial, ForecastEvaluation(splits["validation"], size), settings=settings)
        test = ForecastEvaluation(splits["test"], size, dropped_batch=trial.sequences_per_step)
        return with_test_metrics(result, model, test)

    windows = {split: len(windows) for split, windows in splits.items()}
    settings = settings | {"task": "forecasting", "model": model_settings(config), "windows": windows}
    ranked: list[Setting] = run_grid(grid, settings, train_trial)
    return grid_results(ranked), Path(grid.output_dir) / "trials" / ranked[0].best_trial.name


def drawn_window(windows: Windows) -> np.ndarray:
    """The number of the window that is drawn, in the middle of the split."""
    return np.array([len(windows) // 2])


@torch.no_grad()
def example(text: str, folder: Path | None, windows: Windows, period: int) -> np.ndarray:
    """A forecast (H,) of the last variable in the window that is drawn."""
    if folder is None:
        return windows.naive(drawn_window(windows), 1 if text == "last" else period)[0, :, -1].numpy()
    model = TRAINED[named_settings(text)[0]][1].from_pretrained(folder).eval()
    past = windows.batch(drawn_window(windows))["past_values"]
    return model(past_values=past).prediction_outputs[0, :, -1].numpy()
