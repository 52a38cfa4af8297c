"""scripts/report_runs.py: one page of several runs' own folders."""

import json
from pathlib import Path

import numpy as np
import pytest

from s3bert.commands import approximation_error, report_runs, run_forecasting, run_lra
from s3bert.reports.forecasting import forecast_overview
from s3bert.reports.lra import lra_overview
from s3bert.tasks.listops import write_listops


BENCHMARK = Path(__file__).parents[2] / "configs/forecasting/benchmark.yaml"
SMOKE = Path(__file__).parents[2] / "configs/lra/smoke.yaml"


def test_a_page_holds_what_the_runs_wrote_and_copies_of_their_files(tmp_path):
    write_listops(tmp_path / "data/listops", {"train": 16, "val": 8, "test": 8}, min_length=5, max_length=60)
    words = ["--config", str(SMOKE), "--data_dir", str(tmp_path / "data"), "--num_hidden_layers", "1"]
    mixers = tmp_path / "runs/listops-mixers"
    results = run_lra.main([*words, "--mixer", "fourier", "linear:causal=false", "--output_dir", str(mixers)])
    errors = tmp_path / "runs/errors"
    approximation_error.main(["--lengths", "8", "--sizes", "4", "--num_draws", "1", "--output_dir", str(errors)])
    page = report_runs.main(
        ["--runs", str(mixers), str(errors), "--title", "Arena", "--output_dir", str(tmp_path / "page")]
    )
    text = page.read_text()

    tests = [trial["metrics"]["test_accuracy"] for trial in results["variants"]["fourier"]["settings"][0]["trials"]]
    assert f"| fourier | {100 * sum(tests) / len(tests):.2f} ±" in text, "the overview's"
    assert "| fourier, the papers' | 35.33 |" in text
    assert "| linear:causal=false |" in text
    assert "linear, the papers'" not in text, "no paper of these has it"
    assert "## listops: mixers" in text
    assert "## error of approximations" in text
    assert results["complete"]
    for name in (line.split("(")[1].rstrip(")") for line in text.splitlines() if line.startswith("![")):
        assert (page.parent / name).read_bytes().startswith(b"\x89PNG")
    copy = page.parent / "runs/listops-mixers/all_results.json"
    assert json.loads(copy.read_text()) == results
    kept = sorted(str(run) for run in (page.parent / "runs").iterdir())
    report_runs.main(["--runs", *reversed(kept), "--title", "Arena", "--output_dir", str(page.parent)])
    assert page.read_text() == text, "the page again, from its own copies"
    again = mixers.rename(mixers.with_name("once-more"))
    report_runs.main(["--runs", *kept, str(again), "--title", "Arena", "--output_dir", str(page.parent)])
    headings = [line for line in page.read_text().splitlines() if line.startswith("## listops")]
    assert headings == ["## listops: mixers (listops-mixers)", "## listops: mixers (once-more)"]


def lra_run(task: str, **accuracies: float) -> dict:
    """What a run of variants on a task leaves for the overview."""
    variants = {
        label: {"settings": [{"trials": [{"metrics": {"test_accuracy": value}}]}]}
        for label, value in accuracies.items()
    }
    return {"task": task, "comparison": "mixers", "variants": variants}


def test_every_arm_of_every_run_has_a_place_of_its_own_and_a_paper_stands_beside_its_own_settings():
    samples, causal = "s3:num_row_samples=16,num_column_samples=16", "softmax:causal=true"
    runs = {
        "short": lra_run("image", **{"s3": 0.4, samples: 0.41, causal: 0.3}),
        "long": lra_run("image", **{"s3": 0.5}),
        "text": lra_run("text", **{"s3": 0.6}),
    }
    text = lra_overview(runs)
    assert _row(text, "s3 (short)") == ["", "40.00"]
    assert _row(text, "s3 (long)") == ["", "50.00"]
    assert _row(text, samples) == ["", "41.00"]
    assert _row(text, "s3") == ["60.00", ""], "the only one on this task"
    assert _row(text, "s3, the papers'") == ["69.27, best 71.58", "53.90, best 57.73"]
    assert text.count("the papers'") == 1, "none trained causal softmax here"


