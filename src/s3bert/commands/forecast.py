"""Forecasts a CSV file: dates in the first column, numbers in the others.

    s3bert forecast --csv_file series.csv --prediction_length 48 --output_dir runs/mine       # trains on the spot
    s3bert forecast --csv_file newer.csv --model_name_or_path runs/mine --output_dir runs/next

Without a model, an S3 forecaster is trained on the series itself; its last rows are held out to end with the best weights, and
their error is told. Rows may stand in any order, steps may be missing and cells empty. Dates are ISO 8601 (2020-12-31 23:00), or of
a --date_format; those with several offsets from UTC are read as UTC. The output folder gets
`forecast.csv`, `forecast.png` and, after training, the model, which forecasts later rows of the same columns.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from s3bert.arguments import Arguments, option, parse_arguments
from s3bert.commands import run
from s3bert.files import replacing, write_text


if TYPE_CHECKING:
    import pandas as pd


@dataclass
class ForecastArguments(Arguments):
    """File, and how far ahead."""

    csv_file: str = option(free=True, help="CSV file with a header, packed or not")
    output_dir: str = option(free=True, help="folder of the forecast, and of the model if one is trained")
    model_name_or_path: str | None = option(
        free=True, help="a trained forecaster; one is trained by default", default=None
    )
    date_column: str | None = option(free=True, help="column of dates; the first by default", default=None)
    date_format: str | None = option(
        free=True, help="of the dates, such as %%d/%%m/%%Y; ISO 8601, as 2020-12-31 23:00, by default", default=None
    )
    columns: list[str] = option(free=True, help="columns to forecast; all others by default", default_factory=list)
    prediction_length: int | None = option(least=1, help="steps ahead; a model's own, or 24, by default", default=None)
    context_length: int | None = option(
        least=1, help="steps that are read; a model's own, or twice the steps ahead, by default", default=None
    )
    hidden_size: int = option(least=1, help="width of a trained model", default=32)
    num_hidden_layers: int = option(least=1, help="layers of a trained model", default=2)
    num_train_epochs: float = option(
        free=True, above=0, help="passes over the series in training, at most", default=10.0
    )
    learning_rate: float = option(above=0, help="AdamW's peak learning rate", default=1e-3)
    seed: int = option(least=0, below=2**32, help="of weights, data order and dropout", default=0)
    allow_changed: list[str] = option(
        free=True,
        help="settings that a training which goes on may have otherwise than its checkpoint, by name: learning_rate ...",
        default_factory=list,
    )


def main(argv: list[str] | None = None) -> "pd.DataFrame":
    """Runs the command; returns the forecast, a row a date."""
    (arguments,) = parse_arguments((ForecastArguments,), argv, __doc__)
    from s3bert.training.processes import locked_for_run

    with locked_for_run(Path(arguments.output_dir)):
        return _forecast(arguments)


def _forecast(arguments: ForecastArguments) -> "pd.DataFrame":
    import numpy as np
    import pandas as pd
    from accelerate import Accelerator

    from s3bert.experiments.own_series import forecast, load_forecaster, train_forecaster
    from s3bert.reports.forecasting import plot_columns
    from s3bert.tasks.series import future_dates, read_series, regularize
    from s3bert.training.checkpoints import check_own_folder
    from s3bert.training.settings import settings_of

    top, written = Path(arguments.output_dir), ("forecast.csv", "forecast.png", "errors.json")
    if Path(arguments.csv_file).resolve() in [(top / name).resolve() for name in written]:
        raise ValueError(
            f"csv_file = {arguments.csv_file} would be replaced by the forecast: name another --output_dir."
        )
    if not arguments.model_name_or_path:
        check_own_folder(top, "log.jsonl", "checkpoint-*")
    series, step = regularize(
        read_series(Path(arguments.csv_file), arguments.date_column, arguments.columns or None, arguments.date_format)
    )
    if "date" in series.names:
        raise ValueError(
            f"{arguments.csv_file}: the column 'date' is one to forecast, and forecast.csv has its dates in a column of that name. "
            "Rename it, or name it as --date_column."
        )
    missing = int(np.isnan(series.values).any(1).sum())
    print(
        f"{len(series.values):,} rows from {series.dates.iloc[0]} to {series.dates.iloc[-1]}, step {step}, {missing:,} with gaps"
    )
    lengths = (arguments.prediction_length, arguments.context_length)
    if arguments.model_name_or_path:
        model = load_forecaster(arguments.model_name_or_path, series, step, *lengths).to(Accelerator().device)
    else:
        model, errors = train_forecaster(
            series,
            step,
            arguments.output_dir,
            *lengths,
            hidden_size=arguments.hidden_size,
            num_hidden_layers=arguments.num_hidden_layers,
            num_train_epochs=arguments.num_train_epochs,
            learning_rate=arguments.learning_rate,
            seed=arguments.seed,
            allow_changed=arguments.allow_changed,
            settings=settings_of(arguments),
        )
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
    print(f"{len(ahead)} steps to {dates[-1]} are in {top / 'forecast.csv'}, drawn in {top / 'forecast.png'}.")
    return table


if __name__ == "__main__":
    run("forecast")
