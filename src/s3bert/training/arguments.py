"""How to train, once or over a grid of settings: arguments of commands, which import no torch."""

import itertools
import math
from dataclasses import dataclass, fields, replace
from pathlib import Path

from s3bert.arguments import Arguments, option


DIVERGED = 3  # exit status of a command whose training did
_GRID = ("learning_rate", "per_device_train_batch_size", "num_train_epochs", "seed")
_OF_A_STEP = ("gradient_accumulation_steps", "global_batch_size")


def _processes() -> int:
    """Of this run."""
    from .processes import process_state  # not at the top: it imports torch, and `--help` has no need of it

    return process_state().num_processes


@dataclass
class TrainingConfig(Arguments):
    """Training: how, and how long; the names are those of Transformers' Trainer and its scripts without one."""

    output_dir: str = option(free=True, help="folder of the run: log, checkpoints, and in the end the finished model")
    seed: int = option(
        least=0, below=2**32, help="seed of initial weights, data order, masking and dropout", default=42
    )
    deterministic: bool = option(
        help="the same bits from every run with the same seed on an accelerator too, where torch's fastest algorithms differ "
        "in rounding; slower, and an operation that has no such algorithm is an error",
        default=False,
    )
    per_device_train_batch_size: int = option(
        free=True, least=1, help="sequences of a micro-batch on one process", default=8
    )
    per_device_eval_batch_size: int = option(
        free=True, least=1, help="sequences of an evaluation batch on one process", default=8
    )
    gradient_accumulation_steps: int | None = option(
        free=True, least=1, help="micro-batches of an optimiser step on one process; 1 by default", default=None
    )
    global_batch_size: int | None = option(
        free=True,
        least=1,
        help="sequences of an optimiser step on any number of processes that divides it; gradient_accumulation_steps follows",
        default=None,
    )
    learning_rate: float = option(above=0, help="AdamW's peak learning rate", default=5e-5)
    weight_decay: float = option(
        least=0, help="AdamW's decoupled weight decay; biases and norms are exempt", default=0.01
    )
    adam_beta1: float = option(least=0, below=1, help="AdamW's first moment decay", default=0.9)
    adam_beta2: float = option(least=0, below=1, help="AdamW's second moment decay", default=0.999)
    adam_epsilon: float = option(above=0, help="AdamW's denominator guard", default=1e-8)
    max_grad_norm: float = option(
        least=0, help="gradients are clipped to this global norm; 0 for no clipping", default=1.0
    )
    lr_scheduler_type: str = option(
        help="linear, constant_with_warmup, cosine, ... as in get_scheduler", default="linear"
    )
    num_warmup_steps: int | float = option(
        least=0, help="optimiser steps of linear warm-up; below 1, a share of the schedule's", default=0
    )
    lr_decay_steps: int | None = option(
        least=1,
        help="optimiser steps that the schedule spans; those trained by default. More of them, and the training is the "
        "beginning of a longer one",
        default=None,
    )
    max_train_steps: int | None = option(
        free=True, least=1, help="optimiser steps in all; overrides num_train_epochs", default=None
    )
    num_train_epochs: float = option(free=True, above=0, help="passes over the training data", default=3.0)
    logging_steps: int = option(free=True, least=1, help="optimiser steps between two log records", default=10)
    eval_steps: int | None = option(
        free=True, least=1, help="optimiser steps between evaluations; once an epoch by default", default=None
    )
    save_steps: int | None = option(
        free=True,
        least=1,
        help="optimiser steps between checkpoints, beside those of save_minutes and at the end",
        default=None,
    )
    save_minutes: float = option(
        free=True,
        least=0,
        help="minutes after which there is a new checkpoint in any case; 0 for none by the clock",
        default=10.0,
    )
    save_total_limit: int = option(free=True, least=0, help="checkpoints kept; 0 keeps all", default=2)
    resume_from_checkpoint: str | None = option(
        free=True, help="a checkpoint folder, or `latest` of output_dir", default=None
    )
    allow_changed: list[str] = option(
        free=True,
        help="settings that a run which goes on may have otherwise than its checkpoint, by name: learning_rate weight_decay ...; "
        "more steps need no permission",
        default_factory=list,
    )
    mixed_precision: str | None = option(
        help="no, fp16, bf16, or auto: bf16 on a GPU that has it or a CPU that is faster in it; accelerate's configuration by default",
        default=None,
    )
    torch_compile: bool = option(help="compile the model (the first steps then take long)", default=False)
    activation_checkpointing: bool = option(help="recompute activations in backward to save memory", default=False)
    dataloader_num_workers: int = option(
        free=True, least=0, most=1024, help="processes that prepare batches ahead; 0 for a thread", default=0
    )
    ddp_find_unused_parameters: bool = option(
        free=True, help="for models with parameters a loss does not reach", default=False
    )
    report_to: str = option(free=True, help="tracker: tensorboard, wandb, ... or none", default="tensorboard")
    early_stopping_patience: int = option(
        least=0, help="evaluations without a better result before stopping; 0 never", default=0
    )
    metric_for_best_model: str = option(help="evaluation metric early stopping watches", default="loss")
    greater_is_better: bool = option(help="whether that metric should rise", default=False)
    load_best_model_at_end: bool = option(
        help="end with the weights of the best evaluation by that metric, rather than the last", default=False
    )

    def __post_init__(self):
        super().__post_init__()
        if self.global_batch_size is not None:
            self._check_global_batch_size()
        if self.num_warmup_steps > 1 and self.num_warmup_steps % 1:
            raise ValueError(
                f"num_warmup_steps = {self.num_warmup_steps}: give a whole number of steps, or a share of all steps below 1."
            )

    def _check_global_batch_size(self) -> None:
        if self.gradient_accumulation_steps is not None:
            raise ValueError(
                f"global_batch_size = {self.global_batch_size} and gradient_accumulation_steps = "
                f"{self.gradient_accumulation_steps}: the second follows from the first. Leave gradient_accumulation_steps out; "
                "a smaller per_device_train_batch_size makes more micro-batches of the same step."
            )
        processes, size = _processes(), self.per_device_train_batch_size
        if self.global_batch_size % (processes * size):
            raise ValueError(
                f"global_batch_size = {self.global_batch_size} is not divisible by {processes} process{'es' * (processes > 1)} x "
                f"per_device_train_batch_size = {size}: give a per_device_train_batch_size, or start a number of processes, with "
                "which it is."
            )

    @property
    def accumulation_steps(self) -> int:
        """Micro-batches of one optimiser step on one process."""
        if self.global_batch_size is None:
            return self.gradient_accumulation_steps or 1
        return self.global_batch_size // (_processes() * self.per_device_train_batch_size)

    @property
    def sequences_per_step(self) -> int:
        """Sequences of one optimiser step, over all processes and micro-batches."""
        return _processes() * self.per_device_train_batch_size * self.accumulation_steps

    @property
    def setting(self) -> str:
        """Rate, batch and length, as they name a trial's folder."""
        length = f"steps{self.max_train_steps}" if self.max_train_steps else f"epochs{self.num_train_epochs:g}"
        return f"lr{self.learning_rate:g}-batch{self.sequences_per_step}-{length}"

    def total_steps(self, steps_per_epoch: int) -> int:
        """Optimiser steps of the whole run."""
        return self.max_train_steps or max(1, math.ceil(self.num_train_epochs * steps_per_epoch))

    def schedule_steps(self, total_steps: int) -> int:
        """Optimiser steps that the learning rate's schedule spans, in a run of so many.

        Raises:
            ValueError: they are fewer than are trained.
        """
        if self.lr_decay_steps is not None and self.lr_decay_steps < total_steps:
            raise ValueError(
                f"lr_decay_steps = {self.lr_decay_steps}: {total_steps} steps are trained, and the last ones would have no learning "
                "rate; give at least as many, or leave it out."
            )
        return self.lr_decay_steps or total_steps

    def warmup_steps(self, total_steps: int) -> int:
        """Optimiser steps of linear warm-up in a schedule of so many."""
        share = 0 < self.num_warmup_steps < 1
        return round(self.num_warmup_steps * total_steps) if share else int(self.num_warmup_steps)


