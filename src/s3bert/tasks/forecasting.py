"""The six series of the long-term forecasting benchmark, their splits, and windows of them.

The protocol is that of Informer's and its successors' code: each variable is standardised with the mean and the standard
deviation of the training rows, windows slide by one row, the first targets of validation and test are their segments' first
rows, and errors are means over windows, steps and variables on the standardised scale. Here they are means over all windows;
those programs leave out the last incomplete batch, of the test split too. T rows, L context, H horizon, C variables.
"""

import copy
import functools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn

from .evaluation import on_device, shard_batches
from .series import Series


SPLITS = ("train", "validation", "test")
_LARGEST = 1e15  # deviations from the mean: sums of their squares are still finite in a model's float32


@dataclass(frozen=True)
class ForecastDataset:
    """A series of the benchmark.

    Args:
        file: its name, with or without `.gz`. period: rows after which it repeats, for the seasonal naive forecast.
        rows: of each split; None for 70, 10 and 20 percent of the file.
        context_length, horizons: the benchmark's.
    """

    file: str
    period: int
    rows: tuple[int, int, int] | None = None
    context_length: int = 96
    horizons: tuple[int, ...] = (96, 192, 336, 720)

    def split_rows(self, total: int) -> tuple[int, int, int]:
        """Rows of the three splits.

        Raises:
            ValueError: the file is too short for them.
        """
        if self.rows is None:
            train, test = int(0.7 * total), int(0.2 * total)
            return train, total - train - test, test
        if sum(self.rows) > total:
            raise ValueError(
                f"{self.file} has {total:,} rows, the benchmark uses {sum(self.rows):,}: it is cut; copy it again."
            )
        return self.rows


_QUARTER_HOURS, _HOURS = (34_560, 11_520, 11_520), (8_640, 2_880, 2_880)  # 12, 4 and 4 months of 30 days
FORECAST_DATASETS: Mapping[str, ForecastDataset] = {
    "ettm2": ForecastDataset("ETTm2.csv", 96, _QUARTER_HOURS),
    "ettm1": ForecastDataset("ETTm1.csv", 96, _QUARTER_HOURS),
    "etth2": ForecastDataset("ETTh2.csv", 24, _HOURS),
    "etth1": ForecastDataset("ETTh1.csv", 24, _HOURS),
    "electricity": ForecastDataset("electricity.csv", 24),
    "exchange": ForecastDataset("exchange_rate.csv", 7),
    "traffic": ForecastDataset("traffic.csv", 24),
    "weather": ForecastDataset("weather.csv", 144),
    "ili": ForecastDataset("national_illness.csv", 52, context_length=36, horizons=(24, 36, 48, 60)),
}


