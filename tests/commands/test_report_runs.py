"""scripts/report_runs.py: finished runs become an experiment's results, page, plot and line of the index."""

import json
from pathlib import Path

import numpy as np
import pytest

from s3bert.commands import pretrain_mlm, report_runs, run_forecasting, run_lra
from s3bert.reports.forecasting import forecast_overview
from s3bert.tasks.listops import write_listops


BENCHMARK = Path(__file__).parents[2] / "configs/forecasting/benchmark.yaml"
SMOKE = Path(__file__).parents[2] / "configs/lra/smoke.yaml"


def report(folder: Path, *words: object) -> str:
    return report_runs.main(["--results_dir", str(folder), *map(str, words)]).read_text(encoding="utf-8")


def test_runs_are_added_and_the_page_is_regenerated_without_them(tmp_path):
    write_listops(tmp_path / "data/listops", {"train": 16, "val": 8, "test": 8}, min_length=5, max_length=60)
    words = ["--config", str(SMOKE), "--data_dir", str(tmp_path / "data"), "--num_hidden_layers", "1"]
    mixers, errors = tmp_path / "runs/mixers", tmp_path / "runs/errors"
    results = run_lra.main([*words, "--mixer", "fourier", "linear:causal=false", "--output_dir", str(mixers)])
    points = {"skyformer": [{"length": 8, "size": 4, "mean": 0.5, "std": 0.1, "count": 3}]}
    content = {"title": "errors", "description": "Of what.", "errors": {"trained": points, "first values": points}}
    errors.mkdir(parents=True)
    (errors / "all_results.json").write_text(json.dumps(content))
    (errors / "arguments.yaml").write_text("lengths: [8]\n")
    folder = tmp_path / "results/listops"
    text = report(folder, "--title", "ListOps", "--add", mixers)
    tests = [trial["metrics"]["test_accuracy"] for trial in results["variants"]["fourier"]["settings"][0]["trials"]]
    assert f"| {100 * sum(tests) / len(tests):.2f} ±" in text
    assert "## mixers" in text
    assert "| fourier | 35.33 (S3Attention, Table 1) |" in text, "the paper's, apart from so short a run"
    assert "| linear:causal=false | " not in text[text.index("## The papers") :], "no paper of these has it"
    kept = json.loads((folder / "results.json").read_text())["runs"]["mixers"]
    assert {name: kept[name] for name in results} == results
    assert kept["arguments"]["num_hidden_layers"] == 1
    assert (folder / "results.png").read_bytes().startswith(b"\x89PNG")
    (tmp_path / "README.md").write_text("# My project\n")
    with pytest.raises(
        ValueError, match=r"README.md is no index of experiments, .*: name a --results_dir two levels down"
    ):
        report(tmp_path / "errors", "--title", "Errors", "--add", errors)
    assert (tmp_path / "README.md").read_text() == "# My project\n"
    report(tmp_path / "results/errors", "--title", "Errors", "--add", errors)
    (folder / "results.md").unlink()
    assert report(folder) == text, "from results.json alone"
    index = (tmp_path / "results/README.md").read_text()
    assert index.index("[Errors](errors/results.md)") < index.index("[ListOps](listops/results.md)")
    with pytest.raises(ValueError, match="errors holds errors, the experiment's runs hold variants"):
        report(folder, "--add", errors)
    assert (folder / "results.md").read_text() == text


