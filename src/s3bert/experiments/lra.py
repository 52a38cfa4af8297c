"""Long Range Arena: an encoder around a mixer, trained on a task, self-pretrained before if asked, and tested once."""

from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

from accelerate.utils import set_seed

from s3bert.analysis.incoherence import token_incoherence
from s3bert.analysis.instability import Instability
from s3bert.data.shuffled import ShuffledBatches
from s3bert.models.configuration_lra import LraConfig
from s3bert.models.modeling_lra import LraForMaskedLM, LraForSequenceClassification
from s3bert.tasks.lra import LRA_TASKS, Examples, LraEvaluation, MaskedLraBatches
from s3bert.training.arguments import GridConfig, TrainingConfig
from s3bert.training.grid import Setting, run_grid, with_test_metrics
from s3bert.training.loop import TrainingResult, train
from s3bert.training.processes import process_state
from s3bert.training.settings import model_settings


def build_config(
    task_name: str,
    length: int,
    mixer: str,
    settings: dict[str, Any],
    zero_is_padding: bool,
    masked_token: bool,
    encoder: dict[str, Any],
) -> LraConfig:
    """The encoder's configuration for a task and its longest sequence.

    Args:
        mixer, settings: what exchanges tokens. zero_is_padding: id 0 is no pixel. masked_token: one more id, to pretrain with.
        encoder: its sizes and dropout.
    """
    task = LRA_TASKS[task_name]
    return LraConfig(
        mixer=mixer,
        mixer_settings=settings,
        vocab_size=task.vocab_size + (not zero_is_padding) + masked_token,
        num_labels=task.num_labels,
        max_position_embeddings=length,
        pair_inputs=task.pair,
        **encoder,
    )


def self_pretrained(
    config: LraConfig, examples: Examples, epochs: float, trial: TrainingConfig, settings: dict[str, Any]
) -> Path:
    """The folder, in the trial's own, of a model that has predicted masked tokens of a task's training inputs; a cut-off one goes on.

    The vocabulary's last id stands for masked tokens.
    """
    folder = Path(trial.output_dir) / "self-pretrained"
    batches = MaskedLraBatches(examples, trial.sequences_per_step, trial.seed, config.vocab_size - 1)
    trial = replace(
        trial,
        output_dir=str(folder),
        num_train_epochs=epochs,
        max_train_steps=None,
        lr_decay_steps=None,
        save_steps=len(batches),
    )
    # The task's own warm-up may be longer than all this.
    steps = trial.total_steps(len(batches))
    warmup = min(trial.warmup_steps(steps), steps // 10)
    train(LraForMaskedLM(config), batches, replace(trial, num_warmup_steps=warmup), settings=settings)
    return folder


def run_variant(
    task: str,
    config: LraConfig,
    splits: dict[str, Examples],
    grid: GridConfig,
    settings: dict[str, Any],
    noise: float = 0.0,
    zero_is_padding: bool = True,
    group_by_length: bool = False,
    pretrain_epochs: float = 0.0,
    measure_incoherence: bool = False,
    instability_steps: int = 0,
) -> list[Setting]:
    """Trains the grid's trials of one encoder on a task; their metrics include `test_accuracy` and `test_loss`.

    Args:
        splits: the task's examples; `noise` is added to their grey values, and their ids are shifted unless `zero_is_padding`.
        settings: of the command, as `training/settings.py` says.
        pretrain_epochs: of masked-token prediction on the training inputs before each trial.
        measure_incoherence: of the trained model's tokens, over the validation split. instability_steps: first steps of each trial whose
            instability is measured. Both give further metrics.
    """
    checksums = {name: examples.checksum() for name, examples in splits.items()}
    if noise:
        splits = {name: examples.noisy(noise, number) for number, (name, examples) in enumerate(splits.items())}
    if not zero_is_padding:
        splits = {name: examples.shifted() for name, examples in splits.items()}
    device = process_state().device
    # Worker processes cannot read an accelerator's memory.
    resident = device.type != "cpu" and not grid.dataloader_num_workers
    at_hand = {name: examples.to(device) if resident else examples for name, examples in splits.items()}

    def train_trial(trial: TrainingConfig) -> TrainingResult:
        set_seed(trial.seed)
        if pretrain_epochs:
            start = self_pretrained(config, splits["train"], pretrain_epochs, trial, settings)
            set_seed(trial.seed)  # of the new classifier
            model = LraForSequenceClassification.from_pretrained(start, config=config)
        else:
            model = LraForSequenceClassification(config)
        batches = ShuffledBatches(at_hand["train"], trial.sequences_per_step, trial.seed, group_by_length)
        size = trial.per_device_eval_batch_size
        validation = LraEvaluation(at_hand["validation"], size)
        trial = replace(trial, save_steps=trial.save_steps or len(batches))
        around_step = Instability(instability_steps)
        result = train(model, batches, trial, validation, around_step=around_step, settings=settings)
        result = with_test_metrics(result, model, LraEvaluation(at_hand["test"], size))
        probes = {}
        if scores := [record["instability"] for record in result.history if "instability" in record]:
            probes["instability"] = mean(scores)
        if measure_incoherence:
            parts = (at_hand["validation"].batch(chosen) for chosen in validation.batches)
            inputs = (part["input_ids"].to(model.device) for part in parts)
            probes |= token_incoherence(model, inputs)
        return replace(result, metrics=result.metrics | probes)

    rows = {name: len(examples) for name, examples in splits.items()}
    settings = settings | {"task": task, "rows": rows, "crc32": checksums, "noise": noise}
    settings |= {"self_pretrain_epochs": pretrain_epochs, "zero_is_padding": zero_is_padding}
    settings |= {"group_by_length": group_by_length, "model": model_settings(config)}
    settings |= {"incoherence": measure_incoherence, "instability_steps": instability_steps}
    return run_grid(grid, settings, train_trial)
