"""Copying words: an encoder around a mixer's causal form, and its trials."""

from dataclasses import replace
from typing import Any

from accelerate.utils import set_seed

from s3bert.arguments import named_settings
from s3bert.models.configuration_lra import LraConfig
from s3bert.models.modeling_lra import LraForMaskedLM
from s3bert.tasks.copying import CopyBatches, CopyEvaluation
from s3bert.training.arguments import GridConfig, TrainingConfig
from s3bert.training.grid import Setting, run_grid, with_test_metrics
from s3bert.training.loop import TrainingResult, train
from s3bert.training.settings import model_settings


def build_config(mixer: str, length: int, num_symbols: int, **sizes: int) -> LraConfig:
    """The encoder around a mixer's causal form, for sequences of so many tokens; `sizes` by the configuration's names."""
    name, own = named_settings(mixer)
    return LraConfig(
        mixer=name,
        mixer_settings=own | {"causal": True},
        vocab_size=num_symbols + 2,
        max_position_embeddings=length,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        **sizes,
    )


def run_mixer(
    mixer: str,
    config: LraConfig,
    length: int,
    num_symbols: int,
    num_eval_batches: int,
    grid: GridConfig,
    settings: dict[str, Any],
) -> list[Setting]:
    """Trains the grid's trials of one mixer; their metrics, `test_...` among them, are of words never seen. `settings` are the
    command's."""

    def train_trial(trial: TrainingConfig) -> TrainingResult:
        set_seed(trial.seed)
        words = (length, num_symbols, trial.sequences_per_step)
        batches = CopyBatches(*words, trial.seed, trial.max_train_steps)
        unseen = CopyEvaluation(CopyBatches(*words, 2**31 + trial.seed, 1), num_eval_batches)
        steps = max(1, trial.max_train_steps // 20)
        trial = replace(trial, eval_steps=trial.eval_steps or steps, save_steps=trial.save_steps or steps)
        model = LraForMaskedLM(config)
        test = CopyEvaluation(CopyBatches(*words, 2**32 + trial.seed, 1), num_eval_batches)
        return with_test_metrics(train(model, batches, trial, unseen, settings=settings), model, test)

    settings = settings | {"task": "copy words of random length", "mixer": mixer, "model": model_settings(config)}
    return run_grid(grid, settings, train_trial)
