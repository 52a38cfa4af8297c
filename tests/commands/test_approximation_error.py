"""scripts/approximation_error.py: its errors are those of the definition, its files are there, its mistakes are named."""

import json
import math

import pytest
import torch

from s3bert.analysis.approximation import APPROXIMATIONS, relative_error
from s3bert.commands import approximation_error


def test_errors_fall_with_the_size_of_the_sketch_and_are_kept_with_their_draws(tmp_path):
    words = ["--lengths", "48", "--sizes", "4", "16", "48", "--num_draws", "2", "--output_dir", str(tmp_path)]
    errors = approximation_error.main([*words, "--scale", "0.5"])
    assert list(errors) == list(APPROXIMATIONS), "all of them by default"
    for name in ("skyformer", "nystrom"):
        few, some, all_ = (sum(trial["errors"]) for trial in errors[name])
        assert few > some > all_
    assert json.loads((tmp_path / "all_results.json").read_text())["errors"] == errors
    assert (tmp_path / "errors.png").read_bytes().startswith(b"\x89PNG")
    assert "| performer | 48 |" in (tmp_path / "results.md").read_text()


def test_a_cell_is_the_spectral_norm_of_the_difference_by_its_definition():
    """Nystromformer with a landmark a token is exact but for its iteration: K1 K2^+ K3 of equal matrices."""
    torch.manual_seed(3)
    query, key = torch.randn(2, 1, 1, 12, 8, dtype=torch.float64)
    scores = (query @ key.transpose(2, 3) / math.sqrt(8))[0, 0]
    exact = scores.softmax(1)
    inverse = exact.T / exact.sum(0).max()
    for _ in range(6):
        product = exact @ inverse
        inner = 15 * torch.eye(12) - product @ (7 * torch.eye(12) - product)
        inverse = inverse @ (13 * torch.eye(12) - product @ inner) / 4
    expected = torch.linalg.svdvals(exact @ inverse @ exact - exact)[0] / torch.linalg.svdvals(exact)[0]
    assert relative_error("nystrom", 12, 12, 8, 1.0, 3) == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--mixers", "linformer"], "linformer approximates no matrix; there is skyformer, nystrom, performer"),
        (["--sizes", "1"], "sizes = \\[1\\]: give numbers of at least 2"),
        (["--num_draws", "0"], "num_draws = 0"),
    ],
)
def test_mistakes_are_named_before_anything_is_measured(words, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        approximation_error.main([*words, "--output_dir", str(tmp_path / "new")])
    assert not (tmp_path / "new").exists()
