"""The one training loop, on accelerate: exact accumulation, exact resume, and nothing about models or tasks.

The data is a sequence of *global* batches, `batches[step]`, each a pure function of its step; the loop cuts it over
processes and micro-batches. Dropout is drawn from a generator seeded by (seed, step, micro-batch, process). So the
state of a run is its weights, its optimiser and a step number: a killed run goes on to the last digit (on CPU), and the
number of processes may change between two resumes.
"""

import contextlib
import logging
import signal
import textwrap
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from accelerate import Accelerator, DistributedDataParallelKwargs, DistributedType
from accelerate.utils import broadcast_object_list, send_to_device
from safetensors.torch import load_model
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase, get_scheduler

from .arguments import TrainingConfig
from .checkpoints import (
    all_checkpoints,
    find_checkpoint,
    load_training_state,
    publish,
    rotate,
    save_training_state,
    validate_checkpoint,
    written_aside,
)
from .execution import (
    advise_bf16,
    compile_in_place,
    computes_in_bf16,
    deterministic_algorithms,
    mixed_precision,
    shard,
    use_tensor_cores,
)
from .flops import mfu_per_speed
from .log import RunLog
from .memory import keep_freed_memory, release_memory
from .micro_batches import Batches, MicroBatches, ahead, positions
from .optimizer import adamw, take_up
from .processes import locked_for_run, process_state
from .progress import Progress
from .settings import Changes, agreed_changes, in_words, model_settings, training_settings
from .signals import StopRequest


logger = logging.getLogger(__name__)

# Called with a step's number, the model and the step's micro-batches, a context around the step; the numbers it gives are logged.
AroundStep = Callable[[int, nn.Module, list[dict[str, torch.Tensor]]], AbstractContextManager[dict[str, float]]]


@dataclass
class TrainingResult:
    """How a run ended: its last step and what came before it, the metrics of its last and best evaluation, every log record, and
    which settings were changed after which step."""

    step: int
    epoch: float
    tokens: int
    metrics: dict[str, float]
    best_metrics: dict[str, float]
    train_loss: float
    seconds: float
    history: list[dict[str, Any]]
    changes: list[dict[str, Any]] = field(default_factory=list)


def train(
    model: PreTrainedModel,
    batches: Batches,
    config: TrainingConfig,
    evaluate: Callable[[nn.Module, Accelerator], dict[str, float]] | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    around_step: AroundStep = lambda *_: contextlib.nullcontext({}),
    settings: Mapping[str, Any] | None = None,
) -> TrainingResult:
    """Trains `model` in place, logs, evaluates, saves checkpoints, and leaves the finished model in `output_dir`.

    Args:
        model: any model whose output has a `loss` that is a mean over labelled items. With gradient accumulation each
            micro-batch's mean is weighted by its number of items, so that 4 x 4 sequences give the loss and gradient of
            1 x 16. BatchNorm alone still sees micro-batches (summed over processes).
        batches: global batches of `config.sequences_per_step` sequences.
        evaluate: called on every process, model in evaluation mode; its metrics are logged as `eval_<name>`.
        tokenizer: saved beside the model.
        around_step: measures steps; what it finds becomes a log record of the step, and its time counts as training's. It leaves the
            model as the step left it. Whatever it draws from torch's default generator, no later step notices.
        settings: what decides the run's numbers beside `config` and the model's configuration, as `settings.py` says.

    Raises:
        ValueError: another process writes into the output folder; it holds checkpoints and no resume was asked for; the settings
            are not a checkpoint's, and the change is not allowed or cannot be; the checkpoint to end with is damaged.
        SystemExit: a signal asked the run to stop; a checkpoint of the last step is there. The status is 128 and the signal's number.
        FloatingPointError: the loss or the gradient is no longer finite; the last checkpoint is from before that.
        OSError: a checkpoint could not be written; the earlier ones are whole.
    """
    deterministic = deterministic_algorithms() if config.deterministic else contextlib.nullcontext()
    with locked_for_run(Path(config.output_dir)), deterministic:
        run = _Run(model, batches, config, evaluate, tokenizer, around_step, settings or {})
        with run.stop_request:
            return run.train()


