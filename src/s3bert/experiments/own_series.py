"""A forecaster of somebody's own series: trained on it, or loaded and checked against it."""

import logging
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from accelerate.utils import set_seed

from s3bert.data.shuffled import ShuffledBatches
from s3bert.files import reading
from s3bert.models.configuration_forecast import S3ForecastConfig
from s3bert.models.modeling_forecast import S3ForecastModel
from s3bert.tasks.forecasting import ForecastEvaluation, Windows, naive_errors, scaling, standardise
from s3bert.tasks.series import Series
from s3bert.training.arguments import TrainingConfig
from s3bert.training.loop import train


logger = logging.getLogger(__name__)

_HELD_OUT = 0.2  # of the rows
_BATCH = 32


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


def _warn_of_outliers(series: Series, standardised: np.ndarray, rows: slice) -> None:
    """Says so where values of those rows differ, but no longer do in the model's float32: an outlier has made them one."""
    values, seen = series.values[rows], standardised[rows].astype(np.float32)
    lost = (np.fmax.reduce(values) > np.fmin.reduce(values)) & (np.fmax.reduce(seen) == np.fmin.reduce(seen))
    for column in np.flatnonzero(lost):
        row = int(np.nanargmax(np.abs(standardised[:, column])))
        logger.warning(
            "Column %r is %g at %s: beside that, its other values are all alike to the model, and its forecast means nothing. "
            "Correct that cell, or leave it empty.",
            series.names[column],
            series.values[row, column],
            series.dates.iloc[row],
        )


def train_forecaster(
    series: Series,
    step: str,
    output_dir: str,
    prediction_length: int | None = None,
    context_length: int | None = None,
    hidden_size: int = 32,
    num_hidden_layers: int = 2,
    num_train_epochs: float = 10.0,
    learning_rate: float = 1e-3,
    seed: int = 0,
    allow_changed: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
) -> tuple[S3ForecastModel, dict[str, float]]:
    """A forecaster of the series, and its errors on the rows held out, beside those of repeating the last value.

    Args:
        step: between two rows, as pandas writes it. prediction_length: steps ahead, 24 by default. context_length: steps that
            are read, twice as many by default. allow_changed: as in TrainingConfig.
        settings: of the command, as `training/settings.py` says.

    Raises:
        ValueError: the series is too short, or a variable has no values where they are needed; a setting cannot be; the output
            folder holds a training with other settings, or of another series.
    """
    horizon = prediction_length or 24
    context = context_length or 2 * horizon
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
    values = standardise(series, mean, deviation)
    _warn_of_outliers(series, values, slice(total - held_out, total))
    config = S3ForecastConfig(
        context_length=context,
        prediction_length=horizon,
        num_input_channels=len(series.names),
        hidden_size=hidden_size,
        num_hidden_layers=num_hidden_layers,
        num_harmonics=context // 2,
        channel_independent=True,
        channel_names=series.names,
        channel_means=mean.tolist(),
        channel_deviations=deviation.tolist(),
        frequency=step,
    )
    set_seed(seed)
    model = S3ForecastModel(config)
    windows = Windows(values, context, total - held_out, context, horizon)
    validation = Windows(values, total - held_out, total, context, horizon)
    batches = ShuffledBatches(windows, _BATCH, seed)
    training = TrainingConfig(
        output_dir=output_dir,
        seed=seed,
        per_device_train_batch_size=_BATCH,
        learning_rate=learning_rate,
        lr_scheduler_type="cosine",
        num_train_epochs=num_train_epochs,
        early_stopping_patience=3,
        load_best_model_at_end=True,
        resume_from_checkpoint="latest",
        allow_changed=list(allow_changed),
        report_to="none",
    )
    settings = {**(settings or {}), "checksum": zlib.crc32(series.values.tobytes())}
    result = train(model, batches, training, ForecastEvaluation(validation, 256), settings=settings)
    return model, result.metrics | {f"last_value_{name}": value for name, value in naive_errors(validation, 1).items()}


def load_forecaster(
    name: str, series: Series, step: str, prediction_length: int | None = None, context_length: int | None = None
) -> S3ForecastModel:
    """A trained forecaster of the same columns and step.

    Raises:
        ValueError: it is for other columns, another step or other lengths, or does not say for which; the series is too short,
            or a variable has no value where the model reads.
    """
    with reading(f"The model {name}"):
        config = S3ForecastConfig.from_pretrained(name)
    if config.channel_names is None:
        raise ValueError(
            f"{name} does not say which columns it forecasts: take a folder that this command has trained."
        )
    for what, own, asked in (
        ("columns", config.channel_names, series.names),
        ("step", config.frequency, step),
        ("prediction_length", config.prediction_length, prediction_length or config.prediction_length),
        ("context_length", config.context_length, context_length or config.context_length),
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
    with reading(f"The model {name}"):
        return S3ForecastModel.from_pretrained(name)


@torch.no_grad()
def forecast(model: S3ForecastModel, series: Series) -> np.ndarray:
    """The steps after the series, (H, C), on its own scale.

    Raises:
        ValueError: a value that is read is too large, or one that is forecast no finite number.
    """
    config = model.config
    mean, deviation = np.array(config.channel_means), np.array(config.channel_deviations)
    rows = slice(-config.context_length, None)
    past = standardise(Series(series.values[rows], series.names, series.dates.iloc[rows]), mean, deviation)
    past = torch.from_numpy(past).float()[None].to(model.device)
    ahead = model.eval()(past_values=past).prediction_outputs[0].double().cpu().numpy() * deviation + mean
    wrong = np.argwhere(~np.isfinite(ahead))
    if len(wrong):
        step, column = wrong[0]
        raise ValueError(
            f"The forecast of column {series.names[column]!r} is {ahead[step, column]} in row {step + 1}: the model's weights or "
            "scales are damaged, or its training went astray. Train it again in another folder, with a lower --learning_rate."
        )
    return ahead