def forecast_run(**errors: float) -> dict:
    """What a run of forecasts without training leaves for the overview."""
    models = {name: {"mse": error, "mae": error} for name, error in errors.items()}
    return {"dataset": "ili", "context_length": 36, "horizons": {"24": models}}


def test_runs_of_one_series_share_its_row_and_a_model_in_both_is_refused_unless_they_agree():
    runs = {"one": forecast_run(last=2.5, seasonal=3.0), "two": forecast_run(last=2.5, mean=4.0)}
    row = _row(forecast_overview(runs, {"ili": (24, 36, 48, 60)}), "ili, 36 to 24")
    assert row[:3] == ["2.500", "3.000", "4.000"]
    runs["two"] = forecast_run(last=2.6)
    with pytest.raises(ValueError, match="last on ili, 36 to 24 is in the runs one and two with other errors"):
        forecast_overview(runs, {"ili": (24, 36, 48, 60)})


def test_forecasters_stand_beside_the_paper_with_the_variant_that_validation_chose(tmp_path):
    steps = np.arange(966)
    rows = [f"{np.datetime64('2002-01-01') + 7 * step},{np.sin(step / 8):.4f}" for step in steps]
    (tmp_path / "national_illness.csv").write_text("\n".join(["date,OT", *rows]) + "\n")
    tiny = "hidden_size=16,num_hidden_layers=1"
    models = [f"s3:{tiny}", f"s3:{tiny},num_harmonics=0", f"s3:{tiny},channel_independent=true", "last"]
    words = ["--config", str(BENCHMARK), "--dataset_name", "ili", "--data_dir", str(tmp_path), "--horizons", "24", "60"]
    words += ["--max_train_samples", "64", "--num_train_epochs", "2", "--seed", "1", "--model", *models]
    results = run_forecasting.main([*words, "--output_dir", str(tmp_path / "runs/ili")])["horizons"]
    arguments = ["--runs", str(tmp_path / "runs/ili"), "--title", "Forecasts", "--output_dir", str(tmp_path / "page")]
    text = report_runs.main(arguments).read_text()
    for place, horizon in enumerate(("24", "60")):
        trained = [results[horizon][model]["settings"][0]["trials"][0]["metrics"] for model in models[:2]]
        best = min(trained, key=lambda metrics: metrics["mse"])
        mixed, _, last, paper, _ = (float(cell) for cell in _row(text, f"ili, 36 to {horizon}"))
        assert mixed == round(best["test_mse"], 3)
        assert last == round(results[horizon]["last"]["mse"], 3)
        assert paper == (2.431, 2.425)[place]
        assert f"**{best['mse']:.4f}**" in text, "what was tried is told, and what was chosen"
    under = sum(
        float(_row(text, f"ili, 36 to {horizon}")[0]) <= float(_row(text, f"ili, 36 to {horizon}")[2])
        for horizon in (24, 60)
    )
    assert _row(text, "s3")[2] == f"{under} of 2", "how often S3 is at or under the last value"


def _row(text: str, label: str) -> list[str]:
    """The cells of the first table row of that label."""
    line = next(line for line in text.splitlines() if line.startswith(f"| {label} |"))
    return [cell.strip() for cell in line.strip("|").split("|")[1:]]


def test_a_folder_that_is_no_ended_run_is_named(tmp_path):
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    for file in report_runs.FILES:
        (unfinished / file).write_text('{"complete": false}')
    with pytest.raises(ValueError, match="runs: unfinished has not come to its end; its command, given again, goes on"):
        report_runs.main(["--runs", str(unfinished), "--title", "Nothing", "--output_dir", str(tmp_path / "page")])
    assert not (tmp_path / "page").exists()
    with pytest.raises(ValueError, match=r"runs: .*nothing has no all_results.json"):
        report_runs.ReportArguments([str(tmp_path / "nothing")], "Nothing", "page")
