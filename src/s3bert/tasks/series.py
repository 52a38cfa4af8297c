"""Series of one's own: CSV files of dates and numbers, made regular, and the dates after them."""

import logging
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd


logger = logging.getLogger(__name__)

_LARGEST = 1e100  # sums of squares of such values are still finite in float64
# What a spreadsheet takes a cell for a formula by; names have no tabs or line ends in front.
_FORMULA = ("=", "+", "-", "@")
_OFFSET = re.compile(r"[T ]\d[\d:.]*\s*(Z|[-+]\d\d(?::?\d\d)?)$")


@dataclass
class Series:
    """Values (T, C) in float64, NaN where missing, the variables' names, and the rows' dates."""

    values: np.ndarray
    names: list[str]
    dates: pd.Series


def read_series(
    file: Path, date_column: str | None = None, columns: list[str] | None = None, date_format: str | None = None
) -> Series:
    """A CSV file, packed or not, with a header, one column of dates and columns of numbers; an empty cell is a missing value.

    Dates with one offset from UTC keep it; those with several are read as UTC.

    Args:
        date_column: the first column by default. columns: the variables; all others by default.
        date_format: of the dates, as in `strptime`; ISO 8601 by default.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: no such column, or one that is named twice; no header; columns that are not separated by commas, or more of
            them than it names; a name that a spreadsheet would run as a formula; a file that is not UTF-8; a cell that is no
            finite number, too large a one, or no date of that format, with its line.
    """
    if not file.exists():
        raise FileNotFoundError(f"{file} is not there: name a CSV file with a column of dates and columns of numbers.")
    table = _read_table(file)
    date_column = date_column if date_column is not None else table.columns[0]
    wanted = [name for name in table.columns if name != date_column] if columns is None else columns
    if unknown := [name for name in (date_column, *wanted) if name not in table.columns]:
        raise ValueError(f"{file} has no column {unknown[0]!r}; there is {', '.join(table.columns)}.")
    if twice := [name for name in wanted if wanted.count(name) > 1]:
        raise ValueError(f"columns = {' '.join(wanted)}: {twice[0]!r} stands there twice; name each column once.")
    if formulas := [name for name in wanted if name.startswith(_FORMULA)]:
        raise ValueError(
            f"{file}: the name of column {formulas[0]!r} begins with {formulas[0][0]!r}, and a spreadsheet that opens the forecast "
            "would run it as a formula. Rename the column, or name the columns to forecast (--columns) without it."
        )
    if not wanted:
        raise ValueError(f"{file} has no column but {date_column!r}: there is nothing to forecast.")
    try:
        dates = _read_dates(table[date_column].tolist(), date_format)
    except ValueError as error:
        raise ValueError(f"{file}, column {date_column!r}: {error}") from error
    if dates.isna().any():
        row = int(dates.isna().argmax())
        raise ValueError(
            f"{file}, line {table.index[row] + 2}: {table[date_column].iloc[row]!r} in column {date_column!r} is no date of the form "
            f"{date_format or '2020-12-31 or 2020-12-31 23:00 (ISO 8601)'}. Name the column of dates, or give their --date_format, "
            "such as --date_format %d/%m/%Y."
        )
    values = np.empty((len(table), len(wanted)))
    for place, name in enumerate(wanted):
        cells = table[name]
        numbers = pd.to_numeric(cells.where(cells != "", "nan"), errors="coerce").to_numpy()
        wrong = ~np.isfinite(numbers) & ~cells.str.lower().isin(["", "nan", "na", "null"]).to_numpy()
        if wrong.any():
            row = int(wrong.argmax())
            raise ValueError(
                f"{file}, line {table.index[row] + 2}: {cells.iloc[row]!r} in column {name!r} is no number. Correct it, leave the "
                "cell empty where the value is missing, or name the columns to forecast."
            )
        large = np.abs(numbers) > _LARGEST
        if large.any():
            row = int(large.argmax())
            raise ValueError(
                f"{file}, line {table.index[row] + 2}: {cells.iloc[row]!r} in column {name!r} is too large: values go from "
                f"-{_LARGEST:g} to {_LARGEST:g}. Correct it, leave the cell empty where the value is missing, or take another unit."
            )
        values[:, place] = numbers
    return Series(values, wanted, pd.Series(dates))


