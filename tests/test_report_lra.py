"""scripts/report_lra.py: one page of several runs' own folders."""

import json
from pathlib import Path

import approximation_error
import pytest
import report_lra
import run_lra

from s3bert.tasks.listops import write_listops


SMOKE = Path(__file__).parents[1] / "configs/lra/smoke.yaml"


def test_a_page_holds_what_the_runs_wrote_and_copies_of_their_files(tmp_path):
    write_listops(tmp_path / "data/listops", {"train": 16, "val": 8, "test": 8}, min_length=5, max_length=60)
    words = ["--config", str(SMOKE), "--data_dir", str(tmp_path / "data"), "--num_hidden_layers", "1"]
    mixers = tmp_path / "runs/listops-mixers"
    results = run_lra.main([*words, "--mixer", "fourier", "linear:causal=false", "--output_dir", str(mixers)])
    errors = tmp_path / "runs/errors"
    approximation_error.main(["--lengths", "8", "--sizes", "4", "--num_draws", "1", "--output_dir", str(errors)])
    page = report_lra.main(["--runs", str(mixers), str(errors), "--output_dir", str(tmp_path / "page")])
    text = page.read_text()

    tests = [cell["metrics"]["test_accuracy"] for cell in results["arms"]["fourier"]["settings"][0]["cells"]]
    assert f"| fourier | {100 * sum(tests) / len(tests):.2f} ±" in text, "the overview's"
    assert "| fourier, the papers' | 35.33 |" in text
    assert "| linear |" in text
    assert "| linear, the papers' |" not in text, "no paper of these has it"
    assert "## listops: mixers" in text
    assert "## error of approximations" in text
    for name in (line.split("(")[1].rstrip(")") for line in text.splitlines() if line.startswith("![")):
        assert (page.parent / name).read_bytes().startswith(b"\x89PNG")
    copy = page.parent / "runs/listops-mixers/all_results.json"
    assert json.loads(copy.read_text()) == results


def test_a_folder_that_is_no_ended_run_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"runs: .*nothing has no all_results.json"):
        report_lra.ReportArguments([str(tmp_path / "nothing")], "page")
