"""Series of one's own: CSV files of dates and numbers, made regular, and the dates that follow them."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd


@dataclass
class Series:
    """Values (T, C) in float64, NaN where missing, the variables' names, and the rows' dates."""

    values: np.ndarray
    names: list[str]
    dates: pd.Series


def read_series(file: Path, date_column: str | None = None, columns: list[str] | None = None) -> Series:
    """A CSV file, packed or not, with a header, one column of dates and columns of numbers; an empty cell is a missing value.

    Args:
        date_column: the first column by default. columns: the variables; all others by default.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: no such column; a cell that is no number, or no date, with its row.
    """
    if not file.exists():
        raise FileNotFoundError(f"{file} is not there: name a CSV file with a column of dates and columns of numbers.")
    try:
        table = pd.read_csv(file, dtype=str, keep_default_na=False, encoding_errors="replace")
    except (OSError, EOFError, ValueError) as error:  # a cut archive, rows of several lengths, no columns
        raise ValueError(f"{file} cannot be read as CSV ({error}): copy it anew, or mend it.") from error
    date_column = date_column if date_column is not None else table.columns[0]
    wanted = [name for name in table.columns if name != date_column] if columns is None else columns
    if unknown := [name for name in (date_column, *wanted) if name not in table.columns]:
        raise ValueError(f"{file} has no column {unknown[0]!r}; there is {', '.join(table.columns)}.")
    if not wanted:
        raise ValueError(f"{file} has no column but {date_column!r}: there is nothing to forecast.")
    dates = pd.to_datetime(table[date_column], errors="coerce", format="mixed")
    if dates.isna().any():
        row = int(dates.isna().to_numpy().argmax())
        raise ValueError(
            f"{file}, line {row + 2}: {table[date_column][row]!r} in column {date_column!r} is no date. Name the column of "
            "dates, or write them as 2020-12-31 or 2020-12-31 23:00."
        )
    values = np.empty((len(table), len(wanted)))
    for place, name in enumerate(wanted):
        cells = table[name].str.strip()
        numbers = pd.to_numeric(cells.where(cells != "", "nan"), errors="coerce").to_numpy()
        wrong = np.isnan(numbers) & ~cells.str.lower().isin(["", "nan", "na", "null"]).to_numpy()
        if wrong.any():
            row = int(wrong.argmax())
            raise ValueError(
                f"{file}, line {row + 2}: {cells[row]!r} in column {name!r} is no number. Correct it, leave the cell empty "
                "where the value is missing, or name the columns to forecast."
            )
        values[:, place] = numbers
    return Series(values, wanted, dates)


def regular(series: Series) -> tuple[Series, str]:
    """The series in the order of its dates with a row for every step, NaN where there was none, and the step as pandas calls it.

    Raises:
        ValueError: a date stands there twice; fewer than three rows; dates that lie at no regular steps.
    """
    if len(series.dates) < 3:
        raise ValueError(
            f"The series has {len(series.dates)} rows: two steps between dates are needed to know the next ones."
        )
    order = np.argsort(series.dates.to_numpy(), kind="stable")
    dates, values = pd.DatetimeIndex(series.dates.to_numpy()[order]), series.values[order]
    if dates.has_duplicates:
        raise ValueError(
            f"The date {dates[dates.duplicated()][0]} stands in {int((dates == dates[dates.duplicated()][0]).sum())} rows: a series "
            "has one row a date. Remove or join them; several series are several columns, or files."
        )
    for step in _steps(dates):
        whole = pd.date_range(dates[0], dates[-1], freq=step)
        if dates.isin(whole).all():
            filled = np.full((len(whole), values.shape[1]), np.nan)
            filled[whole.get_indexer(dates)] = values
            return Series(filled, series.names, pd.Series(whole)), step
    usual = pd.Series(dates).diff().mode()[0]
    odd = next(i for i in range(1, len(dates)) if (dates[i] - dates[i - 1]) % usual != pd.Timedelta(0))
    raise ValueError(
        f"The dates lie at no regular steps: most are {usual} apart, but {dates[odd]} comes {dates[odd] - dates[odd - 1]} after "
        "the one before. Resample the series first; whole steps may be missing."
    )


def _steps(dates: pd.DatetimeIndex) -> list[str]:
    """What the step between ascending dates may be, the likeliest first: calendar steps, then the usual difference."""
    found = [pd.infer_freq(dates)]
    # A gap hides a calendar step from the whole, but not from the rows on one side of it.
    found += [pd.infer_freq(dates[start : start + 8]) for start in range(0, max(1, len(dates) - 7), 4)][:50]
    usual = pd.Series(dates).diff().mode()[0]
    return list(dict.fromkeys([step for step in found if step] + [pd.tseries.frequencies.to_offset(usual).freqstr]))


def following(dates: pd.Series, step: str, count: int) -> pd.DatetimeIndex:
    """So many dates after the last one."""
    return pd.date_range(dates.iloc[-1], periods=count + 1, freq=step)[1:]
