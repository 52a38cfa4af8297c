"""Scores of GLUE beside one another: what may be said of a difference, and a page of several runs."""

import pytest

from s3bert.reports.glue import glue_headline, glue_sections, plot_glue, verdict


def test_a_difference_within_the_spread_is_no_win():
    """The spread is Student's: with three seeds 4.303 standard errors, and one lucky deviation makes no win."""
    assert "within the spread of 6.57:" in verdict("a", "b", [0.80, 0.82, 0.84], [0.79, 0.82, 0.82])
    twelve = [0.80, 0.82] * 6  # 2.201 standard errors
    assert "within the spread of 0.94:" in verdict("a", "b", twelve, twelve)
    assert "+0.80 points, within the spread" in verdict("a", "b", [0.485, 0.486, 0.487], [0.472, 0.478, 0.484])
    assert "a is ahead of b by 10.00 points" in verdict("a", "b", [0.90, 0.91, 0.92], [0.80, 0.81, 0.82])
    assert "a is behind b" in verdict("a", "b", [0.80, 0.81, 0.82], [0.90, 0.91, 0.92])
    assert "no verdict" in verdict("a", "b", [0.9], [0.8])


def finetuned(start: str, **scores: list[float]) -> dict:
    """A run of `s3bert glue` on several tasks."""
    return {
        "tasks": {
            task: {
                "task": task,
                "started_from": start,
                "not_the_official_data": ["8 of 10 train rows"] * (task == "rte"),
                "settings": [
                    {
                        "name": "lr0.001",
                        "trials": [
                            {"seed": seed, "score": score, "metrics": {"accuracy": score}}
                            for seed, score in enumerate(of_task)
                        ],
                    }
                ],
            }
            for task, of_task in scores.items()
        }
    }


def test_runs_stand_beside_the_first_one_with_the_interval_of_their_differences(tmp_path):
    runs = {
        "untrained": finetuned("runs/u", rte=[0.50, 0.52, 0.54], sst2=[0.60, 0.60, 0.60]),
        "trained": finetuned("runs/*t*", sst2=[0.70, 0.71, 0.72], rte=[0.55, 0.55, 0.55]),
    }
    text = "\n".join(glue_sections(runs))
    assert "| untrained | 52.00 ± 2.00 | 60.00 ± 0.00 | 56.00 ± 1.00 |" in text
    assert "| trained - untrained | +3.00 ± 4.97 | +11.00 ± 2.48 | +7.00 ± 2.78 |" in text, "4.303 standard errors"
    assert r"- trained: runs/\*t\*" in text
    assert "- rte: 8 of 10 train rows\n" in f"{text}\n"
    runs["trained"]["tasks"]["rte"]["not_the_official_data"] = []
    assert "- rte: 8 of 10 train rows (untrained)" in "\n".join(glue_sections(runs)), "whatever run comes last"
    assert glue_headline(runs) == ("rte, sst2", "mean of tasks: untrained 56.00 ± 1.00, trained 63.00 ± 0.50")
    plot_glue(tmp_path / "plot.png", runs)
    assert (tmp_path / "plot.png").stat().st_size > 5_000
    with pytest.raises(ValueError, match="untrained has scores of rte, sst2, other of rte: finetune both"):
        glue_sections(runs | {"other": finetuned("runs/o", rte=[0.5])})
