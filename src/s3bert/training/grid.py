"""A grid of settings: learning rates x batch sizes x epochs, each with several seeds, every one a trial trained once.

A trial is a folder `trials/<name>/` under the grid's output folder, named by its setting and seed. Once it has come to its end,
`trial.json` has its settings and `results.json`, written last, what came out; so a finished trial is never trained again, and one
that was cut off goes on from its last checkpoint. More values asked for later are just more trials. A setting is judged by its
mean over seeds; of each setting the best seed's weights are kept.
"""

import dataclasses
import json
import logging
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from accelerate import Accelerator
from torch import nn

from s3bert.files import reading, table, write_text

from .arguments import GridConfig, TrainingConfig
from .checkpoints import check_own_folder, publish
from .loop import TrainingResult
from .memory import release_memory
from .processes import process_state
from .settings import differences, in_words, training_settings


logger = logging.getLogger(__name__)

# Written into a trial's folder beside the model's files.
_TRIAL, _RESULTS = "trial.json", "results.json"


@dataclass
class Trial:
    """What one training gave. `metrics` are of the last evaluation, `history` holds all; a training that ended with
    non-finite numbers has neither `score` nor metrics, but a `failure`."""

    name: str
    setting: str
    learning_rate: float
    batch_size: int
    num_train_epochs: float
    seed: int
    score: float | None
    metrics: dict[str, float]
    history: list[dict[str, Any]]
    steps: int
    epoch: float
    train_loss: float | None
    train_runtime: float | None
    failure: str | None = None
    changes: list[dict[str, Any]] = field(default_factory=list)  # as in TrainingResult


@dataclass
class Setting:
    """One setting over its seeds: scores in the order of `trials`; `mean` None when a seed failed, `std` (of a sample)
    None for a single seed."""

    name: str
    trials: list[Trial]
    mean: float | None
    std: float | None

    @property
    def best_trial(self) -> Trial:
        """The seed with the highest score; the first of equals."""
        return max(self.trials, key=_rank)


def _rank(scored: Trial | Setting) -> float:
    value = scored.score if isinstance(scored, Trial) else scored.mean
    return float("-inf") if value is None else value


def run_grid(
    config: GridConfig, settings: Mapping[str, Any], train_trial: Callable[[TrainingConfig], TrainingResult]
) -> list[Setting]:
    """Trains the trials that are not finished; returns all settings of the grid, the best mean first.

    Args:
        settings: what else decides a trial's numbers (data, the start's weights, ...), as `settings.py` says.
        train_trial: trains one configuration with resumption, and reports a metric called `score`, higher being better.

    Raises:
        ValueError: a trial has come to its end with other settings, or cannot go on with them; no setting is without a failed seed; the
            folder has a model or a page of another kind, or trials of other settings.
    """
    trials = config.trials()
    _check_folder(Path(config.output_dir), settings, trials)
    results = []
    for number, (name, trial_config) in enumerate(trials.items(), 1):
        folder = Path(trial_config.output_dir)
        made_with = {**settings, **training_settings(trial_config)}
        process_state().wait_for_everyone()  # so that all processes see the same files
        finished = (folder / _RESULTS).exists()
        if finished:
            _check_same(folder, made_with)
        if process_state().is_main_process:
            logger.info("Trial %d of %d, %s%s", number, len(trials), name, ": finished before." if finished else ".")
        if finished:
            with reading(str(folder / _RESULTS)):
                trial = Trial(**json.loads((folder / _RESULTS).read_text()))
        else:
            process_state().wait_for_everyone()
            trial = _train(name, trial_config, train_trial)
            release_memory()
            if process_state().is_main_process:
                write_text(folder / _TRIAL, json.dumps(made_with, indent=1) + "\n")
                write_text(folder / _RESULTS, json.dumps(asdict(trial), indent=1) + "\n")
        results.append(trial)
        if process_state().is_main_process:
            _drop_what_is_not_needed(Path(config.output_dir) / "trials", results)
    process_state().wait_for_everyone()
    ranked = sorted(_settings(results), key=_rank, reverse=True)
    if ranked[0].mean is None:
        failed = next(trial for trial in results if trial.failure)
        raise ValueError(
            f"Every setting of the grid failed with at least one seed, {failed.name} so: {failed.failure} Try a lower "
            f"--learning_rate; all trials are in {Path(config.output_dir) / 'trials'}."
        )
    return ranked


def _train(name: str, config: TrainingConfig, train_trial: Callable[[TrainingConfig], TrainingResult]) -> Trial:
    trial = Trial(
        name=name,
        setting=config.setting,
        learning_rate=config.learning_rate,
        batch_size=config.sequences_per_step,
        num_train_epochs=config.num_train_epochs,
        seed=config.seed,
        score=None,
        metrics={},
        history=[],
        steps=0,
        epoch=0.0,
        train_loss=None,
        train_runtime=None,
    )
    try:
        result = train_trial(config)
    except FloatingPointError as error:  # one learning rate too high must not cost the rest of the grid
        logger.warning("%s failed: %s", name, error)
        trial.failure = str(error)
        return trial
    trial.score, trial.metrics, trial.steps = result.metrics["score"], result.metrics, result.step
    trial.history = [record for record in result.history if "eval_score" in record]
    trial.epoch, trial.train_loss, trial.train_runtime = result.epoch, result.train_loss, round(result.seconds, 2)
    trial.changes = result.changes
    return trial