def scaling(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means and standard deviations of variables, (C,), over values (T, C) that are there; a constant's deviation is 1."""
    varies = np.fmax.reduce(values) > np.fmin.reduce(values)  # a constant's mean, rounded, may differ from it
    there = ~np.isnan(values)
    count = np.maximum(there.sum(0), 1)
    mean = np.where(there, values, 0.0).sum(0) / count
    deviation = np.sqrt(np.where(there, (values - mean) ** 2, 0.0).sum(0) / count)
    return mean, np.where(varies & (deviation > 0), deviation, 1.0)


def standardise(series: Series, mean: np.ndarray, deviation: np.ndarray) -> np.ndarray:
    """Values (T, C) less the means, divided by the deviations, NaN where missing.

    Raises:
        ValueError: one is too large for a model that computes in float32.
    """
    with np.errstate(over="ignore"):
        values = (series.values - mean) / deviation
    large = np.argwhere(np.abs(values) > _LARGEST)
    if len(large):
        row, column = large[0]
        raise ValueError(
            f"Column {series.names[column]!r} is {series.values[row, column]:g} at {series.dates.iloc[row]}, over {_LARGEST:g} standard "
            f"deviations ({deviation[column]:g}) from the mean ({mean[column]:g}) of the rows trained on: no forecast can be computed. "
            "Correct it, or leave the cell empty."
        )
    return values


class Windows:
    """All windows of a segment of a series, number i reading rows i .. i + L - 1 and forecasting the H after them.

    Args:
        values: (T, C) standardised. first, last: rows of the targets, last excluded. context_length, prediction_length: L, H.

    Raises:
        ValueError: the segment has no whole window.
    """

    def __init__(self, values: np.ndarray, first: int, last: int, context_length: int, prediction_length: int):
        self.values = torch.from_numpy(values.astype(np.float32))
        self.start, self.context_length, self.prediction_length = (
            first - context_length,
            context_length,
            prediction_length,
        )
        self.count = last - first - prediction_length + 1
        if self.start < 0 or self.count < 1:
            raise ValueError(
                f"{last - max(0, self.start):,} rows hold no window of {context_length} + {prediction_length}: take shorter "
                "ones, or a longer series."
            )
        self.lengths = np.full(self.count, context_length)

    def __len__(self) -> int:
        return self.count

    def batch(self, chosen: np.ndarray) -> dict[str, torch.Tensor]:
        """`past_values` (B, L, C) and `future_values` (B, H, C) of windows of those numbers; NaN where nothing was observed."""
        rows = torch.from_numpy(self.start + np.asarray(chosen))[:, None]
        whole = self.values[rows + torch.arange(self.context_length + self.prediction_length)]
        past, future = whole.split([self.context_length, self.prediction_length], 1)
        return {"past_values": past, "future_values": future}

    def take(self, count: int) -> "Windows":
        """The first so many windows, or all."""
        fewer = copy.copy(self)
        fewer.count = min(count, self.count)
        fewer.lengths = self.lengths[: fewer.count]
        return fewer

    def naive(self, chosen: np.ndarray, period: int) -> torch.Tensor:
        """Forecasts (B, H, C) that repeat the last `period` rows before the horizon; a period of 1 repeats the last value.

        A missing value counts as the one before it, and as 0, the mean, where there is none before it.
        """
        origin = torch.from_numpy(self.start + self.context_length + np.asarray(chosen))[:, None]
        back = period - torch.arange(self.prediction_length) % period
        return self._known[(origin - back).clamp(min=0)]

    @functools.cached_property
    def _known(self) -> torch.Tensor:
        rows = torch.arange(len(self.values))[:, None]
        last = (
            torch.where(self.values.isnan(), 0, rows).cummax(0).values
        )  # (T, C), the row of the last value that is there
        return self.values.gather(0, last).nan_to_num(0.0)


def split_windows(
    dataset: ForecastDataset, series: Series, context_length: int, prediction_length: int
) -> dict[str, Windows]:
    """The windows of each split of a series, standardised with the training rows.

    Raises:
        ValueError: a split has no window; a value is too large to compute with.
    """
    train, validation, test = dataset.split_rows(len(series.values))
    values = standardise(series, *scaling(series.values[:train]))
    borders = {
        "train": (context_length, train),
        "validation": (train, train + validation),
        "test": (train + validation, train + validation + test),
    }
    return {
        split: Windows(values, first, last, context_length, prediction_length)
        for split, (first, last) in borders.items()
    }


def error_sums(forecast: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """Sums over windows of squared errors, absolute errors and values, (3,); values that are NaN do not count."""
    exact = torch.float32 if truth.device.type == "mps" else torch.float64
    there = ~truth.isnan()
    error = torch.where(there, forecast.to(truth) - truth, 0.0).to(exact)
    return torch.stack([error.square().sum(), error.abs().sum(), there.sum()])


def mean_errors(sums: torch.Tensor) -> dict[str, float]:
    """`mse` and `mae` of added `error_sums`.

    Raises:
        ValueError: all true values are missing.
    """
    squares, absolutes, count = sums.tolist()
    if not count:
        raise ValueError(
            "There is no value to measure forecasts by: all that lie in the windows' horizons are missing."
        )
    return {"mse": squares / count, "mae": absolutes / count}


def _batches(windows: Windows, batch_size: int) -> list[np.ndarray]:
    """The numbers of all windows, in order."""
    return [np.arange(start, min(start + batch_size, len(windows))) for start in range(0, len(windows), batch_size)]


def naive_errors(windows: Windows, period: int) -> dict[str, float]:
    """`mse` and `mae` over all windows of forecasts that repeat the last period."""
    sums = torch.zeros(3, dtype=torch.float64)
    for chosen in _batches(windows, 256):
        sums += error_sums(windows.naive(chosen, period), windows.batch(chosen)["future_values"])
    return mean_errors(sums)


class ForecastEvaluation:
    """Errors of a model over all windows of a split, for `training.train` to call.

    `mse`, `mae`; `loss`, the mse; `score`, less the mse; and with `dropped_batch`, `mse_without_rest` and `mae_without_rest`:
    the same without the windows that the usual programs leave out, those after the last whole batch of that size.
    """

    def __init__(self, windows: Windows, batch_size: int, dropped_batch: int | None = None):
        self.windows, self.batch_size, self.dropped_batch = windows, batch_size, dropped_batch

    @torch.no_grad()
    def __call__(self, model: nn.Module, accelerator: Accelerator) -> dict[str, float]:
        limit = len(self.windows) // self.dropped_batch * self.dropped_batch if self.dropped_batch else 0
        sums = 0  # (2, 3): of all windows, and of those before `limit`
        for chosen in shard_batches(_batches(self.windows, self.batch_size), accelerator):
            batch = on_device(self.windows.batch(chosen), accelerator)
            forecast, truth = model(past_values=batch["past_values"]).prediction_outputs, batch["future_values"]
            kept = max(0, limit - int(chosen[0]))
            row = torch.stack([error_sums(forecast, truth), error_sums(forecast[:kept], truth[:kept])])
            sums += accelerator.gather_for_metrics(row[None]).sum(0)
        metrics = mean_errors(sums[0])
        metrics |= {"loss": metrics["mse"], "score": -metrics["mse"]}
        if limit:
            metrics |= {f"{name}_without_rest": value for name, value in mean_errors(sums[1]).items()}
        return metrics
