"""Kinds of causal attention compared as language models (FMMformer's Table 2): trained alike, scored on the same text."""

import itertools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import Accelerator
from accelerate.utils import set_seed
from safetensors.numpy import load_file
from torch import nn

from s3bert.data.corpus import Corpus
from s3bert.data.steps import PackedSteps
from s3bert.files import file_name
from s3bert.models.configuration_fmm import FmmConfig
from s3bert.models.modeling_fmm import FmmForCausalLM
from s3bert.tasks.clm import ClmBatches, ClmEvaluation
from s3bert.tasks.perplexity import Windows, bootstrap, losses_by_context, paired_bootstrap
from s3bert.training.arguments import GridConfig, TrainingConfig
from s3bert.training.grid import Setting, run_grid
from s3bert.training.loop import TrainingResult, train
from s3bert.training.settings import model_settings

from .arguments import ATTENTIONS
from .perplexity import Text, measure


_SLIDING, _BLOCKS = "sliding.safetensors", "blocks.safetensors"  # losses, in a trial's folder


def attention_config(base: FmmConfig, name: str, bandwidth: int) -> FmmConfig:
    """`base` with the attention of that name."""
    kind = ATTENTIONS[name]
    kernels, banded = ([], True) if kind is None else kind
    own = {"kernels": kernels, "bandwidth": None if kind is None else bandwidth * banded}
    return FmmConfig(**base.to_dict() | own)


def build_model(config: FmmConfig, seed: int) -> FmmForCausalLM:
    """With first values that all kinds of attention share where they have the same parameters."""
    set_seed(seed)
    model = FmmForCausalLM(config)
    set_seed(seed)
    softmax = FmmForCausalLM(FmmConfig(**config.to_dict() | {"bandwidth": None, "kernels": []}))
    model.load_state_dict(softmax.state_dict(), strict=False)
    return model


@dataclass(frozen=True)
class Scoring:
    """What a trained model is scored on.

    Args:
        text: held out. windows: that slide over it. blocks: windows side by side, in which tokens have all lengths of context. batch_size: windows
            at once. settings: what decides the losses.
    """

    text: Text
    windows: Windows
    blocks: Windows
    batch_size: int
    settings: dict[str, Any]

    def __call__(self, model: FmmForCausalLM, folder: Path) -> float:
        """The mean loss in sliding windows; all losses are kept in the folder."""
        model.eval()
        sliding = self._losses(model, self.windows, folder / _SLIDING)
        self._losses(model, self.blocks, folder / _BLOCKS)
        return float(sliding.mean(dtype=np.float64))

    def _losses(self, model: FmmForCausalLM, windows: Windows, file: Path) -> np.ndarray:
        return measure(model, self.text, windows, self.batch_size, file, self.settings | {"stride": windows.stride})


def run_attention(
    config: FmmConfig, corpus: Corpus, max_eval_blocks: int | None, scoring: Scoring, grid: GridConfig, settings: dict
) -> list[Setting]:
    """Trains the grid's trials of one kind of attention, and scores each; `settings` are the command's."""
    held_out = ClmEvaluation(corpus.split("validation"), grid.per_device_eval_batch_size, max_eval_blocks)

    def evaluate(model: nn.Module, accelerator: Accelerator) -> dict[str, float]:
        metrics = held_out(model, accelerator)
        return metrics | {"score": -metrics["loss"]}

    def train_trial(trial: TrainingConfig) -> TrainingResult:
        steps = PackedSteps(corpus.split("train"), trial.sequences_per_step, trial.seed)
        model = build_model(config, trial.seed)
        result = train(model, ClmBatches(steps), trial, evaluate, corpus.tokenizer, settings=settings)
        sliding = scoring(model, Path(trial.output_dir))
        return replace(result, metrics=result.metrics | {"sliding_loss": sliding, "parameters": model.num_parameters()})

    settings = settings | {"corpus": corpus.fingerprint, "model": model_settings(config)}
    return run_grid(grid, settings, train_trial)


def attention_folder(top: Path, name: str) -> Path:
    """Where the trials of a kind of attention are."""
    return top / file_name(name)


def compared(top: Path, results: dict[str, dict[str, Any]], scoring: Scoring) -> None:
    """Adds to the results of each kind of attention, `grid_results`, what its losses say, means over the seeds of its best setting:

    `perplexity` with its `interval`, `loss_by_context`, and `against` each other kind the difference in loss with its interval.
    """
    losses: dict[str, dict[str, np.ndarray]] = {}
    for name, result in results.items():
        trials = result["settings"][0]["trials"]
        folders = [attention_folder(top, name) / "trials" / trial["name"] for trial in trials if not trial["failure"]]
        losses[name] = {
            file: np.mean([load_file(folder / file)["losses"] for folder in folders], 0, dtype=np.float64)
            for file in (_SLIDING, _BLOCKS)
        }
    documents = scoring.text.document_ids[1:]
    for name, result in results.items():
        mean, low, high = np.exp(bootstrap(losses[name][_SLIDING], documents))
        result["parameters"] = result["settings"][0]["trials"][0]["metrics"]["parameters"]
        result["perplexity"], result["interval"] = float(mean), [float(low), float(high)]
        result["loss_by_context"] = losses_by_context(losses[name][_BLOCKS], scoring.blocks.context())
        result["against"] = {}
    for one, other in itertools.permutations(results, 2):
        difference = paired_bootstrap(losses[one][_SLIDING], losses[other][_SLIDING], documents)
        results[one]["against"][other] = list(difference)