@dataclass
class GridConfig(TrainingConfig):
    """Training: every combination of the four arguments that take several values is a trial."""

    learning_rate: list[float] = option(above=0, help="AdamW's peak learning rates", default_factory=lambda: [5e-5])
    per_device_train_batch_size: list[int] = option(
        free=True,
        least=1,
        help="sequences of a micro-batch on one process; several for a grid",
        default_factory=lambda: [32],
    )
    num_train_epochs: list[float] = option(
        free=True, above=0, help="passes over the training data; several for a grid", default_factory=lambda: [3.0]
    )
    seed: list[int] = option(
        least=0, below=2**32, help="seeds of new weights, data order and dropout", default_factory=lambda: [42]
    )
    save_steps: int | None = option(
        free=True, least=1, help="optimiser steps between checkpoints; once an epoch by default", default=None
    )
    resume_from_checkpoint: str | None = option(
        free=True, help="`latest`: a trial that was cut off always goes on by itself", default="latest"
    )
    logging_steps: int = option(free=True, least=1, help="optimiser steps between two log records", default=50)
    report_to: str = option(free=True, help="tracker of each trial: tensorboard, wandb, ... or none", default="none")

    def __post_init__(self):
        Arguments.__post_init__(self)
        if self.resume_from_checkpoint != "latest":
            raise ValueError(
                f"resume_from_checkpoint = {self.resume_from_checkpoint}: a grid resumes each trial from the trial's own "
                "latest checkpoint; leave the argument out."
            )
        self.trials()

    def trials(self) -> dict[str, TrainingConfig]:
        """The trainings of the grid by trial name, seeds innermost."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        trials = {}
        for combination in itertools.product(*(getattr(self, name) for name in _GRID)):
            config = TrainingConfig(**values | dict(zip(_GRID, combination)))
            name = f"{config.setting}-seed{config.seed}"
            trials[name] = replace(config, output_dir=str(Path(self.output_dir) / "trials" / name))
        return trials
