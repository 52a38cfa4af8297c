"""results/: every page and the index come from the tracked results.json alone; runs are taken in once, and refused by name."""

import json
import re
from pathlib import Path
from statistics import mean

import pytest
import yaml

from s3bert.plots import subplots
from s3bert.reports.instability import plot_instability
from s3bert.reports.lra import lra_headline, lra_sections, lra_table, steps_table
from s3bert.reports.lra_plots import plot_runs, short_names
from s3bert.reports.published import ACCURACIES
from s3bert.reports.results import add_run, compact_json, index, page, read_experiment, read_run, report_of


RESULTS = Path(__file__).parents[2] / "results"
EXPERIMENTS = sorted(file.parent for file in RESULTS.glob("*/results.json"))


@pytest.mark.parametrize("folder", EXPERIMENTS, ids=lambda folder: folder.name)
def test_a_page_is_what_its_results_say_byte_for_byte(folder):
    text = (folder / "results.json").read_text(encoding="utf-8")
    experiment = json.loads(text)
    assert page(experiment).encode() == (folder / "results.md").read_bytes()
    assert compact_json(experiment) == text
    assert {file.name for file in folder.iterdir()} == {"results.json", "results.md", "results.png"}
    assert not re.search(r"""["'\s=]/\w|"/|\.\./""", text), "a path of some machine"
    named = {name for finding in experiment["findings"] for name in re.findall("`([^`]+)`", finding)}
    assert named <= {*experiment["runs"], *(other.name for other in EXPERIMENTS)}, "findings name runs that there are"


def test_the_index_has_a_line_for_each_experiment():
    text = index(RESULTS)
    assert text.encode() == (RESULTS / "README.md").read_bytes()
    assert [line.count(" | ") for line in text.splitlines() if "/results.md)" in line] == [2] * len(EXPERIMENTS)


@pytest.mark.parametrize(
    "name",
    [
        "lra-pathfinder",
        "forecasting",
        "table3-cpu",
        "table3-cpu-ablation",
        "approximation",
        "attention-rank",
        "speed-cpu-width-768",
        "speed-engines",
        "s3-first-values",
        "torture",
    ],
)
def test_a_plot_is_drawn_from_the_results(name, tmp_path):
    experiment = read_experiment(RESULTS / name)
    report_of(experiment).plot(tmp_path / "plot.png", experiment["runs"])
    assert (tmp_path / "plot.png").stat().st_size > 10_000


def trained(length: int, epoch: float, steps: int, **accuracies: float) -> dict:
    """A run of mixers on ListOps."""
    return {
        "title": "listops: mixers",
        "description": "What was trained.",
        "task": "listops",
        "comparison": "mixers",
        "length": length,
        "rows": {"train": 96_000},
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "variants": {
            name: {
                "mixer": name,
                "mixer_settings": {},
                "noise": 0.0,
                "settings": [
                    {
                        "name": "lr0.001",
                        "trials": [
                            {
                                "epoch": epoch,
                                "steps": steps,
                                "batch_size": 32,
                                "history": [],
                                "metrics": {"test_accuracy": value, "accuracy": value},
                            }
                        ],
                    }
                ],
            }
            for name, value in accuracies.items()
        },
    }


def test_a_papers_accuracy_stands_beside_its_own_schedule_and_apart_from_shorter_ones():
    whole = trained(2000, 5.0, 15_000, s3=0.4, kernelized=0.39)
    assert "| s3 | lr0.001 | 40.00 | 38.30 |" in lra_table(whole)
    assert "| kernelized | lr0.001 | 39.00 |  |" in lra_table(whole), "Skyformer's schedule is 50,000 steps"
    longer = trained(2000, 10.0, 30_000, s3=0.4)
    assert "| s3 | lr0.001 | 40.00 | best 39.15 |" in lra_table(longer), "the best is after 10 epochs"
    for steps, papers in ((5_000, "37.10 (FMMformer)"), (50_000, "38.37 (Skyformer)")):
        assert f"| softmax | lr0.001 | 30.00 | {papers} |" in lra_table(trained(2000, 1.7, steps, softmax=0.3))
    short = {"short": trained(2000, 4.9, 14_700, s3=0.2), "cut": trained(1000, 5.0, 15_000, softmax=0.3)}
    text = "\n".join(lra_sections(short))
    assert "published" not in text
    assert (
        text.index("## The papers") < text.index("| s3 | 38.30, best 39.15 |") < text.index("| softmax | 36.37 (Long")
    )
    whole["variants"].pop("kernelized")
    assert "best 39.15" in "\n".join(lra_sections({"whole": whole})), "of another schedule, so in the papers' own table"
    image = whole | {"task": "image", "length": 1024, "rows": {"train": 45_000}}
    image["variants"]["s3"]["settings"][0]["trials"][0] |= {"epoch": 60.0, "batch_size": 256}
    assert "The papers" not in "\n".join(lra_sections({"image": image}))


def test_the_mean_of_a_papers_accuracies_is_the_average_that_it_prints():
    printed = {
        "Long Range Arena": [54.39, 51.36, 50.55, 51.41],
        "FMMformer": [58.70, 54.67, 59.51, 60.74],
        "Skyformer": [57.37, 58.56, 58.93, 54.69, 58.00, 59.39],
    }
    for paper, averages in printed.items():
        rows = [row.accuracies for row in ACCURACIES if row.paper == paper]
        assert [mean(accuracies) for accuracies in rows] == pytest.approx(averages, abs=0.0051)


