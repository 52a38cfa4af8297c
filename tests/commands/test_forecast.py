"""scripts/forecast.py: a CSV file in, forecasts out; dates of any step, order and holes; and errors."""

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from children import Child

from s3bert.commands import forecast
from s3bert.models.modeling_forecast import S3ForecastModel
from s3bert.tasks.series import Series, future_dates, read_series, regularize


def write(file: Path, dates: pd.DatetimeIndex, seed: int = 0, **columns: np.ndarray) -> Path:
    turns = 2 * np.pi * np.arange(len(dates)) / 12
    columns = {
        "sine": np.sin(turns) + 0.05 * np.random.default_rng(seed).normal(size=len(dates)),
        "flat": 7.0,
    } | columns
    pd.DataFrame(columns, index=pd.Index(dates, name="when")).to_csv(file)
    return file


def run(file: Path, output_dir: Path, *words: str) -> pd.DataFrame:
    common = ["--csv_file", str(file), "--output_dir", str(output_dir), "--num_train_epochs", "2", "--hidden_size", "8"]
    return forecast.main([*common, *words])


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A forecaster of 6 hours ahead and its forecast."""
    folder = tmp_path_factory.mktemp("forecast")
    file = write(folder / "series.csv", pd.date_range("2024-02-28", periods=150, freq="h"))
    run(file, folder / "model", "--prediction_length", "6")
    return folder


def test_a_forecast_has_the_next_dates_all_columns_and_a_picture(folder):
    written = pd.read_csv(folder / "model/forecast.csv", parse_dates=["date"], index_col="date")
    assert list(written.columns) == ["sine", "flat"]
    assert list(written.index) == list(pd.date_range("2024-02-28", periods=156, freq="h")[150:])
    assert np.isfinite(written.to_numpy()).all()
    assert np.allclose(written["flat"], 7, atol=0.5), "a constant series goes on"
    assert (folder / "model/forecast.png").read_bytes().startswith(b"\x89PNG")


def test_a_saved_model_forecasts_later_rows(folder, tmp_path):
    later = write(tmp_path / "later.csv", pd.date_range("2024-03-10", periods=20, freq="h"), seed=1)
    result = run(later, tmp_path / "out", "--model_name_or_path", str(folder / "model"))
    assert result.index[0] == pd.Timestamp("2024-03-10 20:00")
    assert len(result) == 6
    assert not (tmp_path / "out/model.safetensors").exists()


def test_neither_the_series_nor_what_others_wrote_is_replaced(folder, tmp_path):
    file = tmp_path / "forecast.csv"
    file.write_bytes((folder / "series.csv").read_bytes())
    before = file.read_bytes()
    with pytest.raises(ValueError, match=r"forecast.csv would be replaced by the forecast: name another --output_dir"):
        run(file, tmp_path)
    assert file.read_bytes() == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "README.md").write_text("mine")
    with pytest.raises(ValueError, match=r"has README\.md, which no such run wrote"):
        run(folder / "series.csv", tmp_path / "mine")


def test_training_again_gives_the_same_and_never_another_series_weights(folder, tmp_path):
    before = (folder / "model/forecast.csv").read_bytes()
    run(folder / "series.csv", folder / "model", "--prediction_length", "6")
    assert (folder / "model/forecast.csv").read_bytes() == before
    other = write(tmp_path / "other.csv", pd.date_range("2024-02-28", periods=150, freq="h"), seed=5)
    with pytest.raises(ValueError, match=r"was trained with other settings than this call's, .*checksum: "):
        run(other, folder / "model", "--prediction_length", "6")


def test_settings_that_cannot_be_are_told_in_a_line_and_do_not_claim_the_folder(folder, tmp_path):
    words = ["--csv_file", str(folder / "series.csv"), "--output_dir", str(tmp_path), "--hidden_size", "10"]
    outcome = Child("forecast", words, tmp_path).wait()
    assert (outcome.status, outcome.problem) == (1, None)
    assert (
        outcome.error
        == "error: hidden_size = 10 cannot be split into num_attention_heads = 4 equal heads: choose a divisor of 10, for example one of [1, 2, 5, 10], or another hidden_size."
    )
    run(folder / "series.csv", tmp_path, "--prediction_length", "6")  # the corrected call


def test_order_holes_and_empty_cells_change_nothing_but_what_is_missing(folder, tmp_path):
    """Shuffled rows give the same forecast to the last digit, and so do rows left out and the same rows with empty cells."""
    table = pd.read_csv(folder / "series.csv")
    holey = table.drop([141, 142])
    holey.loc[145, "flat"] = np.nan
    emptied = table.astype({"flat": float})
    emptied.loc[[141, 142], ["sine", "flat"]] = emptied.loc[145, "flat"] = np.nan
    tables = {"shuffled": table.sample(frac=1, random_state=0), "holey": holey.sample(frac=1, random_state=0)}
    found = {"whole": run(folder / "series.csv", tmp_path / "whole", "--model_name_or_path", str(folder / "model"))}
    for name, rows in (tables | {"emptied": emptied}).items():
        rows.to_csv(tmp_path / f"{name}.csv", index=False)
        found[name] = run(tmp_path / f"{name}.csv", tmp_path / name, "--model_name_or_path", str(folder / "model"))
    pd.testing.assert_frame_equal(found["shuffled"], found["whole"], check_exact=True)
    pd.testing.assert_frame_equal(found["holey"], found["emptied"], check_exact=True)
    assert not found["holey"].equals(found["whole"])


def test_values_stay_with_their_dates_whatever_the_order(tmp_path):
    dates = pd.date_range("2024-02-28", periods=50, freq="h")
    rows = pd.DataFrame({"when": dates, "hours": np.arange(50.0)}).drop([7, 20, 21]).sample(frac=1, random_state=0)
    rows.to_csv(tmp_path / "shuffled.csv", index=False)
    series, _ = regularize(read_series(tmp_path / "shuffled.csv"))
    assert list(series.dates) == list(dates)
    expected = [math.nan if hour in (7, 20, 21) else hour for hour in range(50)]
    np.testing.assert_array_equal(series.values[:, 0], expected)


def test_day_first_dates_and_local_times_over_the_end_of_daylight_saving_are_forecast(folder, tmp_path, caplog):
    table = pd.read_csv(folder / "series.csv")
    hours = pd.date_range("2024-10-24", periods=150, freq="h", tz="Europe/Berlin")
    words = ["--model_name_or_path", str(folder / "model")]
    with caplog.at_level("INFO"):
        table.assign(when=[hour.isoformat() for hour in hours]).to_csv(tmp_path / "local.csv", index=False)
        result = run(tmp_path / "local.csv", tmp_path / "local", *words)
    assert "several offsets from UTC (+01:00, +02:00): they are read as UTC" in caplog.text
    assert list(result.index) == list(pd.date_range(hours[-1].tz_convert("UTC"), periods=7, freq="h")[1:])
    days = pd.date_range("2024-03-01", periods=150, freq="h")
    table.assign(when=days.strftime("%d/%m/%Y %H:%M")).to_csv(tmp_path / "days.csv", index=False)
    result = run(tmp_path / "days.csv", tmp_path / "days", *words, "--date_format", "%d/%m/%Y %H:%M")
    assert list(result.index) == list(pd.date_range(days[-1], periods=7, freq="h")[1:])


def same_days(months: int, day: int) -> list[pd.Timestamp]:
    """Dates so many months apart, on that day of the month or, where it has none, on its last."""
    starts = [pd.Timestamp("1990-02-01 12:00") + pd.DateOffset(months=months * number) for number in range(63)]
    return [start.replace(day=min(day, start.days_in_month)) for start in starts]


OF_PANDAS = [
    "15min",
    "90min",
    "h",
    "D",
    "2D",
    "B",
    "W-SUN",
    "2W-SUN",
    "MS",
    "ME",
    "BME",
    "QS-JAN",
    "QE-FEB",
    "YS-JAN",
    "10s",
]
SAME_DAYS = [(1, 15), (1, 30), (1, 31), (2, 29), (3, 15), (6, 1), (12, 15), (12, 29)]
STEPS = {step: list(pd.date_range("2020-01-05", periods=63, freq=step)) for step in OF_PANDAS}
STEPS |= {f"{months} months, day {day}": same_days(months, day) for months, day in SAME_DAYS}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("holes", [(), (20, 21, 22, 41), range(2, 58, 3)], ids=["whole", "holes", "holes everywhere"])
def test_any_step_is_found_and_has_one_name_with_and_without_holes(step, holes):
    dates = pd.DatetimeIndex(STEPS[step])
    kept = [place for place in range(60) if place not in holes]
    if step == "BME" and len(holes) > 10:
        pytest.skip("a month's last working day is only found where eight in a row are there")
    series = Series(np.arange(60.0)[kept, None], ["a"], pd.Series(dates[kept]))
    whole, found = regularize(series)
    assert list(whole.dates) == list(dates[:60])
    np.testing.assert_array_equal(whole.values[:, 0], [place if place in kept else math.nan for place in range(60)])
    assert list(future_dates(whole.dates, found, 3)) == list(dates[60:])
    assert found == regularize(Series(np.zeros((60, 1)), ["a"], pd.Series(dates[:60])))[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: pd.concat([t, t.iloc[[3]]]), "The date 2024-02-28 03:00:00 stands in 2 rows.*offset"),
        (
            lambda t: t.assign(when=t["when"].replace("2024-02-28 05:00:00", "2024-02-28 05:20:00")),
            "lie at no regular steps",
        ),
        (
            lambda t: t.assign(sine=t["sine"].astype(str).replace(t["sine"].astype(str)[4], "many")),
            "line 6: 'many' in column 'sine'",
        ),
        (
            lambda t: t.assign(sine=t["sine"].where(t.index < 110)),
            r"'sine' has no value from 2024-03-04 00:00:00 to 2024-03-05 05:00:00, the rows held out to measure by",
        ),
        (lambda t: t.assign(sine=t["sine"].where(t.index > 130)), "'sine' has no value .* the rows to train on"),
        (lambda t: t.assign(**{"": ""}), "'Unnamed: 3' has no value .* the rows to train on"),
        (lambda t: t.rename(columns={"flat": "date"}), "the column 'date' is one to forecast, and forecast.csv has"),
        (lambda t: t.head(2), "The series has 2 rows"),
        (lambda t: t.head(30), "The series has 30 rows; to read 48 steps, forecast 24 and hold 24 out, 96 are needed"),
    ],
)
def test_what_is_wrong_with_a_series_is_named(folder, tmp_path, change, message):
    change(pd.read_csv(folder / "series.csv")).to_csv(tmp_path / "wrong.csv", index=False)
    with pytest.raises(ValueError, match=message):
        run(tmp_path / "wrong.csv", tmp_path / "out")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--columns", "sine"], "columns: .* was trained with \\['sine', 'flat'\\], not \\['sine'\\]"),
        (["--prediction_length", "7"], "prediction_length: .* was trained with 6, not 7"),
        (["--columns", "cosine"], "has no column 'cosine'; there is when, sine, flat"),
    ],
)
def test_a_model_for_something_else_is_named(folder, tmp_path, words, message):
    with pytest.raises(ValueError, match=message):
        run(folder / "series.csv", tmp_path / "out", "--model_name_or_path", str(folder / "model"), *words)


def test_a_model_that_would_read_nothing_of_a_column_is_not_asked(folder, tmp_path):
    table = pd.read_csv(folder / "series.csv")
    table.assign(flat=table["flat"].where(table.index < 138)).to_csv(tmp_path / "blank.csv", index=False)
    words = ["--model_name_or_path", str(folder / "model")]
    with pytest.raises(ValueError, match=r"'flat' has no value .* the rows that the forecast reads\. .*--columns"):
        run(tmp_path / "blank.csv", tmp_path / "out", *words)
    with pytest.raises(ValueError, match=r"'flat' has no value .* the rows that the forecast reads"):
        run(tmp_path / "blank.csv", tmp_path / "out", "--prediction_length", "12", "--context_length", "12")


def test_errors_of_a_series_with_holes_are_numbers(folder, tmp_path):
    table = pd.read_csv(folder / "series.csv")
    table.drop(range(125, 135)).to_csv(tmp_path / "holey.csv", index=False)
    run(tmp_path / "holey.csv", tmp_path / "out", "--prediction_length", "6")
    errors = json.loads((tmp_path / "out/errors.json").read_text())
    assert np.isfinite(list(errors.values())).all()


def test_a_value_too_large_to_compute_with_is_named_wherever_it_stands(folder, tmp_path):
    """1e30 fits into float32, its square does not."""
    table = pd.read_csv(folder / "series.csv")
    file, train = tmp_path / "large.csv", ["--prediction_length", "6"]
    load = ["--model_name_or_path", str(folder / "model")]
    overflows = r"line {}: '1e\+308' in column 'sine' is too large"
    too_far = r"'sine' is 1e\+30 at {}, over 1e\+15 standard deviations"
    for row, value, words, message in (
        (3, 1e308, train, overflows),  # of the rows trained on
        (149, 1e308, load, overflows),
        (130, 1e30, train, too_far),  # of the rows held out
        (149, 1e30, train, too_far),
        (149, 1e30, load, too_far),
    ):
        table.assign(sine=table["sine"].where(table.index != row, value)).to_csv(file, index=False)
        with pytest.raises(ValueError, match=message.format(row + 2 if value > 1e100 else table["when"][row])):
            run(file, tmp_path / "out", *words)
        assert not (tmp_path / "out").exists()


def test_a_cell_beside_which_all_others_are_alike_is_told(folder, tmp_path, caplog):
    table = pd.read_csv(folder / "series.csv")
    table.loc[3, "sine"] = 1e30
    table.to_csv(tmp_path / "outlier.csv", index=False)
    run(tmp_path / "outlier.csv", tmp_path / "out", "--prediction_length", "6")
    (warning,) = [record.message for record in caplog.records if "alike to the model" in record.message]
    assert warning.startswith("Column 'sine' is 1e+30 at 2024-02-28 03:00:00: beside that"), "and 'flat' is constant"


def test_the_largest_values_allowed_give_finite_forecasts_and_errors(folder, tmp_path):
    table = pd.read_csv(folder / "series.csv")
    table.loc[[135, 149], "sine"] = 4e14
    table.assign(huge=[1e100, -1e100] * 75).to_csv(tmp_path / "large.csv", index=False)
    assert np.isfinite(run(tmp_path / "large.csv", tmp_path / "out", "--prediction_length", "6")).all(axis=None)
    assert np.isfinite(list(json.loads((tmp_path / "out/errors.json").read_text()).values())).all()


def test_a_name_with_a_dollar_sign_is_drawn_as_it_is(folder, tmp_path):
    table = pd.read_csv(folder / "series.csv").rename(columns={"sine": r"$\no{$"})
    table.to_csv(tmp_path / "dollars.csv", index=False)
    result = run(tmp_path / "dollars.csv", tmp_path / "out", "--prediction_length", "6")
    assert list(result.columns) == [r"$\no{$", "flat"]
    assert (tmp_path / "out/forecast.png").read_bytes().startswith(b"\x89PNG")


def test_a_damaged_model_writes_no_forecast(folder, tmp_path):
    model = S3ForecastModel.from_pretrained(folder / "model")
    model.config.channel_deviations[1] = math.inf
    model.save_pretrained(tmp_path / "model")
    with pytest.raises(ValueError, match=r"The forecast of column 'flat' is (nan|-?inf) in row 1: .* Train it again"):
        run(folder / "series.csv", tmp_path / "out", "--model_name_or_path", str(tmp_path / "model"))
    assert not (tmp_path / "out").exists()


def test_a_short_series_for_a_saved_model_is_named(folder, tmp_path):
    short = write(tmp_path / "short.csv", pd.date_range("2024-03-10", periods=5, freq="h"))
    with pytest.raises(ValueError, match=r"The series has 5 rows, .* reads 12"):
        run(short, tmp_path / "out", "--model_name_or_path", str(folder / "model"))