def _check_folder(folder: Path, settings: Mapping[str, Any], trials: Collection[str]) -> None:
    """Makes sure that a model in the folder is of a grid, and that trials which this call does not ask for are comparable."""
    check_own_folder(folder, "trials")
    for file in sorted((folder / "trials").glob(f"*/{_TRIAL}")):
        if file.parent.name not in trials:
            with reading(str(file)):
                before = json.loads(file.read_text())
            known = settings.keys() & before.keys()
            if changed := differences(
                file.parent, {name: before[name] for name in known}, {name: settings[name] for name in known}
            ):
                raise ValueError(
                    f"{file.parent} was trained with other settings than this call's, {in_words(changed)}, and the trials of a folder are "
                    "compared: give the same, or another --output_dir."
                )


def _check_same(folder: Path, made_with: Mapping[str, Any]) -> None:
    with reading(str(folder / _TRIAL)):
        before = dict(json.loads((folder / _TRIAL).read_text()))
    if changed := differences(folder, before, made_with):
        raise ValueError(
            f"{folder} was finished with other settings than this call's, {in_words(changed)}. Give the same, another --output_dir, "
            "or remove that folder to train the trial again."
        )


def _settings(trials: list[Trial]) -> list[Setting]:
    by_name: dict[str, list[Trial]] = {}
    for trial in trials:
        by_name.setdefault(trial.setting, []).append(trial)
    settings = []
    for name, members in by_name.items():
        scores = [trial.score for trial in members]
        whole = None not in scores
        settings.append(
            Setting(
                name=name,
                trials=members,
                mean=mean(scores) if whole else None,
                std=stdev(scores) if whole and len(scores) > 1 else None,
            )
        )
    return settings


def _drop_what_is_not_needed(folder: Path, finished: list[Trial]) -> None:
    """Removes checkpoints of finished trials, and weights of those that another seed of their setting has beaten.

    A whole grid would otherwise take gigabytes a trial. What may still be published always stays: a trial's rivals within its
    setting only grow in number.
    """
    for setting in _settings(finished):
        for trial in setting.trials:
            for checkpoint in list((folder / trial.name).rglob("*checkpoint-*")):  # a self-pretraining's too
                shutil.rmtree(checkpoint, ignore_errors=True)
            if trial is not setting.best_trial:
                for weights in (folder / trial.name).glob("model*.safetensors"):
                    weights.unlink()


def with_test_metrics(
    result: TrainingResult, model: nn.Module, evaluate: Callable[[nn.Module, Accelerator], dict[str, float]]
) -> TrainingResult:
    """A trial's result with each metric of `evaluate`, as in `training.train`, as `test_...` of the model it ended with."""
    accelerator = Accelerator()
    measured = evaluate(model.to(accelerator.device).eval(), accelerator)
    metrics = result.metrics | {f"test_{name}": value for name, value in measured.items() if name != "score"}
    return dataclasses.replace(result, metrics=metrics)


def publish_model(trial_folder: Path, output_dir: Path) -> None:
    """Copies the model of a trial (weights, configuration, tokenizer, modelling code) to the grid's folder, each file whole."""
    if not list(trial_folder.glob("model*.safetensors")):
        raise FileNotFoundError(f"{trial_folder} has no weights any more: remove the folder to train the trial again.")
    publish(trial_folder, output_dir, left_out={_TRIAL, _RESULTS, "log.jsonl"})


def grid_results(settings: list[Setting]) -> dict[str, Any]:
    """The best trial's metrics under the names of Transformers' scripts, what its setting gave, and all trials."""
    best = settings[0]
    trial = best.best_trial
    return {f"eval_{name}": value for name, value in trial.metrics.items()} | {
        "score_mean": best.mean,
        "score_std": best.std,
        "score_best": trial.score,
        "num_seeds": len(best.trials),
        "best_setting": best.name,
        "best_trial": trial.name,
        "epoch": trial.epoch,
        "train_steps": trial.steps,
        "train_loss": trial.train_loss,
        "train_runtime": trial.train_runtime,
        "settings": [asdict(setting) for setting in settings],
    }


def read_report(folder: Path) -> dict[str, Any]:
    """What the main process wrote of a whole run, in every process: `all_results.json`; prints `results.md` and where it lies."""
    process_state().wait_for_everyone()
    if process_state().is_main_process:
        print((folder / "results.md").read_text(encoding="utf-8"))
        print(f"Tables, numbers and plots are in {folder}.")
    return json.loads((folder / "all_results.json").read_text(encoding="utf-8"))


def settings_table(settings: list[Setting], score_name: str) -> str:
    """A Markdown table of all settings, scores times 100, the best first."""
    rows = []
    for setting in settings:
        first = setting.trials[0]
        each = ", ".join(
            f"{trial.seed}: {'failed' if trial.score is None else f'{100 * trial.score:.2f}'}"
            for trial in setting.trials
        )
        average = "failed" if setting.mean is None else f"{100 * setting.mean:.2f}"
        spread = "" if setting.std is None else f"{100 * setting.std:.2f}"
        tried = [f"{first.learning_rate:g}", str(first.batch_size), f"{first.num_train_epochs:g}"]
        rows.append([*tried, average, spread, each])
    return table(["learning rate", "batch", "epochs", f"{score_name}, mean", "std", "seeds: score"], rows)