class _Run:
    def __init__(self, model, batches, config, evaluate, tokenizer, around_step, settings):
        self.config, self.batches, self.evaluate, self.tokenizer = config, batches, evaluate, tokenizer
        self.around_step = around_step
        self.output_dir = Path(config.output_dir)
        transformers.utils.logging.disable_progress_bar()  # a bar for each checkpoint written, across the run's own
        tracker = None if config.report_to == "none" else config.report_to
        self.accelerator = Accelerator(
            mixed_precision=mixed_precision(config.mixed_precision, process_state().device),
            log_with=tracker,
            project_dir=config.output_dir,
            kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=config.ddp_find_unused_parameters)],
        )
        if config.load_best_model_at_end and self.accelerator.distributed_type == DistributedType.FSDP:
            raise ValueError("load_best_model_at_end: a sharded model cannot take back earlier weights; leave it out.")
        if self.accelerator.device.type == "cpu":
            keep_freed_memory()  # a quarter of a step's time, and more of an evaluation's
        use_tensor_cores(self.accelerator.device)
        self.main = self.accelerator.is_main_process
        self.stop_request = StopRequest(speaks=self.main)
        self.total_steps = config.total_steps(len(batches))
        schedule_steps = config.schedule_steps(self.total_steps)
        self.settings = {**settings, **training_settings(config), "model": model_settings(model.config)}
        self.settings |= {"max_train_steps": self.total_steps, "mixed_precision": self.accelerator.mixed_precision}
        self.progress, self.changes = Progress(), []
        self.checkpoint = self._checkpoint_to_resume()
        undecided = config.mixed_precision is None and self.accelerator.mixed_precision == "no"
        if undecided and self.main and not self.checkpoint and computes_in_bf16(self.accelerator.device):
            advise_bf16()
        states = self._load(model, self.checkpoint) if self.checkpoint else None

        self.mfu_per_speed = self._mfu_per_speed(model)
        if config.activation_checkpointing:
            # transformers 5.17 knows only the older name.
            getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()
        if config.torch_compile:
            compile_in_place(model, self.accelerator.device)
        self.plain_model = model
        fused = self.accelerator.device.type in ("cpu", "cuda", "xpu", "mps")
        if self.accelerator.is_fsdp2:
            self.model = shard(model, self.accelerator)
            self.optimizer = self.accelerator.prepare_optimizer(adamw(model, config, fused))
        else:
            self.model, self.optimizer = self.accelerator.prepare(model, adamw(model, config, fused))
        self.scheduler = get_scheduler(
            config.lr_scheduler_type,
            self.optimizer.optimizer,
            config.warmup_steps(schedule_steps),
            schedule_steps,
        )
        if states is not None:
            optimizer_state, scheduler_state, scaler_state = states
            take_up(self.model, self.optimizer.optimizer, self.scheduler, optimizer_state, scheduler_state)
            (rate, *_), (before, *_) = self.scheduler.get_last_lr(), scheduler_state["_last_lr"]
            if rate != before:
                logger.warning("Step %d has a learning rate of %g, not %g.", self.progress.step + 1, rate, before)
            if scaler_state and self.accelerator.scaler is not None:
                self.accelerator.scaler.load_state_dict(scaler_state)
        self.log = RunLog(self.output_dir / "log.jsonl", self.progress.step, enabled=self.main)
        if tracker:
            settings = {"tensorboard": {"purge_step": self.progress.step + 1}} if tracker == "tensorboard" else {}
            self.accelerator.init_trackers("logs", init_kwargs=settings)

    def train(self) -> TrainingResult:
        progress, config = self.progress, self.config
        micro_batches = MicroBatches(
            self.batches,
            config.per_device_train_batch_size,
            config.accumulation_steps,
            self.accelerator.process_index,
            self.accelerator.num_processes,
            self.plain_model,
        )
        loader = DataLoader(
            micro_batches,
            # A run that had stopped early is not to go on when it is called again.
            sampler=range(progress.step, progress.step if self._out_of_patience() else self.total_steps),
            batch_size=None,
            num_workers=config.dataloader_num_workers,
        )
        eval_steps = config.eval_steps or len(self.batches)
        # In float64 the sum does not depend on when it is collected, which a clock or a signal may decide.
        exact = torch.float32 if self.accelerator.device.type == "mps" else torch.float64
        self.window = torch.zeros((), dtype=exact, device=self.accelerator.device)
        self.saved = time.monotonic()
        self.first_bad_step = torch.full((), -1, device=self.accelerator.device)
        bar = tqdm(total=self.total_steps, initial=progress.step, disable=not self.main, unit="step", desc="training")
        self.model.train()
        stopped, clock = False, time.perf_counter()
        steps = ahead(loader, pin_memory=self.accelerator.device.type == "cuda")
        with contextlib.closing(bar), contextlib.closing(steps):  # an error is told below the bar
            for parts, tokens in steps:
                inputs = [batch for batch, _ in parts]
                with self.around_step(progress.step + 1, self.plain_model, inputs) as found:
                    self._step(parts)
                progress.add_step(tokens)
                if found:
                    self._write({"step": progress.step} | found)
                bar.update()
                last = progress.step == self.total_steps
                evaluates = self.evaluate is not None and (last or progress.step % eval_steps == 0)
                saves = last or (config.save_steps and progress.step % config.save_steps == 0)
                logs = last or progress.step % config.logging_steps == 0
                # Several processes meet to agree on these: on CPUs after each step, elsewhere at a log record, as it is a wait.
                alone = self.accelerator.num_processes == 1
                asked = any(self._wishes()) if alone else self.accelerator.device.type == "cpu"
                if logs or evaluates or saves or asked:
                    self._collect_losses()
                    progress.add_seconds(time.perf_counter() - clock)
                    if logs:
                        bar.set_postfix(self._log_training())
                    if evaluates:
                        stopped = self._evaluate()
                    if (
                        saves
                        or stopped
                        or self.stops
                        or self.due
                        or (evaluates and self._keeps_best() == progress.step)
                    ):
                        self._save_checkpoint()
                    clock = time.perf_counter()
                    if self.stops and not (last or stopped):
                        bar.close()
                        self._leave()
                if stopped:
                    break
        bar.close()
        for tracker in self.accelerator.trackers:  # not end_training(), which also ends the group of processes
            tracker.finish()
        best = self._keeps_best()
        if best not in (0, progress.step):
            self.checkpoint = self.output_dir / f"checkpoint-{best}"
            if problem := validate_checkpoint(self.checkpoint):
                raise ValueError(
                    f"The run has come to its end, but {self.checkpoint}, its best evaluation's, is damaged ({problem}). Take "
                    "the last one, with --resume_from_checkpoint latest --load_best_model_at_end false --allow_changed "
                    "load_best_model_at_end, or train again."
                )
            load_model(self.plain_model, self.checkpoint / "model.safetensors")
            progress.metrics = progress.best_metrics
        if self.main:
            rotate(self.output_dir, config.save_total_limit, kept=best)  # a kill may have come before the last one
            publish(self.checkpoint, self.output_dir)
        self.accelerator.wait_for_everyone()
        return TrainingResult(
            step=progress.step,
            epoch=progress.step / len(self.batches),
            tokens=progress.tokens,
            metrics=progress.metrics,
            best_metrics=progress.best_metrics,
            train_loss=progress.mean_loss,
            seconds=progress.seconds,
            history=self.log.records,
            changes=self.changes,
        )

    def _step(self, parts: list[tuple[dict[str, torch.Tensor], float]]) -> None:
        """Forward and backward over the micro-batches, then one optimiser step."""
        accelerator, config = self.accelerator, self.config
        loss_sum = torch.zeros((), device=accelerator.device)
        for i, (batch, share) in enumerate(parts):
            # Seeded afresh, dropout needs no generator state in a checkpoint and evaluations cannot disturb it.
            words = np.random.SeedSequence([config.seed, self.progress.step, i, accelerator.process_index])
            torch.manual_seed(int(words.generate_state(1, np.uint64)[0] >> np.uint64(1)))
            batch = send_to_device(batch, accelerator.device, non_blocking=True)
            last = i == len(parts) - 1
            with contextlib.nullcontext() if last else accelerator.no_sync(self.model):
                loss = self.model(**batch).loss
                # Processes' gradients are averaged, and the shares add up to one over all of them.
                accelerator.backward(loss * (share * accelerator.num_processes))
            loss_sum += loss.detach() * share
        bad = ~torch.isfinite(loss_sum)
        if config.max_grad_norm:
            self.grad_norm = self._clip_gradients(config.max_grad_norm)
            if accelerator.scaler is None:  # fp16's scaler meets infinite gradients as a matter of course
                bad = bad | ~torch.isfinite(torch.as_tensor(self.grad_norm, device=bad.device))
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()
        self.window += loss_sum
        self.first_bad_step.masked_fill_(bad & (self.first_bad_step < 0), self.progress.step + 1)

    def _clip_gradients(self, max_norm: float) -> torch.Tensor:
        """Scales all gradients so that their norm over all processes is at most `max_norm`; returns what it was."""
        if not self.accelerator.is_fsdp2:
            return self.accelerator.clip_grad_norm_(self.model.parameters(), max_norm)
        self.accelerator.unscale_gradients()  # accelerate's own clipping does so twice for a model that it did not shard
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), max_norm)
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    def _collect_losses(self) -> None:
        """Moves the losses since the last call from the devices to the progress; the only regular wait for a device."""
        first_bad = int(self.first_bad_step)
        if first_bad >= 0:
            whole = all_checkpoints(self.output_dir)
            raise FloatingPointError(
                f"The loss or its gradient is not finite since step {first_bad}. Nothing was saved since; the last "
                f"checkpoint is {whole[-1] if whole else 'none'}. Lower --learning_rate, lengthen --num_warmup_steps, or "
                "use bf16 rather than fp16."
            )
        wishes = torch.tensor(self._wishes(), dtype=self.window.dtype, device=self.window.device)
        loss, stops, due = self.accelerator.reduce(torch.cat([self.window[None], wishes]), "sum").tolist()
        self.stops, self.due = bool(stops), bool(due)
        self.progress.add_loss(loss)
        self.window.zero_()

    def _wishes(self) -> tuple[bool, bool]:
        """Whether this process was asked to stop, and whether the clock asks it for a checkpoint."""
        minutes = self.config.save_minutes
        due = self.main and minutes > 0 and time.monotonic() - self.saved > 60 * minutes
        return self.stop_request.signal is not None, due

    def _leave(self) -> None:
        """Ends the process as the signal asked."""
        number = self.stop_request.signal or signal.SIGTERM  # of another process
        if self.main:
            logger.warning(
                "%s: stopped after step %d of %d, with %s. The same command goes on from there, with --resume_from_checkpoint "
                "latest where it has that argument.",
                number.name,
                self.progress.step,
                self.total_steps,
                self.checkpoint,
            )
        raise SystemExit(128 + number)

    def _log_training(self) -> dict[str, str]:
        """Writes a log record of the steps since the last one; returns what the progress bar shows."""
        progress = self.progress
        loss, speed = progress.close_window()
        record = {
            "step": progress.step,
            "epoch": progress.step / len(self.batches),
            "loss": loss,
            "learning_rate": self.scheduler.get_last_lr()[0],
            "tokens": progress.tokens,
            "seconds": round(progress.seconds, 2),
            "tokens_per_second": round(speed, 1),
        }
        if self.config.max_grad_norm:
            record["grad_norm"] = float(self.grad_norm)
        shown = {"loss": f"{record['loss']:.4f}", "tokens/s": f"{speed:,.0f}"}
        if self.mfu_per_speed is not None:
            record["mfu"] = round(self.mfu_per_speed * speed, 4)
            shown["mfu"] = f"{record['mfu']:.1%}"
        self._write(record)
        return shown

    def _evaluate(self) -> bool:
        """Runs and logs an evaluation; returns whether patience has run out."""
        progress, config = self.progress, self.config
        self.model.eval()
        metrics = {name: float(value) for name, value in self.evaluate(self.model, self.accelerator).items()}
        self.model.train()
        release_memory()  # shapes that vary leave what is kept in pieces, and the process would grow from one to the next
        self._write({"step": progress.step} | {f"eval_{name}": value for name, value in metrics.items()})
        progress.add_evaluation(metrics, config.metric_for_best_model, config.greater_is_better)
        return self._out_of_patience()

    def _out_of_patience(self) -> bool:
        return 0 < self.config.early_stopping_patience <= self.progress.evaluations_since_best

    def _keeps_best(self) -> int:
        """The step of the best evaluation so far, where the run is to end with its weights; 0 elsewhere."""
        return self.progress.best_step if self.config.load_best_model_at_end else 0

    def _write(self, record: dict[str, Any]) -> None:
        self.log.write(record)
        values = {name: value for name, value in record.items() if name != "step"}
        self.accelerator.log(values, step=record["step"])

    def _mfu_per_speed(self, model: nn.Module) -> float | None:
        """The MFU of all processes' devices together at one token a second, counted on a whole micro-batch; None where it cannot be."""
        found: list[float | None] = [None]
        model.to(self.accelerator.device)
        if self.main:  # the others are told
            rows = self.config.per_device_train_batch_size
            batch = {name: tensor[:rows] for name, tensor in self.batches[0].items()}
            with self.accelerator.autocast():
                share = mfu_per_speed(model, send_to_device(batch, self.accelerator.device), positions(batch))
            found = [share and share / self.accelerator.num_processes]
        return broadcast_object_list(found)[0]

    def _checkpoint_to_resume(self) -> Path | None:
        config, checkpoint = self.config, None
        if config.resume_from_checkpoint:
            checkpoint = find_checkpoint(self.output_dir, config.resume_from_checkpoint)
            if checkpoint is None:
                logger.info("No checkpoint in %s yet: starting from the beginning.", self.output_dir)
        elif existing := all_checkpoints(self.output_dir):
            raise ValueError(
                f"{self.output_dir} already holds {existing[-1].name}: pass --resume_from_checkpoint latest to go on from "
                "it, or another --output_dir to start afresh."
            )
        (first,) = broadcast_object_list([checkpoint])
        if checkpoint != first:
            raise ValueError(
                f"Process {self.accelerator.process_index} would go on from {checkpoint or 'no checkpoint'}, the first one from "
                f"{first or 'none'}: --output_dir {self.output_dir} is not the same folder for both. Name one on a disk that all "
                "machines share."
            )
        return checkpoint

    def _load(self, model: nn.Module, checkpoint: Path) -> tuple[dict, dict, dict]:
        """Fills the model and the progress; returns the states of optimiser, schedule and loss scaler."""
        optimizer_state, state = load_training_state(checkpoint)
        self.progress, misfit = Progress(**state["progress"]), None
        try:
            load_model(model, checkpoint / "model.safetensors")
        except RuntimeError as error:  # torch's, of a head and a line for each tensor
            misfit = textwrap.shorten(str(error).splitlines()[1], 240, placeholder=" ...").rstrip(".")
        before = state.get("settings") or state["identity"]  # of an earlier version, which recorded two of them
        allowed = self.config.allow_changed
        changed = agreed_changes(checkpoint, self.progress.step, before, self.settings, allowed, misfit)
        self.changes = state.get("changes", [])
        if changed:
            self._change(changed, checkpoint)
        logger.info("Resuming from %s: step %d of %d.", checkpoint, self.progress.step, self.total_steps)
        return optimizer_state, state["scheduler"], state["scaler"]

    def _change(self, changed: Changes, checkpoint: Path) -> None:
        """Goes on with other settings, from this step on."""
        progress, ends_with_best = self.progress, changed.get("load_best_model_at_end")
        if {"metric_for_best_model", "greater_is_better"} & changed.keys() or ends_with_best == [False, True]:
            progress.forget_best()  # earlier evaluations were judged otherwise, or their weights not kept
        late = changed.keys() - {"max_train_steps"}
        if ends_with_best == [True, False]:  # what decides only which weights are taken at the end
            late.remove("load_best_model_at_end")
        if late and (progress.step == self.total_steps or self._out_of_patience()):
            raise ValueError(
                f"{checkpoint} is the end of its run: there is no step left to take with another {', '.join(sorted(late))}. Give "
                "more --max_train_steps, or start afresh in another --output_dir."
            )
        logger.warning("From step %d on, other than before: %s.", progress.step + 1, in_words(changed))
        self.changes = [*self.changes, {"step": progress.step, "settings": changed}]

    def _save_checkpoint(self) -> None:
        accelerator, progress = self.accelerator, self.progress
        self.saved = time.monotonic()
        self.checkpoint = self.output_dir / f"checkpoint-{progress.step}"
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        optimizer_state = get_optimizer_state_dict(self.model, self.optimizer.optimizer, options=options)
        # Tensors spread over processes are gathered; otherwise the model can save itself.
        sharded = accelerator.distributed_type == DistributedType.FSDP
        model_state = accelerator.get_state_dict(self.model) if sharded else None
        if model_state:  # gathered, a tied weight is there twice, where a model that saves itself leaves one out
            model_state = {
                n: tensor for n, tensor in model_state.items() if n not in self.plain_model.all_tied_weights_keys
            }
        if self.main:
            scaler = accelerator.scaler.state_dict() if accelerator.scaler is not None else {}
            state = {
                "progress": progress.__dict__,
                "settings": self.settings,
                "changes": self.changes,
                "scheduler": self.scheduler.state_dict(),
                "scaler": scaler,
            }
            with written_aside(self.checkpoint) as aside:
                self.plain_model.save_pretrained(aside, state_dict=model_state, max_shard_size="1TB")
                if self.tokenizer is not None:
                    self.tokenizer.save_pretrained(aside)
                save_training_state(aside, optimizer_state, state)
            rotate(self.output_dir, self.config.save_total_limit, kept=self._keeps_best())
        accelerator.wait_for_everyone()
