"""Trains forecasters on a series of the long-term forecasting benchmark.

    s3bert forecasting --config forecasting/benchmark --dataset_name ettm2 --data_dir path/to/csv --output_dir runs/ettm2
    s3bert forecasting --config forecasting/benchmark --dataset_name ettm2 --data_dir path/to/csv --horizons 96 192 \\
        --model s3 s3:channel_independent=true s3:num_harmonics=4 --output_dir runs/ettm2-own

Forecasters are S3, PatchTST, DLinear, and naive ones. Splits, standardisation and horizons are the benchmark's. With the recipes of
`configs/forecasting` a model is trained until the validation error has not fallen for as many evaluations as its patience, ends with
its best weights, and is measured once on all windows of the test split. Seeds and learning rates may be several, and the same
command goes on after a kill. The output folder gets `all_results.json`, `results.md` (mean squared and absolute errors beside the
papers') and `forecasts.png`, which draws of several variants of a forecaster the one that is best on validation.
"""

import json
import logging
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from s3bert.arguments import Arguments, close_match, named_settings, option, parse_arguments, save_arguments
from s3bert.commands import run
from s3bert.files import file_name, write_text
from s3bert.training.arguments import GridConfig


logger = logging.getLogger(__name__)


@dataclass
class ForecastArguments(Arguments):
    """Series, how far ahead, and what forecasts it."""

    dataset_name: str = option(help="ettm2, ili, weather, ... (a wrong name lists them)")
    data_dir: str = option(
        free=True, help="folder of the CSV files, packed with gzip or not", default="data/forecasting"
    )
    model: list[str] = option(
        free=True,
        help="forecasters, s3, dlinear, patchtst, last, seasonal, each with settings of its configuration after a colon",
        default_factory=lambda: ["s3", "s3:channel_independent=true", "patchtst", "dlinear", "seasonal", "last"],
    )
    horizons: list[int] = option(
        free=True, least=1, help="steps ahead, each a run; the benchmark's four by default", default_factory=list
    )
    context_length: int | None = option(
        free=True, least=1, help="steps that are read; the benchmark's by default", default=None
    )
    max_train_samples: int | None = option(free=True, least=1, help="train on the first windows only", default=None)

    def __post_init__(self):
        super().__post_init__()
        # Not at the top: these import torch, and `--help` has no need of it.
        from s3bert.experiments.forecasting import NAIVE, TRAINED
        from s3bert.tasks.forecasting import FORECAST_DATASETS

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


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Runs the command; returns the content of `all_results.json`."""
    arguments, grid = parse_arguments((ForecastArguments, GridConfig), argv, __doc__)
    from s3bert.training.processes import locked_for_run

    with locked_for_run(Path(grid.output_dir)):
        return _compare(arguments, grid)


def _compare(arguments: ForecastArguments, grid: GridConfig) -> dict[str, Any]:
    import numpy as np

    from s3bert.experiments.forecasting import NAIVE, TRAINED, build_forecaster, drawn_window, example, run_model
    from s3bert.reports.forecasting import best_variants, forecast_page, plot_forecasts
    from s3bert.tasks.forecasting import FORECAST_DATASETS, naive_errors, split_windows
    from s3bert.tasks.series import read_series
    from s3bert.training.grid import read_report
    from s3bert.training.processes import process_state
    from s3bert.training.settings import settings_of

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
            f"{dataset.file} has empty cells, and {strict[0]} takes none: take the released file, which has none, or leave out "
            f"{', '.join(strict)}."
        )
    settings = settings_of(arguments) | {"checksum": zlib.crc32(series.values.tobytes())}
    top = Path(grid.output_dir)
    results: dict[int, dict[str, Any]] = {}
    examples: dict[int, dict[str, Any]] = {}
    for horizon in horizons:
        splits = split_windows(dataset, series, context_length, horizon)
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
                results[horizon][text], folder = run_model(text, splits, own_grid, settings)
            examples[horizon][text] = example(text, folder, splits["test"], dataset.period)
            if process_state().is_main_process:
                write_text(top / "results.md", forecast_page(arguments.dataset_name, context_length, results))
                title = f"{arguments.dataset_name}, {series.names[-1]}"
                lines = {
                    steps: {name: found[name] for name in ("past", "truth")}
                    | {name: found[model] for name, model in best_variants(results[steps]).items()}
                    for steps, found in examples.items()
                }
                plot_forecasts(top / "forecasts.png", title, lines)
                content = {"dataset": arguments.dataset_name, "context_length": context_length, "horizons": results}
                content["complete"] = len(results) == len(horizons) and len(results[horizon]) == len(arguments.model)
                write_text(top / "all_results.json", json.dumps(content) + "\n")
                save_arguments(top / "arguments.yaml", arguments, grid)
    return read_report(top)


if __name__ == "__main__":
    run("forecasting")