def test_pretrainings_stand_side_by_side_with_where_each_came_from(tmp_path):
    first, taught = tmp_path / "first", tmp_path / "taught"
    words = ["--max_train_steps", "2", "--eval_steps", "1", "--max_eval_blocks", "4", "--report_to", "none"]
    size = "num_hidden_layers=1,hidden_size=16,num_attention_heads=2,intermediate_size=32,max_position_embeddings=32"
    model = ["--model_type", "bert", "--config_overrides", size, "--vocab_size", "300", "--max_seq_length", "32"]
    pretrain_mlm.main([*words, *model, "--dataset_name", "synthetic", "--output_dir", str(first)])
    start = ["--model_name_or_path", str(first), "--teacher_name_or_path", str(first)]
    pretrain_mlm.main([*words, *start, "--dataset_name", str(first / "corpus"), "--output_dir", str(taught)])
    folder = tmp_path / "results/pretrained"
    text = report(folder, "--title", "Pretrained", "--add", first, taught)
    runs = json.loads((folder / "results.json").read_text())["runs"]
    losses = [f"{run['eval_loss']:.3f}" for run in runs.values()]
    rows = [_row(text, "first"), _row(text, "taught")]
    card = (taught / "README.md").read_text()
    assert "on synthetic, continued from first, teacher first. Losses" in card
    assert [row[1:3] for row in rows] == [["random weights", "none"], ["first", "first"]]
    assert [row[-2] for row in rows] == losses
    assert [[record["step"] for record in run["log"] if "eval_loss" in record] for run in runs.values()] == [[1, 2]] * 2
    assert (folder / "results.png").read_bytes().startswith(b"\x89PNG")
    assert f"held-out loss {min(losses)} (" in (tmp_path / "results/README.md").read_text()
    assert "not to be compared" not in text
    runs["taught"]["unigram_entropy"] += 1
    (folder / "results.json").write_text(json.dumps({"title": "", "findings": [], "runs": runs}))
    assert "not to be compared" in report(folder)


def test_an_experiment_begins_with_a_title_and_a_run(tmp_path):
    with pytest.raises(ValueError, match=r"has no results.json: begin an experiment with --title and --add"):
        report(tmp_path / "new", "--title", "Nothing")
    (tmp_path / "results.json").write_text("{}")
    with pytest.raises(ValueError, match=r"has one, in its results.json; change it there"):
        report(tmp_path, "--title", "Other")


def forecast_run(context_length: int = 36, **errors: float) -> dict:
    """What a run of forecasts without training leaves for the overview."""
    models = {name: {"mse": error, "mae": error} for name, error in errors.items()}
    return {"dataset": "ili", "context_length": context_length, "horizons": {"24": models}}


def test_runs_of_one_series_share_its_row_and_a_model_in_both_is_refused_unless_they_agree():
    runs = {"one": forecast_run(last=2.5, seasonal=3.0), "two": forecast_run(last=2.5, mean=4.0)}
    row = _row(forecast_overview(runs), "ili, 36 to 24")
    assert row[:3] == ["2.500", "3.000", "4.000"]
    runs["two"] = forecast_run(last=2.6)
    with pytest.raises(ValueError, match="last on ili, 36 to 24 is in the runs one and two with other errors"):
        forecast_overview(runs)


def test_a_paper_stands_beside_forecasts_of_its_own_context():
    """The journal's for 36 weeks, the preprint's for 60, FEDformer's for 36 alone; none for another."""
    runs = {str(length): forecast_run(length, last=2.5) for length in (36, 60, 96)}
    text = forecast_overview(runs)
    assert _row(text, "ili, 36 to 24") == ["2.500", "2.431", "2.203"]
    assert _row(text, "ili, 60 to 24") == ["2.500", "2.185", ""]
    assert _row(text, "ili, 96 to 24") == ["2.500", "", ""]


def test_forecasters_stand_beside_the_paper_with_the_variant_that_validation_chose(tmp_path):
    steps = np.arange(966)
    rows = [f"{np.datetime64('2002-01-01') + 7 * step},{np.sin(step / 8):.4f}" for step in steps]
    (tmp_path / "national_illness.csv").write_text("\n".join(["date,OT", *rows]) + "\n")
    tiny = "hidden_size=16,num_hidden_layers=1"
    models = [f"s3:{tiny}", f"s3:{tiny},num_harmonics=0", f"s3:{tiny},channel_independent=true", "last"]
    words = ["--config", str(BENCHMARK), "--dataset_name", "ili", "--data_dir", str(tmp_path), "--horizons", "24", "60"]
    words += ["--max_train_samples", "64", "--num_train_epochs", "2", "--seed", "1", "--model", *models]
    results = run_forecasting.main([*words, "--output_dir", str(tmp_path / "runs/ili")])["horizons"]
    text = report(tmp_path / "results/ili", "--title", "Forecasts", "--add", tmp_path / "runs/ili")
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
