"""The grid of settings: trials trained once, judged by their mean over seeds, with the weights that may still be needed."""

import json
from pathlib import Path

import pytest

from s3bert.training.arguments import GridConfig, TrainingConfig
from s3bert.training.grid import grid_results, publish_model, run_grid, settings_table
from s3bert.training.loop import TrainingResult


SCORES = {(1e-4, 1): 0.9, (1e-4, 2): 0.1, (1e-3, 1): 0.6, (1e-3, 2): 0.8, (1e-3, 3): 0.85}


class Trainings:
    """Stands where a training would: writes weights, gives a score from a table, and counts."""

    def __init__(self, scores=SCORES):
        self.scores, self.trained = scores, []

    def __call__(self, config: TrainingConfig) -> TrainingResult:
        self.trained.append((config.learning_rate, config.seed))
        folder = Path(config.output_dir)
        (folder / "checkpoint-5").mkdir(parents=True, exist_ok=True)
        score = self.scores[config.learning_rate, config.seed]
        if isinstance(score, BaseException):
            raise score
        for name in ("model.safetensors", "config.json", "log.jsonl"):
            (folder / name).write_text(f"{name} of {config.learning_rate} {config.seed}")
        history = [{"step": 5, "epoch": 1.0, "loss": 1.0}, {"step": 5, "eval_score": score}]
        metrics = {"accuracy": score, "score": score}
        return TrainingResult(
            5, epoch=1.0, tokens=9, metrics=metrics, best_metrics=metrics, train_loss=1.0, seconds=2.0, history=history
        )


def grid(folder: Path, **changes) -> GridConfig:
    return GridConfig(**{"output_dir": str(folder), "learning_rate": [1e-4, 1e-3], "seed": [1, 2]} | changes)