def _read_table(file: Path) -> pd.DataFrame:
    """The cells as texts without the blanks around them; a row's index is its line, less 2. Empty lines are left out."""
    as_it_is = {"dtype": str, "keep_default_na": False, "skip_blank_lines": False}
    try:
        table = pd.read_csv(file, **as_it_is)
    except UnicodeDecodeError as error:
        usual = "utf-16" if error.object.startswith((b"\xff\xfe", b"\xfe\xff")) else "latin1"
        raise ValueError(
            f"{file} is not in UTF-8 (it has the byte 0x{error.object[error.start]:02x}), perhaps in {usual}. Save it as UTF-8, for "
            f"example with: iconv -f {usual} -t utf-8 {file.name} > utf-8.csv"
        ) from error
    except (OSError, EOFError, ValueError, zlib.error) as error:  # a cut archive, rows of several lengths, no columns
        raise ValueError(f"{file} cannot be read as CSV ({str(error).strip()}): copy it again, or mend it.") from error
    names = [name.strip() for name in table.columns]
    if len(names) == 1 and (separators := [mark for mark in ";\t|" if mark in table.columns[0]]):
        raise ValueError(
            f"{file}: its columns, {names[0]!r}, have {separators[0]!r} between them. Separate them with commas, and write numbers "
            "with a decimal point."
        )
    if not "".join(names):
        raise ValueError(f"{file}: the first line is empty, and its place is the header's. Remove it.")
    if not isinstance(table.index, pd.RangeIndex):  # pandas takes what is left of the named columns for an index
        raise ValueError(
            f"{file}: the first line, the header, names {len(names)} columns ({', '.join(names)}), but the rows have more cells. "
            "Name every column, or remove what is too much."
        )
    # pandas renames a second column of the same name, so that its own names show no such one.
    written = [name.strip() for name in pd.read_csv(file, header=None, nrows=1, **as_it_is).iloc[0]]
    if twice := [name for name in written if name and written.count(name) > 1]:
        raise ValueError(f"{file} has two columns {twice[0]!r}: give each a name of its own.")
    table = pd.DataFrame({name: table[column].str.strip() for name, column in zip(names, table.columns)})
    return table[(table != "").any(axis=1)]


def _read_dates(texts: list[str], date_format: str | None) -> pd.DatetimeIndex:
    """Dates, NaT where a text is none."""
    offsets = {match[1] if (match := _OFFSET.search(text)) else "none" for text in texts}
    if len(offsets) > 1:
        logger.info("The dates have several offsets from UTC (%s): they are read as UTC.", ", ".join(sorted(offsets)))
    return pd.to_datetime(texts, format=date_format or "ISO8601", errors="coerce", utc=len(offsets) > 1)


def regularize(series: Series) -> tuple[Series, str]:
    """The series in the order of its dates with a row for every step, NaN where there was none, and the step's name.

    That is pandas' name, or "3 months" where dates lie on the same day of months, or on the last; holes do not change it.

    Raises:
        ValueError: a date stands there twice; fewer than three rows; dates that lie at no regular steps.
    """
    if len(series.dates) < 3:
        raise ValueError(
            f"The series has {len(series.dates)} rows: two steps between dates are needed to know the next ones."
        )
    rows = pd.DataFrame(series.values, index=pd.DatetimeIndex(series.dates)).sort_index()
    dates = rows.index
    if dates.has_duplicates:
        raise ValueError(
            f"The date {dates[dates.duplicated()][0]} stands in {int((dates == dates[dates.duplicated()][0]).sum())} rows: a series "
            "has one row a date. Remove or join them; several series are several columns, or files; and the hour that comes twice "
            "when daylight saving ends needs its offset, as in 2020-10-25 02:00+01:00."
        )
    for step in _steps(dates):
        whole = _every(dates, step)
        if dates.isin(whole).all():
            return Series(rows.reindex(whole).to_numpy(), series.names, pd.Series(whole)), step
    usual = pd.Series(dates).diff().mode()[0]
    odd = next(i for i in range(1, len(dates)) if (dates[i] - dates[i - 1]) % usual != pd.Timedelta(0))
    raise ValueError(
        f"The dates lie at no regular steps: most are {usual} apart, but {dates[odd]} comes {dates[odd] - dates[odd - 1]} after "
        "the one before. Resample the series first; whole steps may be missing."
    )


def _steps(dates: pd.DatetimeIndex) -> Iterator[str]:
    """What the step between ascending dates may be, the likeliest first: calendar steps, then the usual difference."""
    months = int(np.gcd.reduce(np.diff(dates.year * 12 + dates.month)))
    if months:
        yield "1 month" if months == 1 else f"{months} months"
    usual = pd.Series(dates).diff().mode()[0]
    if usual == pd.Timedelta(days=1) and dates[-1] - dates[0] >= pd.Timedelta(days=7) and dates.dayofweek.max() < 5:
        yield "B"
    # A gap hides a step such as a month's last working day from the whole, but not from the rows on one side of it.
    pieces = [dates, *(dates[start : start + 8] for start in range(0, len(dates) - 7, 4)[:50])]
    yield from filter(None, dict.fromkeys(map(pd.infer_freq, pieces)))
    yield pd.infer_freq(pd.date_range(dates[0], periods=8, freq=usual))  # as a series without holes would be called


def _every(dates: pd.DatetimeIndex, step: str, further: int = 0) -> pd.DatetimeIndex:
    """All dates from the first to the last one of those, and so many further ones."""
    if not step.endswith(("month", "months")):
        ahead = pd.date_range(dates[-1], periods=further + 1, freq=step)[1:]
        return pd.date_range(dates[0], dates[-1], freq=step).append(ahead)
    months, first = int(step.split()[0]), dates[0].normalize()
    count = ((dates[-1].year - first.year) * 12 + dates[-1].month - first.month) // months + 1 + further
    starts = pd.date_range(first.replace(day=1), periods=count, freq=pd.DateOffset(months=months))
    # A day that a month does not have is its last one, and where all are last ones, those are meant.
    day = 31 if dates.is_month_end.all() else dates.day.max()
    return starts + pd.to_timedelta(np.minimum(day, starts.days_in_month) - 1, unit="D") + (dates[0] - first)


def future_dates(dates: pd.Series, step: str, count: int) -> pd.DatetimeIndex:
    """The next dates after the last one."""
    return _every(pd.DatetimeIndex(dates), step, count)[-count:]