def test_accuracy_by_step_stands_beside_the_authors_curve_of_the_same_batch_size():
    run = trained(2000, 5.0, 3000, s3=0.4, softmax=0.3)
    for place, result in enumerate(run["variants"].values()):
        history = [
            {"step": step, "eval_accuracy": 0.1 * place + step / 1e4, "eval_loss": 2.0}
            for step in range(500, 3001, 500)
        ]
        result["settings"][0]["trials"][0]["history"] = history
    lines = steps_table(run).splitlines()
    assert lines[0] == "| step | s3 | softmax | the authors' S3, test |"
    assert lines[2] == "| 500 | 5.00, 2.000 | 15.00, 2.000 | 17.1 |"
    assert lines[-1] == "| 3,000 | 30.00, 2.000 | 40.00, 2.000 | 27.3 |"
    assert len(lines) == 8
    run["variants"]["s3"]["settings"][0]["trials"][0]["batch_size"] = 8
    assert "authors" not in steps_table(run)
    assert steps_table(trained(2000, 5.0, 3000, s3=0.4)) == "", "nothing to show of a run that was evaluated once"


def test_a_name_in_a_plot_has_the_settings_that_tell_it_from_others():
    paper, noisy = {"num_segments": 8, "smoother_dropout_prob": 0.5}, {"mixer": "s3", "noise": 8.0}
    results = [
        ("s3:num_segments=8,smoother_dropout_prob=0.5", {"mixer": "s3", "mixer_settings": paper}),
        ("s3:num_segments=64,...", {"mixer": "s3", "mixer_settings": paper | {"num_segments": 64}}),
        ("s3:..., noise 8", noisy | {"mixer_settings": paper}),
        ("fmm:kernels=[elu]", {"mixer": "fmm", "mixer_settings": {"kernels": ["elu"]}}),
        ("whole", {"mixer": "s3", "mixer_settings": paper}),
    ]
    assert short_names(results) == ["s3", "s3:num_segments=64", "s3, noise 8", "fmm:kernels=['elu']", "whole"]
    assert short_names(results[:1]) == ["s3:smoother_dropout_prob=0.5"]


def test_a_run_is_taken_in_once_and_what_is_none_is_named(tmp_path):
    experiment = {"title": "ListOps", "findings": [], "runs": {}}
    run = trained(2000, 5.0, 15_000, s3=0.4)
    add_run(experiment, "one", run)
    add_run(experiment, "one", run)
    assert list(experiment["runs"]) == ["one"]
    with pytest.raises(ValueError, match="has a run one with other results: rename the folder"):
        add_run(experiment, "one", trained(2000, 5.0, 15_000, s3=0.5))
    with pytest.raises(
        ValueError, match="two holds errors, the experiment's runs hold variants: give it an experiment of its own"
    ):
        add_run(experiment, "two", {"errors": {}})
    with pytest.raises(
        ValueError, match=r"nothing has no all_results.json or .* name the output folder of a run that has ended"
    ):
        read_run(tmp_path / "nothing")
    (tmp_path / "arguments.yaml").write_text(
        yaml.safe_dump({"data_dir": "/home/me/lra + /data/b=2 + c/d", "seed": [1]})
    )
    (tmp_path / "all_results.json").write_text(json.dumps({"complete": False, "variants": {}}))
    with pytest.raises(ValueError, match="has not come to its end; its command, given again, goes on"):
        read_run(tmp_path)
    (tmp_path / "all_results.json").write_text(json.dumps({"eval_loss": 1.0}))
    with pytest.raises(
        ValueError, match=r"all_results.json is of a run that no report tells of: add those of the commands"
    ):
        read_run(tmp_path)
    command = "s3bert x --data '{0}a + {0}b' --out {0}c --config d/e"
    (tmp_path / "all_results.json").write_text(json.dumps(run | {"command": command.format("/home/me/")}))
    expected = {"arguments": {"data_dir": "lra + b=2 + c/d", "seed": [1]}, "command": command.format("")}
    assert read_run(tmp_path) == expected | run


def test_a_run_of_the_instability_tells_no_accuracy_and_is_drawn(tmp_path):
    run = trained(256, 0.0, 20, softmax=0.1, s3=0.2) | {"comparison": "instability"}
    for result, scores in zip(run["variants"].values(), ((2.0, 4.0), (1.0, 4.0))):
        (setting,) = result["settings"]
        setting["trials"] = [
            setting["trials"][0] | {"seed": seed, "metrics": {"instability": score}}
            for seed, score in enumerate(scores)
        ]
    text = "\n".join(lra_sections({"short": run}))
    assert "| s3 | lr0.001 | 2.5 ± 2.1 | 0.75 ± 0.35 |" in text
    assert "accuracy" not in text
    assert lra_headline({"short": run})[1] == "instability of s3 0.75 ± 0.35 of softmax's (`short`)"
    _, panels = subplots(1, 2, figsize=(8, 4))
    plot_instability(panels, "short", run["variants"])
    assert [list(line.get_xdata()) for line in panels[1].lines] == [[1.0, 1.0], [0.5, 1.0]]
    plot_runs(tmp_path / "plot.png", {"short": run})
    assert (tmp_path / "plot.png").exists()
    noise = trained(256, 1.0, 600, s3=0.2) | {"comparison": "noise"}
    assert lra_headline({"noise-16": noise})[1] == "s3 20.00 (`noise-16`)", "without a run of mixers"
