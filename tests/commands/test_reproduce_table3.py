"""scripts/reproduce_table3.py: a whole comparison at toy size, kills included, its tables, and what may be said of them."""

import contextlib
import json
import math
import os
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from children import processes
from huggingface_hub import ModelCard

from s3bert.arguments import parse_arguments
from s3bert.commands import reproduce_table3
from s3bert.experiments.budget import Budget
from s3bert.experiments.table3 import Comparison
from s3bert.reports.glue import average_name
from s3bert.reports.published import GLUE_SCORES
from s3bert.reports.table3 import markdown, plot_comparison
from s3bert.tasks.glue import TABLE_3


ROOT = Path(__file__).parents[2]
ONE = ["--learning_rates", "1e-3", "--warmup_shares", "0.1"]  # setting, so that nothing is searched for
# Relative to the project, as in the configuration files.
TOY = ["--config", "configs/table3/smoke.yaml", "--models", "bert", "s3bert", "--tokens", "4096"]
TOY += ["--max_train_samples", "500"]


_TIMES = {"seconds", "train_runtime", "tokens_per_second", "train_tokens_per_second", "mfu"}
_PLACES = {"command", "started_from"}


def without_times(results: Any) -> Any:
    """What two comparisons in two folders have in common: neither times nor the folders' names."""
    if isinstance(results, list):
        return [without_times(entry) for entry in results]
    if not isinstance(results, dict):
        return results
    return {name: without_times(value) for name, value in results.items() if name not in _TIMES | _PLACES}


def compare(folder: Path, *words: str) -> dict[str, Any]:
    """A comparison under one learning rate; only its jobs are processes."""
    with contextlib.chdir(ROOT):
        return reproduce_table3.main([*TOY, *ONE, "--output_dir", str(folder), *words])


def _compare(folder: Path) -> None:
    os.setsid()  # its jobs are killed with it, or not
    compare(folder)


@pytest.fixture(scope="module")
def comparison(tmp_path_factory) -> Path:
    """The folder of a finished one, of two models."""
    folder = tmp_path_factory.mktemp("comparison")
    compare(folder)
    return folder


def test_a_comparison_leaves_results_that_hold_their_jobs_tables_and_a_plot(comparison):
    results = json.loads((comparison / "report" / "results.json").read_text())
    assert list(results["models"]) == ["bert", "s3bert"]
    for model, entry in results["models"].items():
        job = results["jobs"][entry["job"]]
        assert entry["eval_loss"] == job["eval_loss"]
        assert entry["tokens"] == job["train_tokens"] == 4096
        assert entry["machine"] == job["machine"]
        assert job["log"][-1]["eval_loss"] == entry["eval_loss"], "the curve's last point"
        assert job == json.loads((comparison / "pretrained" / model / "all_results.json").read_text()) | {
            "log": job["log"]
        }
        scores = results["tasks"]["synthetic_acceptability"]["models"][model]
        assert scores["seeds"] == [results["jobs"][scores["job"]]["score_mean"]]
    text = (comparison / "report" / "results.md").read_text()
    assert "bert and s3bert differ by" in text
    assert "no verdict" in text
    assert "it has not left its first plateau" in text
    assert "the paper's" not in text, "the paper has none of these tasks"
    assert (comparison / "report" / "results.png").read_bytes().startswith(b"\x89PNG")
    card = ModelCard.load(comparison / "report" / "s3bert.md")
    figures = {(found.dataset_name, found.metric_type): found.metric_value for found in card.data.eval_results}
    assert figures["synthetic", "loss"] == results["models"]["s3bert"]["eval_loss"]
    (name,) = (name for name, metric in figures if metric == "matthews_correlation")
    assert name.startswith("synthetic_acceptability"), "made up here, and no part of GLUE"
    assert figures[name, "matthews_correlation"] == pytest.approx(scores["seeds"][0])
    assert "`results.md`" in card.text
    assert "| bert |" not in card.text, "another model's numbers"


