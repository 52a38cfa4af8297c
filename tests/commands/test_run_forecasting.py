"""scripts/run_forecasting.py: every forecaster on a made series, tables, plots, no run twice, and errors."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoModel

from s3bert.commands import run_forecasting


BENCHMARK = Path(__file__).parents[2] / "configs/forecasting/benchmark.yaml"
MODELS = [
    "s3:hidden_size=16,num_hidden_layers=1",
    "s3:channel_independent=true,hidden_size=16",
    "dlinear",
    "last",
    "seasonal",
]
MODELS += ["patchtst:patch_length=4,patch_stride=4,d_model=16,num_attention_heads=2,num_hidden_layers=1,ffn_dim=16"]


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """A noisy sine under the name of ILI, whose splits are shares of the file."""
    folder, generator = tmp_path_factory.mktemp("series"), np.random.default_rng(0)
    steps = np.arange(300)
    values = np.stack([np.sin(2 * np.pi * steps / 12), np.cos(2 * np.pi * steps / 6)], 1) + 0.1 * generator.normal(
        size=(300, 2)
    )
    rows = [f"{np.datetime64('2020-01-01') + step},{one:.4f},{two:.4f}" for step, (one, two) in zip(steps, values)]
    (folder / "national_illness.csv").write_text("\n".join(["date,one,OT", *rows]) + "\n")
    return folder


def run(data: Path, output_dir: Path, *words: str) -> dict:
    common = [
        "--config",
        str(BENCHMARK),
        "--dataset_name",
        "ili",
        "--data_dir",
        str(data),
        "--output_dir",
        str(output_dir),
    ]
    return run_forecasting.main([*common, "--context_length", "24", "--num_train_epochs", "2", *words])


def test_every_forecaster_is_trained_once_and_tabled(data, tmp_path):
    words = ["--horizons", "6", "12", "--seed", "1", "2", "--model", *MODELS]
    results = run(data, tmp_path, *words)
    for horizon in ("6", "12"):
        assert list(results["horizons"][horizon]) == MODELS
        for model in MODELS[:3]:
            trials = results["horizons"][horizon][model]["settings"][0]["trials"]
            assert [trial["seed"] for trial in trials] == [1, 2]
            for trial in trials:
                assert trial["metrics"]["test_mse"] > 0
                assert "test_mae_without_rest" in trial["metrics"]
                losses = [record["eval_mse"] for record in trial["history"]]
                assert trial["metrics"]["mse"] == min(losses), "it ends with its best weights"
    table = (tmp_path / "results.md").read_text()
    assert all(f"| {model} |" in table for model in MODELS)
    changes = [
        abs(trial["metrics"]["test_mse_without_rest"] / trial["metrics"]["test_mse"] - 1)
        for found in results["horizons"].values()
        for result in found.values()
        for trial in result.get("settings", [{"trials": []}])[0]["trials"]
    ]
    assert re.search(rf"by [+-]{100 * max(changes):.1f}% where", table), "what the last incomplete batch changes"
    assert "the paper's" not in table, "the benchmark has no such horizons"
    assert (tmp_path / "forecasts.png").read_bytes().startswith(b"\x89PNG")
    times = {file: file.stat().st_mtime_ns for file in tmp_path.glob("*/horizon-*/trials/*/results.json")}
    assert len(times) == 2 * 2 * 4
    assert run(data, tmp_path, *words) == results
    assert times == {file: file.stat().st_mtime_ns for file in times}
    (folder,) = {file.parent for file in (tmp_path / "dlinear/horizon-6").glob("trials/*/model.safetensors")}
    assert json.loads((folder / "config.json").read_text())["context_length"] == 24
    s3 = next(tmp_path.glob("s3-hidden_size-16*/horizon-6/trials/*/model.safetensors")).parent
    assert AutoModel.from_pretrained(s3).config.prediction_length == 6


def test_cells_of_another_dataset_and_of_other_values_are_not_taken(data, tmp_path):
    words = ["--horizons", "6", "--model", "dlinear", "--num_train_epochs", "1"]
    rows = (data / "national_illness.csv").read_text()
    (tmp_path / "national_illness.csv").write_text(rows)
    (tmp_path / "exchange_rate.csv").write_text(rows)
    run(tmp_path, tmp_path / "out", *words)
    with pytest.raises(ValueError, match="dataset_name: 'ili' -> 'exchange'"):
        run(tmp_path, tmp_path / "out", *words, "--dataset_name", "exchange")
    last = rows.rindex(",")
    (tmp_path / "national_illness.csv").write_text(rows[:last] + ",0.5\n")
    with pytest.raises(ValueError, match="checksum: "):
        run(tmp_path, tmp_path / "out", *words)


@pytest.mark.parametrize(("name", "file"), [("electricity", "electricity.csv"), ("traffic", "traffic.csv")])
def test_files_in_the_layout_of_electricity_and_traffic_are_read(tmp_path, name, file):
    """Hours in ascending order, variables numbered, OT last; the last value's error is recomputed from the rows."""
    values = np.random.default_rng(0).normal(3, 2, (120, 4))
    hours = np.datetime64("2016-07-01T02") + np.arange(120)
    rows = [
        f"{str(hour).replace('T', ' ')}:00:00,{','.join(map(repr, row.tolist()))}" for hour, row in zip(hours, values)
    ]
    (tmp_path / file).write_text("\n".join(["date,0,1,2,OT", *rows]) + "\n")
    words = ["--dataset_name", name, "--horizons", "6", "--model", "last", "dlinear", "--num_train_epochs", "1"]
    results = run(tmp_path, tmp_path / "out", *words)["horizons"]["6"]
    scaled = (values - values[:84].mean(0)) / values[:84].std(0)
    errors = [scaled[first : first + 6] - scaled[first - 1] for first in range(96, 120 - 6 + 1)]
    assert results["last"]["mse"] == pytest.approx(np.square(errors).mean(), rel=1e-5)
    assert results["last"]["mae"] == pytest.approx(np.abs(errors).mean(), rel=1e-5)
    assert results["dlinear"]["eval_test_mse"] > 0


