"""The forecasting benchmark's data: reading CSV files and what is wrong with them, splits, windows, errors."""

import gzip
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from accelerate import Accelerator
from hypothesis import given, settings
from hypothesis import strategies as st

from s3bert.models.configuration_forecast import S3ForecastConfig
from s3bert.models.modeling_forecast import S3ForecastModel
from s3bert.tasks.forecasting import (
    FORECAST_DATASETS,
    ForecastDataset,
    ForecastEvaluation,
    Windows,
    naive_errors,
    scaling,
    split_windows,
)
from s3bert.tasks.series import Series, read_series


REAL = Path(__file__).parents[2].parent / "shared/data/forecasting"
ROWS = ["date,a,b", "2020-01-01,1,2", "2020-01-02,,3", "2020-01-03,nan,4.5e0"]


def series(values: np.ndarray) -> Series:
    names = [f"column {number}" for number in range(values.shape[1])]
    return Series(values, names, pd.Series(pd.date_range("2020-01-01", periods=len(values))))


def write(folder: Path, rows: list[str], name: str = "series.csv") -> Path:
    file = folder / name
    file.write_text("\n".join(rows) + "\n")
    return file


def test_a_file_is_read_packed_or_not_with_missing_values(tmp_path):
    packed = tmp_path / "series.csv.gz"
    packed.write_bytes(gzip.compress(write(tmp_path, ROWS).read_bytes()))
    for file in (tmp_path / "series.csv", packed):
        series = read_series(file)
        np.testing.assert_array_equal(series.values, [[1, 2], [math.nan, 3], [math.nan, 4.5]])
        assert series.names == ["a", "b"]
        assert series.dates.dt.day.tolist() == [1, 2, 3]
    assert read_series(packed, columns=["b"]).values.tolist() == [[2], [3], [4.5]]