def test_a_packed_folder_is_all_that_a_run_elsewhere_needs_and_gains_untrained_rows_later(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    data, folder, elsewhere = tmp_path / "data", tmp_path / "packed", tmp_path / "elsewhere"
    (data / "cola").mkdir(parents=True)
    for split, count in (("train", 40), ("validation", 20)):
        rows = [json.dumps({"sentence": f"{split} {i}", "label": i % 2}) for i in range(count)]
        (data / "cola" / f"{split}.jsonl").write_text("\n".join(rows))
    (data / "text.txt").write_text("\n".join(f"word {i} and word {7 * i % 50}" for i in range(2000)))
    words = [*TOY, *ONE, "--models", "bert", "--tokens", "1024", "--vocab_size", "64", "--task_name", "cola"]
    words += ["--dataset_name", str(data / "text.txt"), "--max_train_samples", "2000", "--glue_dataset_name", str(data)]
    with pytest.raises(ValueError, match=r"takes .* MB, more than max_pack_megabytes = 0.001: lower"):
        reproduce_table3.main([*words, "--output_dir", str(folder), "--pack", "--max_pack_megabytes", "0.001"])
    reproduce_table3.main([*words, "--output_dir", str(folder), "--pack"])
    assert not (folder / "pretrained").exists(), "nothing is trained"
    shutil.rmtree(data)
    folder.rename(elsewhere)
    results = reproduce_table3.main([*words, "--output_dir", str(elsewhere)])
    assert len(results["tasks"]["cola"]["models"]["bert"]["seeds"]) == 1
    results = reproduce_table3.main([*words, "--untrained", "--output_dir", str(elsewhere)])
    untrained = results["models"]["untrained bert"]
    assert list(results["tasks"]["cola"]["models"]) == ["bert", "untrained bert"]
    assert untrained["untrained"] == "bert"
    assert results["jobs"][untrained["job"]]["log"][0]["learning_rate"] == 0
    assert untrained["eval_loss"] == pytest.approx(math.log(64), abs=0.1), "it knows nothing of the 64 word pieces"
    assert results["verdicts"] == [verdict for verdict in results["verdicts"] if "bert and untrained bert" in verdict]
    assert (elsewhere / "report/bert.md").exists()
    assert not (elsewhere / "report/untrained-bert.md").exists(), "no checkpoint to publish"


def test_both_models_read_the_same_batches_with_the_same_masks(comparison):
    """Batches and masks are functions of corpus, seed and step, so it is enough that no argument differs."""
    arguments = [(comparison / "pretrained" / model / "arguments.yaml").read_text() for model in ("bert", "s3bert")]
    differing = [pair for pair in zip(*(text.splitlines() for text in arguments), strict=True) if pair[0] != pair[1]]
    assert {left.split(":")[0] for left, _ in differing} == {"config_name", "output_dir"}


@pytest.mark.slow
def test_killed_at_random_points_it_goes_on_to_the_same_table(comparison, tmp_path):
    """Alone, so that its job lives on, and with its jobs, so that they go on from their checkpoints."""
    chance = random.Random(5)
    jobs = ["prepare", "pretrained/bert", "pretrained/s3bert", "glue/bert"]
    for group, place in zip((False, True, True), sorted(chance.sample(range(len(jobs)), 3)), strict=True):
        process = processes.Process(target=_compare, args=(tmp_path,))
        process.start()
        while not (tmp_path / jobs[place] / ".lock").exists():
            assert process.exitcode is None
            time.sleep(0.05)
        time.sleep(chance.uniform(0, 3))
        assert process.exitcode is None, "it was over before it was killed"
        (os.killpg if group else os.kill)(process.pid, signal.SIGKILL)
        process.join()
    compare(tmp_path)
    results = [
        without_times(json.loads((folder / "report" / "results.json").read_text())) for folder in (comparison, tmp_path)
    ]
    assert results[0] == results[1]


def test_an_ablation_pretrains_changed_models_alone_on_a_corpus_that_is_there(comparison, tmp_path):
    words = ["--models", "ours=s3bert:smoother_norm=layer", "--task_name", "none", "--jobs", "1"]
    words += ["--dataset_name", str(comparison / "corpus")]
    results = compare(tmp_path, *words)
    assert results == json.loads((tmp_path / "report" / "results.json").read_text())
    assert list(results["models"]) == ["ours"]
    assert "\n\nours is s3bert with smoother_norm=layer.\n\n" in (tmp_path / "report" / "results.md").read_text()
    assert "s3bert" in ModelCard.load(tmp_path / "report" / "ours.md").data.tags
    assert results["models"]["ours"]["machine"]["num_threads"] == 1, "as OMP_NUM_THREADS says, not all cores"
    assert results["tasks"] == {}
    assert json.loads((tmp_path / "pretrained/ours/config.json").read_text())["smoother_norm"] == "layer"
    assert not (tmp_path / "corpus").exists()
    with pytest.raises(
        ValueError, match=r"pretrained/ours is of another model than ours is in this call, .*s3bert-tiny"
    ):
        compare(tmp_path, *words[:1], "ours=bert:hidden_act=relu", *words[2:])


def test_a_model_goes_by_its_settings_or_by_the_name_that_it_is_given():
    models = ["s3bert", "s3bert:num_segments=4", "a=s3bert:num_segments=4"]
    budget = Budget("x", models=models, size="tiny", task_name=["none"], pretrain_config="pretrain/smoke", tokens=1)
    changed = ("s3bert", "num_segments=4")
    assert budget.variants == {"s3bert": ("s3bert", ""), models[1]: changed, "a": changed}


def test_the_papers_budget_is_a_million_steps_of_256_sequences(monkeypatch):
    monkeypatch.chdir(ROOT)
    (budget,) = parse_arguments(
        (reproduce_table3.Budget,), ["--config", "configs/table3/paper.yaml", "--output_dir", "x"]
    )
    assert budget.steps(budget.tokens) == 1_000_000
    assert round(budget.warmup_shares[0] * budget.steps(budget.tokens)) == 5000
    assert "accelerate.commands.launch" in budget.command("pretrain_mlm")


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [("", 0.2), ("[16]", 0.3 * 0.2 + 0.7 * 0.6), ("[8, 16]", 0.3 * (0.2 + 0.6) / 2 + 0.7 * 1.2)],
    ids=["whole", "short", "two lengths"],
)
def test_minutes_are_steps_at_the_speed_of_short_and_of_whole_sequences(lengths, expected, tmp_path):
    (tmp_path / "recipe.yaml").write_text(f"short_seq_share: 0.3\n{lengths and f'short_seq_length: {lengths}'}\n")
    how = dict(models=["bert"], size="tiny", task_name=["none"], pretrain_config=str(tmp_path / "recipe.yaml"))
    comparison = Comparison(Budget(str(tmp_path), **how, minutes=1.0), "")
    # Of each length's second and third five steps the faster count.
    seconds = {5: 9.0, 10: 10.0, 15: 17.0, 20: 30.0, 25: 38.0, 30: 41.0, 35: 50.0, 40: 56.0, 45: 64.0}
    records = [json.dumps({"step": step, "tokens": 1, "seconds": time}) for step, time in seconds.items()]
    (tmp_path / "speed" / "bert").mkdir(parents=True)
    (tmp_path / "speed" / "bert" / "log.jsonl").write_text("\n".join(records) + "\n")
    assert comparison.steps("bert") == round(60 / expected)


