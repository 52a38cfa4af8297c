"""A grid of settings: learning rates x batch sizes x epochs, each with several seeds, every one a cell trained once.

A cell is a folder `cells/<name>/` under the grid's output folder, named by its setting and seed. Its `cell.json` says what
it was started with and `results.json`, written last, what came out; so a finished cell is never trained again, and one that
was cut off goes on from its last checkpoint. More values asked for later are just more cells. A setting is judged by its
mean over seeds; of each setting the best seed's weights are kept.
"""

import dataclasses
import itertools
import json
import logging
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from accelerate import Accelerator
from torch import nn
from transformers.hf_argparser import HfArg

from s3bert.files import table, write_text

from .checkpoints import publish
from .loop import TrainingConfig, TrainingResult, process_state


logger = logging.getLogger(__name__)

_GRID = ("learning_rate", "per_device_train_batch_size", "num_train_epochs", "seed")
# What may change between two starts of a cell without changing what it learns. The batch size is in the cell's name.
_FREE = {
    "output_dir",
    "resume_from_checkpoint",
    "logging_steps",
    "eval_steps",
    "save_steps",
    "save_total_limit",
    "report_to",
    "dataloader_num_workers",
    "per_device_eval_batch_size",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "ddp_find_unused_parameters",
}
# Written into a cell's folder beside the model's files.
_CELL, _RESULTS = "cell.json", "results.json"


@dataclass
class GridConfig(TrainingConfig):
    """A `TrainingConfig` of which four arguments take several values: `cells` has one proper `TrainingConfig` for each."""

    learning_rate: list[float] = HfArg(help="AdamW's peak learning rates", default_factory=lambda: [5e-5])
    per_device_train_batch_size: list[int] = HfArg(
        help="sequences of a micro-batch on one process; several for a grid", default_factory=lambda: [32]
    )
    num_train_epochs: list[float] = HfArg(
        help="passes over the training data; several for a grid", default_factory=lambda: [3.0]
    )
    seed: list[int] = HfArg(help="seeds of new weights, data order and dropout", default_factory=lambda: [42])
    save_steps: int | None = HfArg(help="optimiser steps between checkpoints; once an epoch by default", default=None)
    resume_from_checkpoint: str | None = HfArg(
        help="`latest`: a cell that was cut off always goes on by itself", default="latest"
    )
    logging_steps: int = HfArg(help="optimiser steps between two log records", default=50)
    report_to: str = HfArg(help="tracker of each cell: tensorboard, wandb, ... or none", default="none")

    def __post_init__(self):
        for name in _GRID:
            if not getattr(self, name):
                raise ValueError(f"{name}: give at least one value.")
        if self.resume_from_checkpoint != "latest":
            raise ValueError(
                f"resume_from_checkpoint = {self.resume_from_checkpoint}: a grid resumes each cell from the cell's own "
                "latest checkpoint; leave the argument out."
            )
        self.cells()

    def cells(self) -> dict[str, TrainingConfig]:
        """The trainings of the grid by cell name, seeds innermost; values given twice count once."""
        values = {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self)}
        cells = {}
        for combination in itertools.product(*(getattr(self, name) for name in _GRID)):
            config = TrainingConfig(**values | dict(zip(_GRID, combination)))
            name = f"{_setting(config)}-seed{config.seed}"
            cells[name] = dataclasses.replace(config, output_dir=str(Path(self.output_dir) / "cells" / name))
        return cells


def _setting(config: TrainingConfig) -> str:
    length = f"steps{config.max_train_steps}" if config.max_train_steps else f"epochs{config.num_train_epochs:g}"
    return f"lr{config.learning_rate:g}-batch{config.global_batch_size()}-{length}"


@dataclass
class Cell:
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


@dataclass
class Setting:
    """One setting over its seeds: scores in the order of `cells`; `mean` None when a seed failed, `std` (of a sample)
    None for a single seed."""

    name: str
    cells: list[Cell]
    mean: float | None
    std: float | None

    @property
    def best_cell(self) -> Cell:
        """The seed with the highest score; the first of equals."""
        return max(self.cells, key=_rank)