def test_the_papers_rows_stand_beside_the_benchmarks_context_and_horizons(data, tmp_path):
    run(data, tmp_path, "--horizons", "24", "--model", "last", "--context_length", "36")
    assert "| S3Attention, the paper's | 2.431 / 0.997 |" in (tmp_path / "results.md").read_text()


def test_empty_cells_are_refused_for_forecasters_that_take_none(data, tmp_path):
    rows = (data / "national_illness.csv").read_text().splitlines()
    rows[100] = f"{rows[100].split(',')[0]},,1"
    (tmp_path / "national_illness.csv").write_text("\n".join(rows))
    words = ["--horizons", "6", "--seed", "1", "--model", "last", MODELS[0]]
    assert run(tmp_path, tmp_path / "out", *words)["complete"]
    with pytest.raises(ValueError, match=r"national_illness.csv has empty cells, and dlinear takes none"):
        run(tmp_path, tmp_path / "out", *words, "dlinear")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--dataset_name", "etm2"], "There is no dataset 'etm2', only ettm2.*Did you mean ettm2"),
        (["--model", "s4"], "There is no forecaster 's4', only s3"),
        (
            ["--model", "s3:num_harmonic=2"],
            "S3ForecastConfig has no field 'num_harmonic'.*Did you mean num_harmonics",
        ),
        (["--model", "last:period=2"], "last has no settings"),
        (["--model", "last", "last"], "one is named twice"),
        (["--context_length", "-5"], "context_length = -5: must be at least 1"),
        (["--max_train_samples", "0"], "max_train_samples = 0: must be at least 1"),
        (["--horizons", "0"], "horizons = 0: must be at least 1"),
        (["--horizons", "200", "--model", "last"], "hold no window of 24 \\+ 200"),
        (["--dataset_name", "traffic", "--model", "last"], "traffic.csv is not there, nor packed: --data_dir"),
    ],
)
def test_mistakes_are_named(data, tmp_path, words, message, capsys):
    with pytest.raises((ValueError, FileNotFoundError, SystemExit), match=message) as error:
        run(data, tmp_path, *words)
    assert error.type is not SystemExit
