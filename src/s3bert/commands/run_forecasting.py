"""Trains forecasters on a series of the long-term forecasting benchmark: S3, PatchTST, DLinear, and naive forecasts.

    python scripts/run_forecasting.py --config configs/forecasting/benchmark.yaml --dataset_name ettm2 --data_dir path/to/csv \\
        --output_dir runs/ettm2
    python scripts/run_forecasting.py --config configs/forecasting/benchmark.yaml --dataset_name ettm2 --data_dir path/to/csv \\
        --output_dir runs/ettm2-own --model s3 s3:channel_independent=true s3:num_harmonics=4 --horizons 96 192

Splits, standardisation and horizons are the benchmark's. With the recipes of
`configs/forecasting` a model is trained until the validation error has not fallen for as many evaluations as its patience, ends with
its best weights, and is measured once on all windows of the test split. Seeds and learning
rates may be several, and the same command goes on after a kill. The output folder gets `all_results.json`, `results.md` (mean
squared and absolute errors beside the papers') and `forecasts.png`, which draws of several variants of a forecaster the one
that is best on validation.
"""

import json
import logging
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils import set_seed
from transformers import PatchTSTConfig, PatchTSTForPrediction, PreTrainedModel
from transformers.hf_argparser import HfArg

from s3bert.arguments import close_match, named_settings, parse_arguments, run_as_script, save_arguments
from s3bert.data.shuffled import ShuffledBatches
from s3bert.files import file_name, write_text
from s3bert.models.configuration_forecast import S3ForecastConfig
from s3bert.models.dlinear import DLinearConfig, DLinearModel
from s3bert.models.modeling_forecast import S3ForecastModel
from s3bert.reports.forecasting import chosen, forecast_page, plot_forecasts
from s3bert.tasks.forecasting import FORECAST_DATASETS, ForecastEvaluation, Windows, naive_errors, split_windows
from s3bert.tasks.series import read_series
from s3bert.training.grid import GridConfig, Setting, grid_results, read_report, run_grid, with_test_metrics
from s3bert.training.loop import TrainingConfig, TrainingResult, process_state, train


logger = logging.getLogger(__name__)

# PatchTST at the size of its authors' program, but for the benchmark's short context.
_PATCHTST = {"patch_length": 16, "patch_stride": 8, "d_model": 128, "num_attention_heads": 16, "num_hidden_layers": 3}
_PATCHTST |= {"ffn_dim": 256, "attention_dropout": 0.2, "ff_dropout": 0.2, "head_dropout": 0.2, "scaling": "std"}
TRAINED = {
    "s3": (S3ForecastConfig, S3ForecastModel, {}),
    "dlinear": (DLinearConfig, DLinearModel, {}),
    "patchtst": (PatchTSTConfig, PatchTSTForPrediction, _PATCHTST),
}
NAIVE = ("last", "seasonal")  # the last value, and the last period, again and again