@pytest.mark.parametrize(
    ("rows", "arguments", "message"),
    [
        (ROWS, {"columns": ["c"]}, "has no column 'c'; there is date, a, b"),
        (ROWS, {"date_column": "time"}, "has no column 'time'; there is date, a, b"),
        ([*ROWS, "2020-01-04,x,1"], {}, "line 5: 'x' in column 'a' is no number"),
        ([*ROWS, "soon,1,1"], {}, "line 5: 'soon' in column 'date' is no date"),
        (["date", "2020-01-01"], {}, "has no column but 'date'"),
        ([*ROWS, "2020-01-04,1,2,3,4"], {}, "cannot be read as CSV"),
        ([*ROWS[:2], "", "  ", ",,", "2020-01-02,x,1"], {}, "line 6: 'x' in column 'a' is no number"),
        ([*ROWS, "2020-01-04,1,-inf"], {}, "line 5: '-inf' in column 'b' is no number"),
        ([*ROWS, "2020-01-04,1e999,1"], {}, "line 5: '1e999' in column 'a' is no number"),
        (
            ["date,a", "2020-01-01,1,2", "2020-01-02,1,2"],
            {},
            r"names 2 columns \(date, a\), but the rows have more cells",
        ),
        (
            ["date;a", "2020-01-01;1,5", "2020-01-02;1,5"],
            {},
            "'date;a', have ';' between them. Separate them with commas",
        ),
        (["", *ROWS], {}, "the first line is empty, and its place is the header's"),
        (["  ", *ROWS], {}, "the first line is empty, and its place is the header's"),
        (["date\ta", "2020-01-01\t1"], {}, r"have '\\t' between them"),
        (["date,a , a", "2020-01-01,1,2"], {}, "has two columns 'a'"),
        (["date,HUFL,b,HUFL", "2020-01-01,1,2,3"], {}, "has two columns 'HUFL'"),
        (ROWS, {"columns": ["a", "b", "a"]}, "columns = a b a: 'a' stands there twice"),
        ([*ROWS, "2020-01-04,1,-1e308"], {}, "line 5: '-1e308' in column 'b' is too large: values go from -1e\\+100"),
        *(
            (["date,a,b", "2020-01-01,1,2", f"2020-01-02,{cell},2"], {}, f"line 3: '{cell}' in column 'a' is")
            for cell in ("1.01e100", "-inf")
        ),
        *(
            ([f'date,b,"{name}"', "2020-01-01,1,2"], {}, r"column .[=+@-]cmd\|.* would run it as a formula. Rename")
            for name in ("=cmd|' /C calc'!A0", "+cmd|1", "-cmd|1", "@cmd|1", "\t=cmd|1", " =cmd|1")
        ),
        (["date,a", "Jan-20,1"], {}, "line 2: 'Jan-20' in column 'date' is no date"),
        (["date,a", "10:00,1"], {}, "line 2: '10:00' in column 'date' is no date"),
        (["date,a", "10:00:00.123456,1"], {}, "'10:00:00.123456' in column 'date' is no date of the form 2020-12-31"),
        (["date,a", "2020Q1,1"], {}, "line 2: '2020Q1' in column 'date' is no date"),
        (["date,a", "2 January 2020,1"], {}, "line 2: '2 January 2020' in column 'date' is no date"),
        (["date,a", "1577836800,1"], {}, "line 2: '1577836800' in column 'date' is no date"),
        (["date,a", "13/01/2020,1"], {}, "'13/01/2020' .* is no date .* or give .* --date_format %d/%m/%Y"),
        (["date,a", "2020-01-05,1", "05.05.2020,1"], {}, "line 3: '05.05.2020' .* is no date"),
        (["date,a", "01/02/20,1"], {"date_format": "%d/%m/%Y"}, "is no date of the form %d/%m/%Y"),
        (["date,a", "01/02/2020,1"], {"date_format": "%d/%q"}, "column 'date': .*directive"),
        ([], {}, "cannot be read as CSV|has no column"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(tmp_path, rows, arguments, message):
    with pytest.raises(ValueError, match=message):
        read_series(write(tmp_path, rows), **arguments)


@pytest.mark.parametrize(
    ("dates", "date_format", "first", "second"),
    [
        (["2020-02-01 10:00", "2020-01-31T00:00:00.5"], None, "2020-02-01 10:00", "2020-01-31 00:00:00.5"),
        (["1990/1/2 0:00", "1990/1/13 0:00"], None, "1990-01-02", "1990-01-13"),
        (["2020-02", "2020"], None, "2020-02-01", "2020-01-01"),
        ([" 20200102", "20200103 "], None, "2020-01-02", "2020-01-03"),
        (["01/02/2020", "02/02/2020"], "%d/%m/%Y", "2020-02-01", "2020-02-02"),
        (["01/02/2020 9:00 PM", "01/13/2020 10:00 PM"], "%m/%d/%Y %I:%M %p", "2020-01-02 21:00", "2020-01-13 22:00"),
        (["2 January 2020", "13 February 2020"], "%d %B %Y", "2020-01-02", "2020-02-13"),
        (
            ["2020-10-25T02:00+02:00", "2020-10-25T03:00+02:00"],
            None,
            "2020-10-25T02:00+02:00",
            "2020-10-25T03:00+02:00",
        ),
        (["2020-10-25 02:00+02:00", "2020-10-25 02:00+01:00"], None, "2020-10-25 00:00Z", "2020-10-25 01:00Z"),
    ],
)
def test_dates_are_read_as_iso_8601_or_in_the_format_that_is_named(tmp_path, dates, date_format, first, second):
    file = write(tmp_path, [" date , a", *(f'"{date}",1' for date in dates)])
    series = read_series(file, date_format=date_format)
    assert series.names == ["a"], "blanks around names are none of theirs"
    assert series.dates.tolist() == [pd.Timestamp(first), pd.Timestamp(second)]


def test_a_column_whose_name_is_a_formula_need_not_be_forecast(tmp_path):
    file = write(tmp_path, ["date,a,=b", "2020-01-01,1,2"])
    assert read_series(file, columns=["a"]).names == ["a"]


@pytest.mark.parametrize(
    ("encoding", "message"),
    [
        ("latin1", r"\(it has the byte 0xf6\), perhaps in latin1\. .* iconv -f latin1 -t utf-8"),
        ("utf-16", r"\(it has the byte 0xff\), perhaps in utf-16\. .* iconv -f utf-16 -t utf-8"),
    ],
)
def test_a_file_of_another_encoding_than_utf_8_is_refused(tmp_path, encoding, message):
    rows = "date,Gr\u00f6\u00dfe\n2020-01-01,1\n"
    file = tmp_path / "series.csv"
    file.write_bytes(rows.encode(encoding))
    with pytest.raises(ValueError, match=rf"series.csv is not in UTF-8 {message}"):
        read_series(file)
    file.write_bytes(rows.encode("utf-8-sig"))
    series = read_series(file)
    assert series.names == ["Gr\u00f6\u00dfe"]


def test_a_missing_and_a_cut_file_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nothing.csv is not there"):
        read_series(tmp_path / "nothing.csv")
    packed = tmp_path / "cut.csv.gz"
    packed.write_bytes(gzip.compress("\n".join(ROWS * 500).encode())[:60])
    with pytest.raises(ValueError, match=r"cut.csv.gz cannot be read as CSV"):
        read_series(packed)


@settings(max_examples=30, deadline=None)
@given(total=st.integers(60, 200), context=st.integers(1, 12), horizon=st.integers(1, 10), seed=st.integers(0, 9))
def test_windows_are_those_of_the_protocol(total, context, horizon, seed):
    """Rows 70/10/20, scaled by the training rows; the first target of validation and test is the segment's first row."""
    values = np.random.default_rng(seed).normal(5, 3, (total, 2))
    train, test = int(0.7 * total), int(0.2 * total)
    borders = {
        "train": (0, train),
        "validation": (train - context, total - test),
        "test": (total - test - context, total),
    }
    dataset = ForecastDataset("made.csv", 7)
    if total - train - test < horizon:
        with pytest.raises(ValueError, match="hold no window"):
            split_windows(dataset, series(values), context, horizon)
        return
    splits = split_windows(dataset, series(values), context, horizon)
    means = [sum(values[:train, c]) / train for c in range(2)]
    deviations = [math.sqrt(sum((values[:train, c] - means[c]) ** 2) / train) for c in range(2)]
    scaled = (values - means) / deviations
    for split, (first, last) in borders.items():
        expected = [scaled[start : start + context + horizon] for start in range(first, last - context - horizon + 1)]
        assert len(splits[split]) == len(expected)
        batch = splits[split].batch(np.arange(len(expected)))
        whole = torch.cat([batch["past_values"], batch["future_values"]], 1)
        np.testing.assert_allclose(whole, np.stack(expected), atol=1e-5)


def test_naive_forecasts_repeat_the_last_value_and_the_last_period():
    windows = Windows(np.arange(40.0)[:, None], 20, 40, 5, 7)
    origin = 20 + 3  # of window 3
    assert windows.naive(np.array([3]), 1)[0, :, 0].tolist() == [origin - 1] * 7
    assert windows.naive(np.array([3]), 3)[0, :, 0].tolist() == [origin - 3 + t % 3 for t in range(7)]
    periodic = Windows(np.arange(40.0)[:, None] % 3, 20, 40, 5, 7)
    assert naive_errors(periodic, 3) == {"mse": 0, "mae": 0}
    assert naive_errors(periodic, 1)["mae"] > 0
    assert len(windows.take(4)) == 4


def test_naive_forecasts_carry_the_last_value_over_holes_and_their_errors_are_numbers():
    values = np.arange(40.0)[:, None] * [1, -1] + [0, 5]
    values[:24, 1] = values[21:24, 0] = math.nan
    windows = Windows(values, 20, 40, 5, 7)
    assert windows.naive(np.array([4]), 1)[0, 0].tolist() == [20, 0], "there was no second value yet"
    assert windows.naive(np.array([5]), 3)[0, :, 0].tolist() == [20, 20, 24, 20, 20, 24, 20]
    assert windows.naive(np.array([5]), 1)[0, 0].tolist() == [24, 5 - 24]
    assert all(math.isfinite(value) for value in naive_errors(windows, 3).values())
    with pytest.raises(ValueError, match="no value to measure forecasts by"):
        naive_errors(Windows(np.full((40, 2), math.nan), 20, 40, 5, 7), 1)


@torch.no_grad()
def test_errors_are_means_over_all_windows_and_without_the_rest_of_the_last_batch():
    torch.manual_seed(0)
    model = S3ForecastModel(
        S3ForecastConfig(context_length=8, prediction_length=4, num_input_channels=2, hidden_size=8, num_harmonics=2)
    ).eval()
    values = np.random.default_rng(0).normal(size=(40, 2))
    values[30, 0] = math.nan
    windows = Windows(values, 10, 33, 8, 4)  # 20 of them
    metrics = ForecastEvaluation(windows, 6, dropped_batch=8)(model, Accelerator(cpu=True))
    for limit, suffix in ((20, ""), (16, "_without_rest")):
        errors = []
        for i in range(limit):
            batch = windows.batch(np.array([i]))
            error = model(past_values=batch["past_values"]).prediction_outputs - batch["future_values"]
            errors += error[~batch["future_values"].isnan()].tolist()
        assert metrics[f"mse{suffix}"] == pytest.approx(sum(e * e for e in errors) / len(errors), rel=1e-5)
        assert metrics[f"mae{suffix}"] == pytest.approx(sum(map(abs, errors)) / len(errors), rel=1e-5)
    assert metrics["score"] == -metrics["mse"]


def test_scaling_takes_missing_and_constant_values():
    mean, deviation = scaling(np.array([[1.0, 4.0], [math.nan, 4.0], [3.0, 4.0]]))
    assert mean.tolist() == [2, 4]
    assert deviation.tolist() == [1, 1]
    values = np.full((99, 1), 0.1)
    assert scaling(values)[0] != values[0], "a rounded mean, from which every value deviates"
    assert scaling(values)[1] == 1


@pytest.mark.skipif(not REAL.exists(), reason="the benchmark's files are not beside the project")
@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("ettm2", (34_560, 11_520, 11_520)),
        ("exchange", (5311, 760, 1517)),
        ("ili", (676, 97, 193)),
        ("weather", (36_887, 5270, 10_539)),
    ],
)
def test_the_real_files_have_the_protocols_rows(name, rows):
    dataset = FORECAST_DATASETS[name]
    real = read_series(REAL / f"{dataset.file}.gz")
    assert dataset.split_rows(len(real.values)) == rows
    horizon = dataset.horizons[0]
    splits = split_windows(dataset, real, dataset.context_length, horizon)
    assert len(splits["train"]) == rows[0] - dataset.context_length - horizon + 1
    assert [len(splits[name]) for name in ("validation", "test")] == [count - horizon + 1 for count in rows[1:]]


@pytest.mark.parametrize("row", [150, 199])
def test_a_value_too_large_to_compute_with_is_named(row):
    values = np.random.default_rng(0).normal(size=(200, 2))
    values[row, 1] = 1e40
    with pytest.raises(ValueError, match=r"'column 1' is 1e\+40 at 2020-0.*, over 1e\+15 standard deviations"):
        split_windows(ForecastDataset("made.csv", 7), series(values), 4, 2)


def test_a_cut_benchmark_file_is_refused():
    with pytest.raises(ValueError, match=r"ETTm2.csv has 1,000 rows, the benchmark uses 57,600: it is cut"):
        split_windows(FORECAST_DATASETS["ettm2"], series(np.zeros((1000, 7))), 96, 96)