def test_minutes_on_a_gpu_compare_models_and_not_the_number_of_kernels_they_launch():
    recipe = yaml.safe_load((ROOT / "configs/table3/gpu-10min.yaml").read_text())
    shared = yaml.safe_load((ROOT / recipe["pretrain_config"]).read_text())
    assert "tokens" in recipe or (shared["torch_compile"] and shared["mixed_precision"] == "bf16")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--models", "bret"], "no .*bret-tiny.json. Of size tiny there is: bert, fnet, ponet, s3bert"),
        (["--models", "bert", "bert"], "one is named twice"),
        (["--models", "a=bert:hidden_act=relu", "a=s3bert:num_segments=4"], "one is named twice"),
        (["--models", "a=bert", "s3bert"], "a= is a name for a model with changed settings that no other model has"),
        (["--models", "bert=s3bert:num_segments=4"], "bert= is a name for a model with changed settings that no other"),
        (
            ["--models", "bert", "untrained-bert=bert:hidden_act=relu"],
            "bert would share the folder untrained-bert; call one",
        ),
        (
            ["--models", "bert:initializer_range=1e-2", "bert:initializer_range=1e+2"],
            "would share the folder bert-init",
        ),
        (["--models", "-=bert:hidden_act=relu"], "models: '-' is no name of a folder"),
        (["--models", "s3bert:num_segmentz=4"], "s3bert has no 'num_segmentz'. Did you mean num_segments"),
        (["--num_processes", "64"], "num_processes = 64: this machine has"),
        (["--minutes", "3"], "Give one of --tokens and --minutes"),
        (["--glue_config", "nowhere.yaml"], "glue_config: 'nowhere.yaml' is not a file"),
        (["--warmup_shares", "0.1", "2"], "warmup_shares = 2.0: must be at least 0 and at most 1"),
        (["--task_name", "none", "cola"], "task_name = none cola: give none, or tasks"),
    ],
)
def test_a_wrong_budget_is_refused_before_anything_runs(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    with pytest.raises(ValueError, match=message):
        reproduce_table3.main([*TOY, "--output_dir", str(tmp_path), *words])
    assert not (tmp_path / "corpus").exists()


def test_a_recipe_that_holds_no_number_is_named_and_null_is_the_default(tmp_path):
    recipe = tmp_path / "pretrain.yaml"
    how = dict(
        models=["bert"], size="tiny", task_name=["none"], pretrain_config=str(recipe), max_seq_length=8, tokens=800
    )
    recipe.write_text("global_batch_size: null\nper_device_train_batch_size: 10\n")
    assert Budget("x", **how).steps(800) == 10
    recipe.write_text("per_device_train_batch_size: [8]\n")
    with pytest.raises(ValueError, match=r"pretrain.yaml: per_device_train_batch_size = \[8\] must be a number"):
        Budget("x", **how)


def test_a_folder_of_another_budget_is_left_alone(comparison, monkeypatch):
    monkeypatch.chdir(ROOT)
    before = (comparison / "report" / "results.json").read_bytes()
    with pytest.raises(ValueError, match=r"tokens: 4096 -> 8192: give the same"):
        reproduce_table3.main([*TOY, "--output_dir", str(comparison), *ONE, "--tokens", "8192"])
    assert (comparison / "report" / "results.json").read_bytes() == before


def made_up(seeds: int, tasks: tuple[str, ...] = TABLE_3) -> dict:
    """Results as if the paper's scores had been measured, each seed a point apart."""
    entry = {
        "parameters": 1,
        "learning_rate": 1e-3,
        "warmup_share": 0.1,
        "search": [],
        "steps": 1,
        "tokens": 1,
        "train_flops_per_token": 1,
        "seconds": 1,
        "job": "pretrained",
    }
    models = {model: entry | {"eval_loss": 3.0, "unigram_entropy": 7.0} for model in GLUE_SCORES}
    scores = {
        task: {
            "not_the_official_data": [],
            "models": {
                model: {"seeds": [(paper[task] + seed - (seeds - 1) / 2) / 100 for seed in range(seeds)]}
                for model, paper in GLUE_SCORES.items()
            },
        }
        for task in tasks
    }
    return {
        "title": "t",
        "budget": "b",
        "command": "c",
        "models": models,
        "tasks": scores,
        "verdicts": [],
        "jobs": {"pretrained": {}},
    }


def test_the_tables_arithmetic_is_that_of_the_papers_table(tmp_path):
    """95.8% of BERT, 4.8% over FNet, 0.3% over PoNet, by the table's own figures."""
    text = markdown(made_up(1))
    measured, _, paper = text.partition("## GLUE, the paper's")
    for part in (measured, paper):
        assert "| s3bert | 76.86 | 87.67 | 84.12 | 90.14 | 46.72 | 84.87 | 81.84 | 63.87 | 77.01 |" in part
        (line,) = [line for line in part.splitlines() if line.startswith("| s3bert, % of BERT")]
        assert line.endswith("| 95.8 |")
    averages = {model: sum(scores.values()) / 8 for model, scores in GLUE_SCORES.items()}
    assert round(averages["s3bert"] / averages["fnet"], 3) == 1.048
    assert round(averages["s3bert"] / averages["ponet"], 3) == 1.003
    assert "± 1.00" in markdown(made_up(3))
    plot_comparison(tmp_path / "scores.png", {"t": made_up(3)})
    assert (tmp_path / "scores.png").stat().st_size > 10_000


def test_the_paper_stands_beside_what_was_measured_and_what_needs_no_pretraining():
    results = made_up(3)
    results["models"]["untrained s3bert"] = results["models"]["s3bert"] | {"untrained": "s3bert"}
    for entry in results["tasks"].values():
        scores = entry["models"]
        for model, more in (
            ("ponet", 0.03),
            ("fnet", 0.10),
        ):  # over s3bert, by less and by more than the spread of 3.51
            scores[model] = {"seeds": [score + more for score in scores[model]["seeds"]]}
        scores["untrained s3bert"] = {"seeds": [0.49, 0.50, 0.51]}
    text = markdown(results)
    part = text[text.index("## Beside the paper") :]
    assert "| s3bert | 77.01 | 95.8 | 77.01 ± 1.00 | 95.8 | 50.00 ± 1.00 | +27.01 ± 3.51 |" in part
    assert "| fnet | 73.48 | 91.4 | 83.48 ± 1.00 | 103.9 |  |  |" in part
    assert (
        "is bert, s3bert, ponet, fnet; here it is fnet, bert, ponet, s3bert. Of the paper's 6 pairs, shown here too: "
        in part
    )
    assert "too: none; the other way round: fnet over s3bert, fnet over ponet; not told apart: 4." in part
    assert "untrained s3bert, % of BERT" not in text
    assert "| untrained s3bert | 0.00 M |  |  |  | 0 |  |  | 3.000 | 4.000 |" in part, "its one step taught it nothing"


def test_a_recipe_changed_halfway_is_refused(comparison, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    changed = tmp_path / "pretrain.yaml"
    changed.write_text((ROOT / "configs/pretrain/smoke.yaml").read_text() + "adam_beta2: 0.9\n")
    folder = comparison.parent / "recipe"
    shutil.copytree(comparison / "configs", folder / "configs")
    with pytest.raises(
        ValueError, match=r"is not what this comparison began with, which is .*pretrain.yaml: change it back"
    ):
        reproduce_table3.main([*TOY, *ONE, "--pretrain_config", str(changed), "--output_dir", str(folder)])


def test_an_average_over_other_tasks_never_goes_by_the_papers_name():
    assert average_name(list(TABLE_3)) == "average"
    text = markdown(made_up(1, TABLE_3[2:]))
    assert "| mean of 6: qnli, sst2, cola, stsb, mrpc, rte |" in text
    assert "average |" not in text