def test_cells_are_all_combinations_each_a_proper_config_in_its_own_folder(tmp_path):
    trials = grid(tmp_path, per_device_train_batch_size=[16, 32], gradient_accumulation_steps=2).trials()
    assert len(trials) == 2 * 2 * 2
    trial = trials["lr0.0001-batch64-epochs3-seed2"]
    assert type(trial) is TrainingConfig
    assert (trial.learning_rate, trial.per_device_train_batch_size, trial.seed) == (1e-4, 32, 2)
    assert Path(trial.output_dir) == tmp_path / "trials/lr0.0001-batch64-epochs3-seed2"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": []}, "seed: give at least one value"),
        ({"per_device_train_batch_size": [8, 0]}, "per_device_train_batch_size = 0"),
        ({"resume_from_checkpoint": "elsewhere"}, "leave the argument out"),
    ],
)
def test_a_grid_that_cannot_run_is_refused_at_once(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        grid(tmp_path, **changes)


def test_settings_are_ranked_by_mean_over_seeds_not_by_their_luckiest_seed(tmp_path):
    settings = run_grid(grid(tmp_path), {}, Trainings())
    assert max(SCORES.values()) == SCORES[1e-4, 1], "the premise: the luckiest seed is of the worse setting"
    results = grid_results(settings)
    assert results["best_setting"] == "lr0.001-batch32-epochs3"
    assert results["best_trial"] == "lr0.001-batch32-epochs3-seed2"
    assert results["score_mean"] == pytest.approx(0.7)
    assert results["score_std"] == pytest.approx(0.02**0.5)
    assert (results["score_best"], results["eval_accuracy"], results["epoch"]) == (0.8, 0.8, 1.0)
    assert [trial["score"] for setting in results["settings"] for trial in setting["trials"]] == [0.6, 0.8, 0.9, 0.1]
    assert "| 0.001 | 32 | 3 | 70.00 | 14.14 | 1: 60.00, 2: 80.00 |" in settings_table(settings, "accuracy")


def test_finished_cells_are_never_trained_again_and_more_values_are_just_more_cells(tmp_path):
    trainings = Trainings()
    first = run_grid(grid(tmp_path), {"task": "cola"}, trainings)
    assert run_grid(grid(tmp_path), {"task": "cola"}, trainings) == first
    assert len(trainings.trained) == 4
    wider = run_grid(grid(tmp_path, learning_rate=[1e-3], seed=[1, 2, 3]), {"task": "cola"}, trainings)
    assert trainings.trained[4:] == [(1e-3, 3)]
    publish_model(tmp_path / "trials" / wider[0].best_trial.name, tmp_path)
    assert (tmp_path / "model.safetensors").read_text() == "model.safetensors of 0.001 3"
    assert not (tmp_path / "log.jsonl").exists(), "a trial's log is not part of the model"


def test_a_cell_made_otherwise_is_not_taken_for_finished(tmp_path):
    run_grid(grid(tmp_path), {"max_seq_length": 64}, Trainings())
    with pytest.raises(ValueError, match="finished with other settings than this call's, max_seq_length: 64 -> 128"):
        run_grid(grid(tmp_path), {"max_seq_length": 128}, Trainings())
    with pytest.raises(
        ValueError, match=r"weight_decay: 0\.01 -> 0\.1\. Give the same, another --output_dir, or remove"
    ):
        run_grid(grid(tmp_path, weight_decay=0.1), {"max_seq_length": 64}, Trainings())
    run_grid(grid(tmp_path, logging_steps=3, report_to="none"), {"max_seq_length": 64}, Trainings())


def test_what_others_have_written_is_not_replaced_and_trials_on_other_data_are_not_compared(tmp_path):
    trainings = Trainings()
    (tmp_path / "README.md").write_text("my project")
    with pytest.raises(
        ValueError, match=r"has README.md, which no such run wrote and this one would replace: name another"
    ):
        run_grid(grid(tmp_path), {}, trainings)
    run_grid(grid(tmp_path / "run", learning_rate=[1e-4]), {"crc32": 1, "model": {"hidden_size": 8}}, trainings)
    (tmp_path / "run" / "README.md").write_text("its card")
    run_grid(grid(tmp_path / "run", learning_rate=[1e-3]), {"crc32": 1, "model": {"hidden_size": 8}}, trainings)
    with pytest.raises(
        ValueError, match=r"seed1 was trained with other settings .* crc32: 1 -> 2, and the trials of a folder"
    ):
        run_grid(grid(tmp_path / "run", learning_rate=[1e-3], seed=[3]), {"crc32": 2}, trainings)
    assert len(trainings.trained) == 4


def test_a_finished_cell_of_an_earlier_version_is_kept_and_what_it_does_not_record_is_told(tmp_path, caplog):
    trainings = Trainings()
    first = run_grid(grid(tmp_path), {"task": "cola"}, trainings)
    for file in tmp_path.glob("trials/*/trial.json"):
        recorded = json.loads(file.read_text())
        older = {"batch_size": recorded.pop("global_batch_size"), "dataset": "glue", "num_train_epochs": 3.0}
        file.write_text(json.dumps({"weight_decay": recorded["weight_decay"], "task": "cola"} | older))
    assert run_grid(grid(tmp_path), {"task": "cola", "crc32": 7}, trainings) == first
    assert len(trainings.trained) == 4
    assert "lr0.001-batch32-epochs3-seed2 does not record activation_checkpointing, adam_beta1" in caplog.text
    with pytest.raises(ValueError, match=r"weight_decay: 0\.01 -> 0\.1"):
        run_grid(grid(tmp_path, weight_decay=0.1), {"task": "cola", "crc32": 7}, trainings)


@pytest.mark.parametrize("decides", [{"load_best_model_at_end": True}, {"early_stopping_patience": 2}])
def test_steps_between_evaluations_count_where_they_decide_which_weights_are_kept(tmp_path, decides):
    run_grid(grid(tmp_path / "plain", eval_steps=5), {}, Trainings())
    assert "eval_steps" not in next(tmp_path.glob("plain/trials/*/trial.json")).read_text()
    run_grid(grid(tmp_path / "plain", eval_steps=7), {}, Trainings())
    run_grid(grid(tmp_path / "best", eval_steps=5, **decides), {}, Trainings())
    with pytest.raises(ValueError, match="eval_steps: 5 -> 7"):
        run_grid(grid(tmp_path / "best", eval_steps=7, **decides), {}, Trainings())


def test_an_interrupted_grid_goes_on_with_the_cell_it_was_in(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run_grid(grid(tmp_path), {}, Trainings(SCORES | {(1e-3, 1): KeyboardInterrupt()}))
    assert list(tmp_path.glob("trials/lr0.001-*/checkpoint-5")), "what the trial had reached is kept"
    rest = Trainings()
    run_grid(grid(tmp_path), {}, rest)
    assert rest.trained == [(1e-3, 1), (1e-3, 2)]


def test_a_setting_that_diverges_costs_neither_the_grid_nor_a_second_attempt(tmp_path):
    trainings = Trainings(SCORES | {(1e-3, 2): FloatingPointError("loss not finite since step 3")})
    settings = run_grid(grid(tmp_path), {}, trainings)
    assert [setting.mean for setting in settings] == [0.5, None]
    assert "| failed | | 1: 60.00, 2: failed |" in settings_table(settings, "accuracy").replace("|  |", "| |")
    run_grid(grid(tmp_path), {}, trainings)
    assert len(trainings.trained) == 4
    failing = Trainings(dict.fromkeys(SCORES, FloatingPointError("loss not finite since step 3")))
    with pytest.raises(ValueError, match=r"Every setting of the grid failed .* not finite since step 3"):
        run_grid(grid(tmp_path / "other"), {}, failing)


def test_only_the_best_seed_of_each_setting_keeps_its_weights_and_none_its_checkpoints(tmp_path):
    run_grid(grid(tmp_path), {}, Trainings())
    kept = sorted(file.parent.name for file in tmp_path.glob("trials/*/model.safetensors"))
    assert kept == ["lr0.0001-batch32-epochs3-seed1", "lr0.001-batch32-epochs3-seed2"]
    assert len(list(tmp_path.glob("trials/*/results.json"))) == 4
    assert not list(tmp_path.glob("trials/*/checkpoint-*"))
    with pytest.raises(FileNotFoundError, match="no weights any more"):
        publish_model(tmp_path / "trials/lr0.001-batch32-epochs3-seed1", tmp_path)
