"""Forecasts a CSV file: dates in the first column, numbers in the others.

    python scripts/forecast.py --csv_file series.csv --prediction_length 48 --output_dir runs/mine       # trains on the spot
    python scripts/forecast.py --csv_file newer.csv --model_name_or_path runs/mine --output_dir runs/next

Without a model, an S3 forecaster is trained on the series itself; its last rows are held out to end with the best weights, and
their error is told. Rows may stand in any order, steps may be missing and cells empty. Dates are ISO 8601 (2020-12-31 23:00), or of
a --date_format; those with several offsets from UTC are read as UTC. The output folder gets
`forecast.csv`, `forecast.png` and, after training, the model, which forecasts later rows of the same columns.
"""

import json
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from transformers.hf_argparser import HfArg

from s3bert.arguments import parse_arguments, run_as_script
from s3bert.data.shuffled import ShuffledBatches
from s3bert.files import replacing, write_text
from s3bert.models.configuration_forecast import S3ForecastConfig
from s3bert.models.modeling_forecast import S3ForecastModel
from s3bert.reports.forecasting import plot_columns
from s3bert.tasks.forecasting import ForecastEvaluation, Windows, naive_errors, scaling
from s3bert.tasks.series import Series, future_dates, read_series, regularize
from s3bert.training.loop import TrainingConfig, train


_HELD_OUT = 0.2  # of the rows
_BATCH = 32
_NOT_LEARNT = ("csv_file", "date_format", "output_dir")  # arguments that say where data is and how to read it


@dataclass
class ForecastArguments:
    """The file, and how far ahead."""

    csv_file: str = HfArg(help="CSV file with a header, packed or not")
    output_dir: str = HfArg(help="folder of the forecast, and of the model if one is trained")
    model_name_or_path: str | None = HfArg(help="a trained forecaster; one is trained by default", default=None)
    date_column: str | None = HfArg(help="column of dates; the first by default", default=None)
    date_format: str | None = HfArg(
        help="of the dates, such as %%d/%%m/%%Y; ISO 8601, as 2020-12-31 23:00, by default", default=None
    )
    columns: list[str] = HfArg(help="columns to forecast; all others by default", default_factory=list)
    prediction_length: int | None = HfArg(help="steps ahead; a model's own, or 24, by default", default=None)
    context_length: int | None = HfArg(
        help="steps that are read; a model's own, or twice the steps ahead, by default", default=None
    )
    hidden_size: int = HfArg(help="width of a trained model", default=32)
    num_hidden_layers: int = HfArg(help="layers of a trained model", default=2)
    num_train_epochs: float = HfArg(help="passes over the series in training, at most", default=10.0)
    learning_rate: float = HfArg(help="AdamW's peak learning rate", default=1e-3)
    seed: int = HfArg(help="of weights, data order and dropout", default=0)

    def __post_init__(self):
        for name in ("prediction_length", "context_length"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} = {value}: give a number of steps, at least 1.")


def _claim(folder: Path, arguments: ForecastArguments, series: Series) -> None:
    """Marks the folder as this training's own: the same goes on where it was cut off, another must not take its weights.

    Raises:
        ValueError: it is another training's.
    """
    content = {name: value for name, value in vars(arguments).items() if name not in _NOT_LEARNT}
    content |= {"names": series.names, "dates": [str(series.dates.iloc[0]), str(series.dates.iloc[-1])]}
    content["checksum"] = zlib.crc32(series.values.tobytes())
    file, text = folder / "training.json", json.dumps(content, indent=1) + "\n"
    if file.exists() and file.read_text(encoding="utf-8") != text:
        raise ValueError(
            f"output_dir = {folder}: a model of another series or other settings lies there; choose another folder."
        )
    write_text(file, text)


def _check_known(series: Series, rows: slice, purpose: str) -> None:
    """
    Raises:
        ValueError: a variable has no value in those rows.
    """
    empty = np.isnan(series.values[rows]).all(0)
    if empty.any():
        dates = series.dates.iloc[rows]
        raise ValueError(
            f"Column {series.names[int(empty.argmax())]!r} has no value from {dates.iloc[0]} to {dates.iloc[-1]}, the rows "
            f"{purpose}. Fill it, leave out rows at the end that have no values yet, or name other columns (--columns)."
        )