def _rank(scored: Cell | Setting) -> float:
    value = scored.score if isinstance(scored, Cell) else scored.mean
    return float("-inf") if value is None else value


def run_grid(
    config: GridConfig, identity: Mapping[str, Any], train_cell: Callable[[TrainingConfig], TrainingResult]
) -> list[Setting]:
    """Trains the cells that are not finished; returns all settings of the grid, the best mean first.

    Args:
        identity: what else decides a cell's outcome (checkpoint, data, ...), JSON values.
        train_cell: trains one configuration with resumption, and reports a metric called `score`, higher being better.

    Raises:
        ValueError: a cell in the folder was made otherwise; no setting is without a failed seed.
    """
    cells = config.cells()
    results = []
    for number, (name, cell_config) in enumerate(cells.items(), 1):
        folder = Path(cell_config.output_dir)
        made_with = _made_with(cell_config, identity)
        process_state().wait_for_everyone()  # so that all processes see the same files
        _check_same(folder, made_with)
        finished = (folder / _RESULTS).exists()
        if process_state().is_main_process:
            logger.info("Cell %d of %d, %s%s", number, len(cells), name, ": finished before." if finished else ".")
        if finished:
            cell = Cell(**json.loads((folder / _RESULTS).read_text()))
        else:
            process_state().wait_for_everyone()
            if process_state().is_main_process:
                write_text(folder / _CELL, json.dumps(made_with, indent=1) + "\n")
            cell = _train(name, cell_config, train_cell)
            if process_state().is_main_process:
                write_text(folder / _RESULTS, json.dumps(asdict(cell), indent=1) + "\n")
        results.append(cell)
        if process_state().is_main_process:
            _drop_what_is_not_needed(Path(config.output_dir) / "cells", results)
    process_state().wait_for_everyone()
    settings = sorted(_settings(results), key=_rank, reverse=True)
    if settings[0].mean is None:
        failed = next(cell for cell in results if cell.failure)
        raise ValueError(
            f"Every setting of the grid failed with at least one seed, {failed.name} so: {failed.failure} Try a lower "
            f"--learning_rate; all cells are in {Path(config.output_dir) / 'cells'}."
        )
    return settings