@dataclass
class ForecastArguments:
    """The series, how far ahead, and what forecasts it."""

    dataset_name: str = HfArg(help=f"one of {', '.join(FORECAST_DATASETS)}")
    data_dir: str = HfArg(help="folder of the CSV files, packed with gzip or not", default="data/forecasting")
    model: list[str] = HfArg(
        help=f"forecasters, each with settings of its configuration after a colon: {', '.join((*TRAINED, *NAIVE))}",
        default_factory=lambda: ["s3", "s3:channel_independent=true", "patchtst", "dlinear", "seasonal", "last"],
    )
    horizons: list[int] = HfArg(help="steps ahead, each a run; the benchmark's four by default", default_factory=list)
    context_length: int | None = HfArg(help="steps that are read; the benchmark's by default", default=None)
    max_train_samples: int | None = HfArg(help="train on the first windows only", default=None)

    def __post_init__(self):
        if self.dataset_name not in FORECAST_DATASETS:
            known = ", ".join(FORECAST_DATASETS)
            raise ValueError(
                f"There is no dataset {self.dataset_name!r}, only {known}.{close_match(self.dataset_name, FORECAST_DATASETS)}"
            )
        for text in self.model:
            name, own = named_settings(text)
            if name not in (*TRAINED, *NAIVE):
                raise ValueError(
                    f"There is no forecaster {name!r}, only {', '.join((*TRAINED, *NAIVE))}."
                    f"{close_match(name, (*TRAINED, *NAIVE))}"
                )
            if name in NAIVE and own:
                raise ValueError(f"model = {text}: {name} has no settings.")
        if len(set(self.model)) < len(self.model):
            raise ValueError(f"model = {' '.join(self.model)}: one is named twice.")
        for name in ("context_length", "max_train_samples"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}: give at least 1, or leave it out.")
        if any(horizon < 1 for horizon in self.horizons):
            raise ValueError(f"horizons = {self.horizons}: give numbers of steps, at least 1.")


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
    text: str, splits: dict[str, Windows], grid: GridConfig, data: dict[str, Any]
) -> tuple[dict[str, Any], Path]:
    """Trains the grid's trials of a forecaster; what they gave, and the best one's folder. `data` says what the windows are of."""
    variables = splits["train"].values.shape[1]
    context_length, prediction_length = splits["train"].context_length, splits["train"].prediction_length
    config = build_forecaster(text, variables, context_length, prediction_length).config

    def train_trial(trial: TrainingConfig) -> TrainingResult:
        set_seed(trial.seed)
        model = build_forecaster(text, variables, context_length, prediction_length)
        batches = ShuffledBatches(splits["train"], trial.global_batch_size(), trial.seed)
        trial = replace(trial, save_steps=trial.save_steps or len(batches))
        size = trial.per_device_eval_batch_size
        result = train(model, batches, trial, ForecastEvaluation(splits["validation"], size))
        test = ForecastEvaluation(splits["test"], size, dropped_batch=trial.global_batch_size())
        return with_test_metrics(result, model, test)

    fields = {name: value for name, value in config.to_diff_dict().items() if name != "transformers_version"}
    identity = {"task": "forecasting", "model": fields} | data
    identity["windows"] = {split: len(windows) for split, windows in splits.items()}
    settings: list[Setting] = run_grid(grid, identity, train_trial)
    return grid_results(settings), Path(grid.output_dir) / "trials" / settings[0].best_trial.name


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


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Runs the script; returns the content of `all_results.json`."""
    arguments, grid = parse_arguments((ForecastArguments, GridConfig), argv, __doc__)
    dataset = FORECAST_DATASETS[arguments.dataset_name]
    context_length = arguments.context_length or dataset.context_length
    horizons = arguments.horizons or list(dataset.horizons)
    trained = [text for text in arguments.model if named_settings(text)[0] in TRAINED]
    for text in trained:  # a wrong setting is known before anything is read
        build_forecaster(text, 2, context_length, horizons[0])
    files = [Path(arguments.data_dir) / f"{dataset.file}{packed}" for packed in ("", ".gz")]
    there = [file for file in files if file.exists()]
    if not there:
        raise FileNotFoundError(
            f"{files[0]} is not there, nor packed: --data_dir is the folder of the benchmark's CSV files."
        )
    series = read_series(there[0])
    strict = [text for text in trained if named_settings(text)[0] in ("patchtst", "dlinear")]
    if strict and np.isnan(series.values).any():
        raise ValueError(
            f"{dataset.file} has empty cells, and {strict[0]} takes none: copy the file anew, whose release has none, or leave out "
            f"{', '.join(strict)}."
        )
    data = {"dataset": arguments.dataset_name, "checksum": zlib.crc32(series.values.tobytes())}
    data["max_train_samples"] = arguments.max_train_samples
    top = Path(grid.output_dir)
    results: dict[int, dict[str, Any]] = {}
    examples: dict[int, dict[str, np.ndarray]] = {}
    for horizon in horizons:
        splits = split_windows(dataset, series.values, context_length, horizon)
        if arguments.max_train_samples:
            splits["train"] = splits["train"].take(arguments.max_train_samples)
        results[horizon] = {}
        drawn = splits["test"].batch(drawn_window(splits["test"]))
        past, truth = (drawn[name][0, :, -1].numpy() for name in ("past_values", "future_values"))
        examples[horizon] = {"past": past, "truth": truth}
        for text in arguments.model:
            logger.info("%s on %s, %d steps ahead", text, arguments.dataset_name, horizon)
            folder = None
            if text in NAIVE:
                results[horizon][text] = naive_errors(splits["test"], 1 if text == "last" else dataset.period)
            else:
                where = top / file_name(text) / f"horizon-{horizon}"
                own_grid = replace(grid, output_dir=str(where))
                results[horizon][text], folder = run_model(text, splits, own_grid, data)
            examples[horizon][text] = example(text, folder, splits["test"], dataset.period)
            if process_state().is_main_process:
                write_text(top / "results.md", forecast_page(arguments.dataset_name, dataset.horizons, results))
                title = f"{arguments.dataset_name}, {series.names[-1]}"
                lines = {
                    steps: {name: found[name] for name in ("past", "truth")}
                    | {name: found[model] for name, model in chosen(results[steps]).items()}
                    for steps, found in examples.items()
                }
                plot_forecasts(top / "forecasts.png", title, lines)
                content = {"dataset": arguments.dataset_name, "context_length": context_length, "horizons": results}
                content["complete"] = len(results) == len(horizons) and len(results[horizon]) == len(arguments.model)
                write_text(top / "all_results.json", json.dumps(content) + "\n")
                save_arguments(top / "arguments.yaml", arguments, grid)
    return read_report(top)


if __name__ == "__main__":
    run_as_script(main)