def trained(arguments: ForecastArguments, series: Series, step: str) -> tuple[S3ForecastModel, dict[str, float]]:
    """A forecaster of the series, and its errors on the rows held out, beside those of repeating the last value.

    Raises:
        ValueError: the series is too short, or a variable has no values where they are needed; a setting cannot be; the output
            folder is another training's.
    """
    horizon = arguments.prediction_length or 24
    context = arguments.context_length or 2 * horizon
    total = len(series.values)
    held_out = max(horizon, round(_HELD_OUT * total))
    if total - held_out < context + horizon:
        raise ValueError(
            f"The series has {total:,} rows; to read {context} steps, forecast {horizon} and hold {held_out} out, "
            f"{context + horizon + held_out} are needed. Lower --prediction_length or --context_length."
        )
    _check_known(series, slice(total - held_out), "to train on")
    _check_known(series, slice(total - held_out, total), "held out to measure by")
    _check_known(series, slice(total - context, total), "that the forecast reads")
    mean, deviation = scaling(series.values[: total - held_out])
    standardised = (series.values - mean) / deviation
    config = S3ForecastConfig(
        context_length=context,
        prediction_length=horizon,
        num_input_channels=len(series.names),
        hidden_size=arguments.hidden_size,
        num_hidden_layers=arguments.num_hidden_layers,
        num_harmonics=context // 2,
        channel_independent=True,
        channel_names=series.names,
        channel_means=mean.tolist(),
        channel_deviations=deviation.tolist(),
        frequency=step,
    )
    set_seed(arguments.seed)
    model = S3ForecastModel(config)
    windows = Windows(standardised, context, total - held_out, context, horizon)
    validation = Windows(standardised, total - held_out, total, context, horizon)
    batches = ShuffledBatches(windows, _BATCH, arguments.seed)
    training = TrainingConfig(
        output_dir=arguments.output_dir,
        seed=arguments.seed,
        per_device_train_batch_size=_BATCH,
        learning_rate=arguments.learning_rate,
        lr_scheduler_type="cosine",
        num_train_epochs=arguments.num_train_epochs,
        early_stopping_patience=3,
        load_best_model_at_end=True,
        resume_from_checkpoint="latest",
        report_to="none",
    )
    _claim(Path(arguments.output_dir), arguments, series)  # not before the settings have proved possible
    result = train(model, batches, training, ForecastEvaluation(validation, 256))
    return model, result.metrics | {f"last_value_{name}": value for name, value in naive_errors(validation, 1).items()}


def loaded(arguments: ForecastArguments, series: Series, step: str) -> S3ForecastModel:
    """A trained forecaster of the same columns and step.

    Raises:
        ValueError: it is for other columns, another step or other lengths, or does not say for which; the series is too short,
            or a variable has no value where the model reads.
    """
    name = arguments.model_name_or_path
    config = S3ForecastConfig.from_pretrained(name)
    if config.channel_names is None:
        raise ValueError(f"{name} does not say which columns it forecasts: take a folder that this script has trained.")
    for what, own, asked in (
        ("columns", config.channel_names, series.names),
        ("step", config.frequency, step),
        ("prediction_length", config.prediction_length, arguments.prediction_length or config.prediction_length),
        ("context_length", config.context_length, arguments.context_length or config.context_length),
    ):
        if own != asked:
            raise ValueError(
                f"{what}: {name} was trained with {own}, not {asked}. Train a model of your own, or change them."
            )
    if len(series.values) < config.context_length:
        raise ValueError(
            f"The series has {len(series.values)} rows, {name} reads {config.context_length}: give it more."
        )
    _check_known(series, slice(len(series.values) - config.context_length, None), "that the forecast reads")
    return S3ForecastModel.from_pretrained(name)


@torch.no_grad()
def forecast(model: S3ForecastModel, series: Series) -> np.ndarray:
    """The steps after the series, (H, C), on its own scale."""
    config = model.config
    mean, deviation = np.array(config.channel_means), np.array(config.channel_deviations)
    past = (series.values[-config.context_length :] - mean) / deviation
    past = torch.from_numpy(past).float()[None].to(model.device)
    return model.eval()(past_values=past).prediction_outputs[0].double().cpu().numpy() * deviation + mean


def main(argv: list[str] | None = None) -> pd.DataFrame:
    """Runs the script; returns the forecast, a row a date."""
    (arguments,) = parse_arguments((ForecastArguments,), argv, __doc__)
    top = Path(arguments.output_dir)
    series, step = regularize(
        read_series(Path(arguments.csv_file), arguments.date_column, arguments.columns or None, arguments.date_format)
    )
    missing = int(np.isnan(series.values).any(1).sum())
    print(
        f"{len(series.values):,} rows from {series.dates.iloc[0]} to {series.dates.iloc[-1]}, step {step}, {missing:,} with gaps"
    )
    if arguments.model_name_or_path:
        model = loaded(arguments, series, step).to(Accelerator().device)
    else:
        model, errors = trained(arguments, series, step)
        write_text(top / "errors.json", json.dumps(errors, indent=1) + "\n")
        print(
            f"held-out error (standardised): mse {errors['mse']:.4f}, mae {errors['mae']:.4f}; repeating the last value: "
            f"{errors['last_value_mse']:.4f}, {errors['last_value_mae']:.4f}"
        )
    ahead = forecast(model, series)
    dates = future_dates(series.dates, step, len(ahead))
    table = pd.DataFrame(ahead, index=pd.Index(dates, name="date"), columns=series.names)
    with replacing(top / "forecast.csv") as aside:
        table.to_csv(aside)
    shown = min(len(series.values), 3 * len(ahead))
    plot_columns(top / "forecast.png", series.names, series.dates[-shown:], series.values[-shown:], dates, ahead)
    print(f"{top / 'forecast.csv'}: {len(ahead)} steps to {dates[-1]}")
    return table


if __name__ == "__main__":
    run_as_script(main)