def _train(name: str, config: TrainingConfig, train_cell: Callable[[TrainingConfig], TrainingResult]) -> Cell:
    cell = Cell(
        name=name,
        setting=_setting(config),
        learning_rate=config.learning_rate,
        batch_size=config.global_batch_size(),
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
        result = train_cell(config)
    except FloatingPointError as error:  # one learning rate too high must not cost the rest of the grid
        logger.warning("%s failed: %s", name, error)
        cell.failure = str(error)
        return cell
    cell.score, cell.metrics, cell.steps = result.metrics["score"], result.metrics, result.step
    cell.history = [record for record in result.history if "eval_score" in record]
    cell.epoch = next(record["epoch"] for record in reversed(result.history) if "epoch" in record)
    cell.train_loss, cell.train_runtime = result.train_loss, round(result.seconds, 2)
    return cell


def _made_with(config: TrainingConfig, identity: Mapping[str, Any]) -> dict[str, Any]:
    # Evaluations do not change what is learnt, but they may decide where it stops and which weights are kept.
    decisive = {"eval_steps"} if config.load_best_model_at_end or config.early_stopping_patience else set()
    arguments = {name: value for name, value in asdict(config).items() if name not in _FREE - decisive}
    return json.loads(json.dumps({**identity, "batch_size": config.global_batch_size(), **arguments}))


def _check_same(folder: Path, made_with: dict[str, Any]) -> None:
    if not (folder / _CELL).exists():
        return
    before = json.loads((folder / _CELL).read_text())
    for name in sorted(before.keys() | made_with.keys()):
        if before.get(name) != made_with.get(name):
            raise ValueError(
                f"{folder} was made with {name} = {before.get(name)}, now it is {made_with.get(name)}. Use another "
                "--output_dir, or remove that folder to train the cell anew."
            )


def _settings(cells: list[Cell]) -> list[Setting]:
    by_name: dict[str, list[Cell]] = {}
    for cell in cells:
        by_name.setdefault(cell.setting, []).append(cell)
    settings = []
    for name, members in by_name.items():
        scores = [cell.score for cell in members]
        whole = None not in scores
        settings.append(
            Setting(
                name=name,
                cells=members,
                mean=mean(scores) if whole else None,
                std=stdev(scores) if whole and len(scores) > 1 else None,
            )
        )
    return settings


def _drop_what_is_not_needed(folder: Path, finished: list[Cell]) -> None:
    """Removes checkpoints of finished cells, and weights of those that another seed of their setting has beaten.

    A whole grid would otherwise take gigabytes a cell. What may still be published always stays: a cell's rivals within its
    setting only grow in number.
    """
    for setting in _settings(finished):
        for cell in setting.cells:
            for checkpoint in list((folder / cell.name).rglob("*checkpoint-*")):  # a self-pretraining's too
                shutil.rmtree(checkpoint, ignore_errors=True)
            if cell is not setting.best_cell:
                for weights in (folder / cell.name).glob("model*.safetensors"):
                    weights.unlink()


def with_test_metrics(
    result: TrainingResult, model: nn.Module, evaluate: Callable[[nn.Module, Accelerator], dict[str, float]]
) -> TrainingResult:
    """A cell's result with each metric of `evaluate`, as in `training.train`, as `test_...` of the model it ended with."""
    accelerator = Accelerator()
    measured = evaluate(model.to(accelerator.device).eval(), accelerator)
    metrics = result.metrics | {f"test_{name}": value for name, value in measured.items() if name != "score"}
    return dataclasses.replace(result, metrics=metrics)


def publish_model(cell_folder: Path, output_dir: Path) -> None:
    """Copies the model of a cell (weights, configuration, tokenizer, modelling code) to the grid's folder, each file whole."""
    if not list(cell_folder.glob("model*.safetensors")):
        raise FileNotFoundError(f"{cell_folder} has no weights any more: remove the folder to train the cell anew.")
    publish(cell_folder, output_dir, left_out={_CELL, _RESULTS, "log.jsonl"})


def grid_results(settings: list[Setting]) -> dict[str, Any]:
    """The best cell's metrics under the names of Transformers' scripts, what its setting gave, and all cells."""
    best = settings[0]
    cell = best.best_cell
    return {f"eval_{name}": value for name, value in cell.metrics.items()} | {
        "score_mean": best.mean,
        "score_std": best.std,
        "score_best": cell.score,
        "num_seeds": len(best.cells),
        "best_setting": best.name,
        "best_cell": cell.name,
        "epoch": cell.epoch,
        "train_steps": cell.steps,
        "train_loss": cell.train_loss,
        "train_runtime": cell.train_runtime,
        "settings": [asdict(setting) for setting in settings],
    }


def read_report(folder: Path) -> dict[str, Any]:
    """What the main process wrote of a whole run: prints `results.md` and returns `all_results.json`, in every process."""
    process_state().wait_for_everyone()
    print((folder / "results.md").read_text(encoding="utf-8"))
    return json.loads((folder / "all_results.json").read_text(encoding="utf-8"))


def settings_table(settings: list[Setting], score_name: str) -> str:
    """A Markdown table of all settings, scores times 100, the best first."""
    rows = []
    for setting in settings:
        first = setting.cells[0]
        each = ", ".join(
            f"{cell.seed}: {'failed' if cell.score is None else f'{100 * cell.score:.2f}'}" for cell in setting.cells
        )
        average = "failed" if setting.mean is None else f"{100 * setting.mean:.2f}"
        spread = "" if setting.std is None else f"{100 * setting.std:.2f}"
        tried = [f"{first.learning_rate:g}", str(first.batch_size), f"{first.num_train_epochs:g}"]
        rows.append([*tried, average, spread, each])
    return table(["learning rate", "batch", "epochs", f"{score_name}, mean", "std", "seeds: score"], rows)
