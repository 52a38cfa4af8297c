"""The training loop: accumulation, kills, damaged checkpoints, full disks, several processes. Faults are real ones."""

import contextlib
import copy
import dataclasses
import functools
import itertools
import math
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from children import free_port, processes
from safetensors.torch import load_file
from sharded_on_cpus import shard_on_cpus
from tiny_pretraining import LENGTH, NO_DROPOUT, SIZES, MadeUpBlocks, exact, pretrain, tokenizer
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForMaskedLM, BertConfig, BertForMaskedLM, set_seed

from s3bert import (
    S3BertConfig,
    S3BertForMaskedLM,
    S3BertForMultipleChoice,
    S3BertForQuestionAnswering,
    S3BertForSequenceClassification,
    S3BertForTokenClassification,
)
from s3bert.data.steps import PackedSteps
from s3bert.tasks.mlm import Masking, MlmBatches, MlmEvaluation
from s3bert.training import execution, loop
from s3bert.training.arguments import TrainingConfig
from s3bert.training.checkpoints import all_checkpoints, find_checkpoint, validate_checkpoint, written_aside
from s3bert.training.flops import product_flops
from s3bert.training.log import read_log
from s3bert.training.loop import train
from s3bert.training.signals import StopRequest


def in_process(function, *arguments) -> int:
    """Runs a function in a child and returns its exit code."""
    child = processes.Process(target=function, args=arguments)
    child.start()
    child.join()
    return child.exitcode


def _pretrain_or_resume(output_dir: str, slowness: float) -> None:
    torch.set_num_threads(1)
    pretrain(Path(output_dir), slowness=slowness, resume_from_checkpoint="latest")


def _pretrain_slowly(output_dir: str, slowness: float) -> None:
    torch.set_num_threads(1)
    pretrain(Path(output_dir), slowness=slowness, save_steps=60, resume_from_checkpoint="latest")


def _count_fresh_pages(output_dir: str) -> None:
    torch.set_num_threads(1)
    faults = []
    register_optimizer_step_pre_hook(lambda *_: faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt))
    wide = dict(hidden_size=256, intermediate_size=1024)
    pretrain(Path(output_dir), wide, max_train_steps=6, per_device_train_batch_size=512, save_steps=6, eval_steps=6)
    sys.exit(min(after - before for before, after in itertools.pairwise(faults)) > 1000)


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc is told to keep memory")
def test_memory_is_used_again_step_after_step(tmp_path):
    assert in_process(_count_fresh_pages, str(tmp_path)) == 0


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    """A run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    assert in_process(_pretrain_or_resume, str(folder), 0.0) == 0
    return folder


def test_a_run_killed_ten_times_at_random_moments_ends_with_the_losses_of_one_that_never_was(whole_run, tmp_path):
    moments = random.Random(0)
    for kill in range(10):
        before = all_checkpoints(tmp_path)
        child = processes.Process(target=_pretrain_or_resume, args=(str(tmp_path), 0.2))
        child.start()
        while kill % 2 and child.exitcode is None and all_checkpoints(tmp_path) == before:
            time.sleep(0.02)  # every other kill waits for progress, however slow the machine
        child.join(timeout=moments.uniform(0, 1))
        assert child.exitcode is None, "the run outlived its killer"
        os.kill(child.pid, signal.SIGKILL)
        child.join()
    assert all_checkpoints(tmp_path)
    assert len(read_log(tmp_path / "log.jsonl")) < len(read_log(whole_run / "log.jsonl"))
    assert in_process(_pretrain_or_resume, str(tmp_path), 0.0) == 0
    assert exact(read_log(tmp_path / "log.jsonl")) == exact(read_log(whole_run / "log.jsonl"))
    ours, theirs = (AutoModelForMaskedLM.from_pretrained(folder).state_dict() for folder in (tmp_path, whole_run))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def started(folder: Path, slowness: float) -> processes.Process:
    """A run that has made a step and been through no checkpoint."""
    child = processes.Process(target=_pretrain_slowly, args=(str(folder), slowness))
    child.start()
    while child.exitcode is None and not ((folder / "log.jsonl").exists() and read_log(folder / "log.jsonl")):
        time.sleep(0.02)
    return child


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1], ids=lambda number: number.name)
def test_a_signal_stops_a_run_after_its_step_with_a_checkpoint(number, whole_run, tmp_path):
    child = started(tmp_path, 0.2)
    os.kill(child.pid, number)
    child.join()
    assert child.exitcode == 128 + number
    (checkpoint,) = all_checkpoints(tmp_path)
    assert read_log(tmp_path / "log.jsonl")[-1]["step"] == int(checkpoint.name.removeprefix("checkpoint-")) < 60
    assert in_process(_pretrain_or_resume, str(tmp_path), 0.0) == 0
    assert exact(read_log(tmp_path / "log.jsonl")) == exact(read_log(whole_run / "log.jsonl"))


def test_the_first_signal_is_kept_and_told_and_the_handlers_come_back(capfd):
    before = signal.getsignal(signal.SIGTERM)
    with StopRequest() as request:
        signal.raise_signal(signal.SIGTERM)
        assert request.signal == signal.SIGTERM
        assert signal.getsignal(signal.SIGTERM) == before, "the second one acts"
    assert "SIGTERM: the run stops after this step, with a checkpoint." in capfd.readouterr().err
    with StopRequest() as request:
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before
    assert request.signal is None


def test_a_second_signal_leaves_at_once(tmp_path):
    child = started(tmp_path, 4.0)
    begin = time.monotonic()
    os.kill(child.pid, signal.SIGTERM)
    time.sleep(0.3)
    assert child.exitcode is None, "the first one waits for the step"
    os.kill(child.pid, signal.SIGTERM)
    child.join()
    assert child.exitcode == -signal.SIGTERM
    assert time.monotonic() - begin < 2
    assert not all_checkpoints(tmp_path)


def test_the_clock_asks_for_checkpoints_and_changes_nothing(whole_run, tmp_path):
    settings = {"save_steps": 60, "save_minutes": 1e-9, "save_total_limit": 0}
    pretrain(tmp_path, max_train_steps=4, lr_decay_steps=60, logging_steps=3, **settings)
    assert [int(folder.name.removeprefix("checkpoint-")) for folder in all_checkpoints(tmp_path)] == [1, 2, 3, 4]
    (first, *_), whole = exact(read_log(tmp_path / "log.jsonl")), exact(read_log(whole_run / "log.jsonl"))
    assert first["loss"] == sum(record["loss"] for record in whole if 0 < record["step"] <= 3 and "loss" in record) / 3


def test_a_cut_checkpoint_is_named_and_the_one_before_it_taken(whole_run, tmp_path, caplog):
    caplog.set_level("INFO")
    folder = shutil.copytree(whole_run, tmp_path / "run")
    newest, before = all_checkpoints(folder)[::-1]
    with (newest / "optimizer.safetensors").open("r+b") as file:
        file.truncate(1000)
    assert "1,000 bytes instead of" in validate_checkpoint(newest)
    result = pretrain(folder, resume_from_checkpoint="latest")
    assert f"{newest} is damaged (optimizer.safetensors has 1,000 bytes" in caplog.text
    assert f"Resuming from {before}" in caplog.text
    assert exact(result.history) == exact(read_log(whole_run / "log.jsonl"))
    assert validate_checkpoint(newest) is None, "the damaged checkpoint was written again"


def test_a_run_killed_between_its_last_checkpoint_and_the_removal_of_old_ones_removes_them(whole_run, tmp_path):
    folder = shutil.copytree(whole_run, tmp_path / "run")
    kept = all_checkpoints(folder)
    shutil.copytree(kept[0], folder / "checkpoint-3")
    pretrain(folder, resume_from_checkpoint="latest")
    assert all_checkpoints(folder) == kept


def test_what_is_measured_around_steps_is_logged_and_goes_on_after_a_cut(whole_run, tmp_path):
    cut_at = 8

    @contextlib.contextmanager
    def length_of_step(step, model, batches):
        before = model.cls.predictions.bias.detach().clone()
        found = {}
        yield found
        torch.rand(3)  # no later step notices
        if step == cut_at:
            raise KeyboardInterrupt
        if step < 11:
            found |= {
                "rows": len(batches[0]["input_ids"]),
                "length": (model.cls.predictions.bias - before).norm().item(),
            }

    around = {"around_step": length_of_step}
    with pytest.raises(KeyboardInterrupt):
        pretrain(tmp_path, around=around)
    cut_at = 0
    result = pretrain(tmp_path, around=around, resume_from_checkpoint="latest")
    measured = [record for record in result.history if "length" in record]
    assert [record["step"] for record in measured] == list(range(1, 11))
    assert {record["rows"] for record in measured} == {8}, "of half a block"
    assert [record["length"] > 0 for record in measured] == [False, *[True] * 9], "a warm-up begins at a rate of 0"
    others = [record for record in result.history if "length" not in record]
    assert exact(others) == exact(read_log(whole_run / "log.jsonl"))


def test_a_flipped_byte_is_found_by_the_checksum(whole_run, tmp_path):
    folder = shutil.copytree(whole_run, tmp_path / "run")
    for checkpoint in all_checkpoints(folder):
        weights = checkpoint / "model.safetensors"
        content = bytearray(weights.read_bytes())
        content[-1] ^= 1
        weights.write_bytes(content)
    with pytest.raises(ValueError, match=r"All checkpoints in .* are damaged .*another --output_dir"):
        pretrain(folder, resume_from_checkpoint="latest")


@pytest.fixture
def two_checkpoints(tmp_path) -> list[Path]:
    """Two sealed folders with the files that every checkpoint has, a few bytes each."""
    for step in (1, 2):
        with written_aside(tmp_path / f"checkpoint-{step}") as aside:
            for name in ("model.safetensors", "optimizer.safetensors", "training_state.json"):
                (aside / name).write_text(f"{name} of step {step}")
    return all_checkpoints(tmp_path)


def test_every_flipped_bit_of_a_manifest_is_found(two_checkpoints):
    _, newest = two_checkpoints
    assert validate_checkpoint(newest) is None
    with open(newest / "manifest.json", "r+b", buffering=0) as manifest:
        whole = manifest.read()
        for place, bit in itertools.product(range(len(whole)), range(8)):
            manifest.seek(place)
            manifest.write(bytes([whole[place] ^ 1 << bit]))
            problem = validate_checkpoint(newest)
            assert problem, f"bit {bit} of byte {place}"
            assert "\n" not in problem
            manifest.seek(place)
            manifest.write(whole[place : place + 1])
    assert validate_checkpoint(newest) is None


_LISTED = '"model.safetensors": {}, "optimizer.safetensors": {}, "training_state.json": {}'


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "cannot be read (Expecting value"),
        ("[" * 100_000, "cannot be read (maximum recursion"),
        (b"\xff", "cannot be read ('utf-8' codec"),
        ("[]", "holds no list of files"),
        ("null", "holds no list of files"),
        ('{"files": null}', "holds no list of files"),
        ('{"files": ["model.safetensors"]}', "holds no list of files"),
        ('{"files": {}}', "does not list model.safetensors, optimizer.safetensors, training_state.json"),
        (f'{{"files": {{{_LISTED}}}}}', "holds no size and checksum of model.safetensors"),
        (f'{{"files": {{{_LISTED.replace("{}", "null")}}}}}', "holds no size and checksum of model.safetensors"),
        (f'{{"files": {{"{"n" * 999}": {{"bytes": 1, "crc32": 1}}, {_LISTED}}}}}', "File name too long"),
        (f'{{"files": {{".": {{"bytes": 1, "crc32": 1}}, {_LISTED}}}}}', ". has "),
        (f'{{"files": {{"\\u0000": {{"bytes": 1, "crc32": 1}}, {_LISTED}}}}}', "embedded null byte"),
    ],
    ids=itertools.count(),
)
def test_a_manifest_of_something_else_is_named_and_the_checkpoint_before_it_taken(
    two_checkpoints, tmp_path, caplog, content, problem
):
    before, newest = two_checkpoints
    (newest / "manifest.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    assert find_checkpoint(tmp_path, "latest") == before
    assert f"{newest} is damaged (" in caplog.text
    assert problem in caplog.text
    with pytest.raises(ValueError, match=f"Cannot resume from {newest}: .*Checkpoints in {tmp_path}: checkpoint-1, "):
        find_checkpoint(tmp_path, str(newest))


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 512 kB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip("needs the right to mount a small file system")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_disk_that_fills_during_a_checkpoint_leaves_the_previous_one_whole(small_disk):
    with pytest.raises(
        OSError, match=r"Could not write .*checkpoint-\d+.*Free some space.*earlier checkpoints are whole"
    ):
        pretrain(small_disk, save_steps=1, save_total_limit=0)
    checkpoints = all_checkpoints(small_disk)
    assert checkpoints
    assert [validate_checkpoint(checkpoint) for checkpoint in checkpoints] == [None] * len(checkpoints)
    assert not list(small_disk.glob(".*unfinished"))


def test_a_checkpoint_that_has_no_place_names_what_is_in_its_way(tmp_path):
    (tmp_path / ".checkpoint-1.unfinished").touch()
    with pytest.raises(OSError, match=r"File exists: .*\.checkpoint-1\.unfinished'\. Mend that, then resume"):
        pretrain(tmp_path, save_steps=1)


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_good_checkpoint(tmp_path):
    with pytest.raises(FloatingPointError, match=r"not finite since step .*checkpoint-1.*learning_rate"):
        pretrain(tmp_path, save_steps=1, learning_rate=1e30, num_warmup_steps=0, lr_scheduler_type="constant")
    (checkpoint,) = all_checkpoints(tmp_path)[-1:]
    assert validate_checkpoint(checkpoint) is None
    assert all(math.isfinite(record["loss"]) for record in read_log(tmp_path / "log.jsonl"))


def test_an_output_folder_in_use_is_not_overwritten(whole_run):
    before = sorted(path.name for path in whole_run.iterdir())
    with pytest.raises(ValueError, match="already holds checkpoint-60: pass --resume_from_checkpoint latest"):
        pretrain(whole_run)
    assert sorted(path.name for path in whole_run.iterdir()) == before


def test_a_run_whose_schedule_goes_on_is_the_beginning_of_a_longer_one(whole_run, tmp_path):
    pretrain(tmp_path, max_train_steps=6, lr_decay_steps=60)
    longer, beginning = (exact(read_log(folder / "log.jsonl")) for folder in (whole_run, tmp_path))
    steps = [record for record in beginning if "learning_rate" in record]
    assert steps == [record for record in longer if "learning_rate" in record][:6]
    assert len(steps) == 6


def test_resuming_with_other_data_order_is_refused(whole_run):
    with pytest.raises(ValueError, match="global_batch_size: 4 -> 8"):
        pretrain(whole_run, resume_from_checkpoint="latest", per_device_train_batch_size=8)


HEADS = {
    "masked-lm": (S3BertForMaskedLM, {}),
    "masked-lm-sparse": (S3BertForMaskedLM, {"sparse_prediction": True}),
    "classification": (S3BertForSequenceClassification, {"num_labels": 3}),
    "regression": (S3BertForSequenceClassification, {"num_labels": 1}),
    "tokens": (S3BertForTokenClassification, {"num_labels": 4}),
    "question-answering": (S3BertForQuestionAnswering, {}),
    "multiple-choice": (S3BertForMultipleChoice, {}),
}


def _labelled_batch(kind: str) -> dict[str, torch.Tensor]:
    """Sixteen sequences with labels for a head; token labels are spread unevenly over the sequences."""
    generator = torch.Generator().manual_seed(3)
    shape = (16, 2, 11) if kind == "multiple-choice" else (16, 11)
    batch = {"input_ids": torch.randint(5, 99, shape, generator=generator)}
    if kind in ("masked-lm", "masked-lm-sparse", "tokens"):
        labels = torch.randint(0, 4, shape, generator=generator)
        labels[torch.rand(shape, generator=generator) < torch.linspace(0.1, 0.9, 16)[:, None]] = -100
        return batch | {"labels": labels}
    if kind == "question-answering":
        start, end = torch.randint(0, 11, (2, 16), generator=generator)
        return batch | {"start_positions": start, "end_positions": end}
    if kind == "regression":
        return batch | {"labels": torch.rand(16, generator=generator)}
    return batch | {"labels": torch.randint(0, 2, (16,), generator=generator)}


@pytest.mark.parametrize("kind", HEADS)
def test_accumulating_four_by_four_gives_the_loss_and_gradient_of_one_by_sixteen(kind, tmp_path):
    head, settings = HEADS[kind]
    gradients, losses = [], []
    for size, count in ((16, 1), (4, 4)):
        set_seed(0)
        model = head(S3BertConfig(**SIZES, **NO_DROPOUT, **settings, smoother_norm="layer")).double()
        config = TrainingConfig(
            output_dir=str(tmp_path / str(count)), per_device_train_batch_size=size, gradient_accumulation_steps=count,
            max_train_steps=1, max_grad_norm=0.0, report_to="none",
        )  # fmt: skip
        seen = {}

        def keep_gradients(optimizer, *_, model=model, seen=seen):
            seen.update({name: parameter.grad.clone() for name, parameter in model.named_parameters()})

        handle = register_optimizer_step_pre_hook(keep_gradients)
        losses.append(train(model, [_labelled_batch(kind)], config).train_loss)
        handle.remove()
        gradients.append(seen)
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    for name, whole in gradients[0].items():
        torch.testing.assert_close(
            gradients[1][name], whole, rtol=1e-5, atol=1e-7, msg=lambda text, name=name: f"{name}: {text}"
        )


# AdamW divides tiny gradients by themselves, rounding included: a gentle rate keeps that out of the comparison.
GENTLE = dict(max_train_steps=6, learning_rate=1e-4)


def _one_of_several(rank: int, count: int, port: int, output_dir: str, model_settings: dict, settings: dict) -> None:
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(count), ACCELERATE_USE_CPU="true")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    if rank > 0:
        loop.mfu_per_speed = None  # the first process counts and measures for all
    pretrain(Path(output_dir), model_settings, **settings)


def _log_of(count: int, target: Callable, output_dir: Path, *arguments: Any) -> list[dict]:
    """The log of a run of so many processes, which `target` is for its rank, their number, a port, the folder and the arguments."""
    port = free_port()
    ranks = [
        processes.Process(target=target, args=(rank, count, port, str(output_dir), *arguments)) for rank in range(count)
    ]
    for child in ranks:
        child.start()
    for child in ranks:
        child.join()
    assert [child.exitcode for child in ranks] == [0] * count
    return read_log(output_dir / "log.jsonl")


def _assert_the_same_run(first: list[dict], second: list[dict]) -> None:
    for one, two in zip(first, second, strict=True):
        for name in {"loss", "grad_norm", "eval_loss", "tokens"} & one.keys():
            assert two[name] == pytest.approx(one[name], rel=1e-4), name


def test_a_global_batch_size_is_that_of_one_process_and_of_two_and_a_run_of_two_goes_on_on_one_and_on_four(tmp_path):
    model_settings = NO_DROPOUT | {"smoother_norm": "layer"}  # BatchNorm sees micro-batches
    settings = GENTLE | {"per_device_train_batch_size": 2, "global_batch_size": 8}
    alone = pretrain(tmp_path / "one", model_settings, **settings)
    two = _log_of(2, _one_of_several, tmp_path / "two", model_settings, settings)
    _assert_the_same_run(alone.history, two)
    shutil.rmtree(tmp_path / "two" / "checkpoint-6")
    shutil.copytree(tmp_path / "two", tmp_path / "four")
    again = settings | {"resume_from_checkpoint": "latest"}
    _assert_the_same_run(two, pretrain(tmp_path / "two", model_settings, **again).history)
    _assert_the_same_run(two, _log_of(4, _one_of_several, tmp_path / "four", model_settings, again))
    whole = pretrain(tmp_path / "whole", model_settings, **GENTLE, per_device_train_batch_size=8)
    _assert_the_same_run(whole.history, alone.history)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"global_batch_size": 12},
            "global_batch_size = 12 is not divisible by 1 process x per_device_train_batch_size = 8: give",
        ),
        ({"global_batch_size": 4}, "global_batch_size = 4 is not divisible by 1 process"),
        (
            {"global_batch_size": 16, "gradient_accumulation_steps": 2},
            "= 16 and gradient_accumulation_steps = 2: the second",
        ),
        ({"global_batch_size": 0}, "global_batch_size = 0: must be at least 1"),
    ],
)
def test_a_global_batch_size_that_does_not_fit_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        TrainingConfig(output_dir="x", **settings)


def test_two_processes_give_the_run_of_one_also_with_batchnorm(tmp_path):
    alone = pretrain(tmp_path / "one", NO_DROPOUT, **GENTLE, per_device_train_batch_size=8)
    _assert_the_same_run(alone.history, _log_of(2, _one_of_several, tmp_path / "two", NO_DROPOUT, GENTLE))
    states = [AutoModelForMaskedLM.from_pretrained(tmp_path / run).state_dict() for run in ("one", "two")]
    statistics = [name for name in states[0] if "running_" in name]
    assert statistics
    for name in statistics:
        torch.testing.assert_close(states[1][name], states[0][name], rtol=1e-4, atol=1e-5)


def _sharded(rank: int, port: int) -> None:
    torch.set_num_threads(1)
    set_seed(0)
    model = S3BertForMaskedLM(S3BertConfig(**SIZES, **NO_DROPOUT)).double()  # in which no rounding hides a wrong sum
    whole = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    batch = _labelled_batch("classification") | {"labels": torch.randint(5, 99, (16, 11))}
    twin = copy.deepcopy(model)
    alone = twin(**batch).loss
    alone.backward()

    torch.distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    units = [module for module in model.modules() if type(module).__name__ in model._no_split_modules]
    assert units, "the classes to wrap are in the model"
    for unit in (*units, model):
        fully_shard(unit)
    gathered = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    assert all(torch.equal(gathered[name], whole[name]) for name in whole)
    half = slice(8 * rank, 8 * rank + 8)
    loss = model(**{name: tensor[half] for name, tensor in batch.items()}).loss
    loss.backward()
    both = loss.detach().clone()
    torch.distributed.all_reduce(both)
    torch.testing.assert_close(both / 2, alone.detach())
    gradients = {name: parameter.grad.full_tensor() for name, parameter in model.named_parameters()}
    for name, parameter in twin.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-9, atol=1e-12)
    torch.distributed.destroy_process_group()


def test_a_model_sharded_over_two_processes_has_the_loss_and_gradients_of_a_whole_one():
    port = free_port()
    pair = [processes.Process(target=_sharded, args=(rank, port)) for rank in range(2)]
    for child in pair:
        child.start()
    for child in pair:
        child.join()
    assert [child.exitcode for child in pair] == [0, 0]


def _one_of_several_shards(rank: int, count: int, port: int, output_dir: str, settings: dict) -> None:
    os.environ.update(ACCELERATE_USE_FSDP="true", FSDP_VERSION="2")
    shard_on_cpus()
    _one_of_several(rank, count, port, output_dir, SHARDED, settings)


# Rows that two processes cannot share alike, and parameters of which the second holds nothing.
# Without kinks: a ReLU at 0 may be rounded to either side.
SHARDED = NO_DROPOUT | {"smoother_norm": "layer", "num_attention_heads": 1, "stem_activation": "elu"}


def _log_of_two_shards(output_dir: Path, **settings) -> list[dict]:
    return _log_of(2, _one_of_several_shards, output_dir, settings)


def test_a_sharded_run_has_the_losses_of_a_whole_one_and_goes_on_from_its_checkpoint_and_from_a_whole_ones(tmp_path):
    # Adam makes whole steps of gradients that are rounding alone, unless its guard is larger than they are.
    whole = dict(global_batch_size=8, eval_steps=3, save_steps=3, num_warmup_steps=0, adam_epsilon=1e-2) | GENTLE
    pretrain(tmp_path / "one", SHARDED, **whole, per_device_train_batch_size=4)
    alone = read_log(tmp_path / "one" / "log.jsonl")
    settings = whole | dict(per_device_train_batch_size=2)
    _assert_the_same_run(alone, _log_of_two_shards(tmp_path / "two", **settings))
    last = [load_file(tmp_path / run / "checkpoint-6" / "optimizer.safetensors") for run in ("one", "two")]
    assert last[0].keys() == last[1].keys()
    for name, tensor in last[0].items():
        # After six steps a ReLU at 0 may have rounded to either side; a parameter that was lost would be wrong by all of it.
        assert (last[1][name] - tensor).norm() <= 0.1 * tensor.norm(), name
    for run in ("one", "two"):  # a checkpoint is the same whoever wrote it
        shutil.rmtree(tmp_path / run / "checkpoint-6")
        shutil.copytree(tmp_path / run, tmp_path / f"again-{run}")
        resumed = _log_of_two_shards(tmp_path / f"again-{run}", **settings, resume_from_checkpoint="latest")
        _assert_the_same_run(alone, resumed)


def test_early_stopping_waits_its_patience_and_saves(tmp_path):
    still = {"smoother_norm": "layer"}  # BatchNorm's running statistics move even when nothing learns
    result = pretrain(
        tmp_path, still, learning_rate=1e-30, early_stopping_patience=2, eval_steps=2, activation_checkpointing=True
    )
    assert result.step == 6, "best at step 2, then two evaluations without a better one"
    assert validate_checkpoint(tmp_path / "checkpoint-6") is None


def test_a_run_that_stopped_early_does_not_go_on_when_called_again(tmp_path):
    settings = dict(early_stopping_patience=2, eval_steps=2, greater_is_better=True, load_best_model_at_end=True)
    first = pretrain(tmp_path, **settings)
    weights = (tmp_path / "model.safetensors").read_bytes()
    assert first.step < 60, "the highest loss is called best here, so that it stops early"
    again = pretrain(tmp_path, **settings, resume_from_checkpoint="latest")
    assert (again.step, again.metrics, again.history) == (first.step, first.metrics, first.history)
    assert (tmp_path / "model.safetensors").read_bytes() == weights
    patience = {"early_stopping_patience": 4, "allow_changed": ["early_stopping_patience"]}
    more = pretrain(tmp_path, **settings | patience, resume_from_checkpoint="latest")
    assert more.step == first.step + 4, "with more patience it does"


def test_a_run_ends_with_the_weights_of_its_best_evaluation_however_few_checkpoints_are_kept(tmp_path):
    """The highest loss is called best here, which is the first one's."""
    config = TrainingConfig(
        output_dir=str(tmp_path), max_train_steps=12, eval_steps=3, save_total_limit=1, learning_rate=3e-3,
        load_best_model_at_end=True, greater_is_better=True, report_to="none",
    )  # fmt: skip
    model = S3BertForMaskedLM(S3BertConfig(**SIZES))
    masking = Masking.for_tokenizer(tokenizer())
    held_out = MlmEvaluation(MadeUpBlocks(), masking, 8, max_blocks=10)
    result = train(
        model, MlmBatches(PackedSteps(MadeUpBlocks(), config.sequences_per_step, 0), masking), config, held_out
    )
    losses = [record["eval_loss"] for record in result.history if "eval_loss" in record]
    assert len(losses) == 4
    assert result.metrics["loss"] == losses[0] == max(losses) > min(losses)
    assert held_out(model.eval(), Accelerator())["loss"] == pytest.approx(losses[0], rel=1e-6), "in memory"
    assert [folder.name for folder in all_checkpoints(tmp_path)] == ["checkpoint-3", "checkpoint-12"]
    published = (tmp_path / "model.safetensors").read_bytes()
    assert published == (tmp_path / "checkpoint-3" / "model.safetensors").read_bytes()

    (tmp_path / "checkpoint-3" / "model.safetensors").write_bytes(published[:-1] + bytes([published[-1] ^ 1]))
    again = dataclasses.replace(config, resume_from_checkpoint="latest")
    with pytest.raises(
        ValueError, match=r"checkpoint-3, its best evaluation's, is damaged .model\.safetensors does not match"
    ):
        train(model, MlmBatches(PackedSteps(MadeUpBlocks(), config.sequences_per_step, 0), masking), again, held_out)
    assert (tmp_path / "model.safetensors").read_bytes() == published, "nothing damaged is published"


def test_a_compiled_run_is_one_graph_and_gives_the_losses_of_an_eager_one(tmp_path, monkeypatch):
    quick = functools.partialmethod(torch.nn.Module.compile, backend="eager")  # the next test has inductor's minute
    monkeypatch.setattr(torch.nn.Module, "compile", quick)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    result = pretrain(tmp_path, NO_DROPOUT, max_train_steps=3, torch_compile=True)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
    assert not torch._dynamo.utils.counters["graph_break"]
    eager = pretrain(tmp_path / "eager", NO_DROPOUT, max_train_steps=3)
    assert [record["loss"] for record in result.history if "loss" in record] == pytest.approx(
        [record["loss"] for record in eager.history if "loss" in record], rel=1e-4
    )


@pytest.mark.slow
def test_a_run_compiled_for_a_cpu_drops_out_what_an_eager_run_drops_out(tmp_path):
    torch._dynamo.reset()
    compiled, eager = (
        pretrain(tmp_path / str(flag), max_train_steps=3, torch_compile=flag).history for flag in (True, False)
    )
    assert [record["loss"] for record in compiled if "loss" in record] == pytest.approx(
        [record["loss"] for record in eager if "loss" in record], rel=1e-4
    )


@pytest.mark.slow
def test_a_day_of_lengths_in_training_and_evaluation_stays_compiled(monkeypatch):
    quick = functools.partialmethod(torch.nn.Module.compile, backend="eager")
    monkeypatch.setattr(torch.nn.Module, "compile", quick)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    sizes = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    model = S3BertForMaskedLM(S3BertConfig(**sizes, vocab_size=99, max_position_embeddings=256, sparse_prediction=True))
    with torch._dynamo.config.patch(recompile_limit=8, fail_on_recompile_limit_hit=True):
        execution.compile_in_place(model, torch.device("cpu"))
        for length in (6, 256, 40, 100, 20, 60, 130, 30, 90, 200):
            ids = torch.randint(5, 99, (2, length))
            for training in (True, False):
                model.train(training)(input_ids=ids, labels=ids, max_predictions=2 * length)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 8, (
        "one more than the limit that torch has by itself"
    )
    assert not torch._dynamo.utils.counters["graph_break"]


def test_a_gpu_multiplies_float32_in_tf32_and_a_cpu_does_not():
    before = torch.get_float32_matmul_precision()
    try:
        execution.use_tensor_cores(torch.device("cpu"))
        assert torch.get_float32_matmul_precision() == before
        execution.use_tensor_cores(torch.device("cuda"))
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.fixture
def processor(monkeypatch):
    """Sets what the processor has, and how many FLOP/s its products reach by dtype."""

    def has(avx512=False, amx=False, bfloat16=2.0, float32=1.0):
        execution._processor_gains_from_bf16.cache_clear()
        execution.advise_bf16.cache_clear()
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512)
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
        speeds = {torch.bfloat16: bfloat16, torch.float32: float32}
        monkeypatch.setattr(execution, "product_flops", lambda device, size, dtype: speeds[dtype])

    yield has
    execution._processor_gains_from_bf16.cache_clear()


def test_automatic_precision_is_bf16_where_a_device_gains_from_it(monkeypatch, processor):
    for able in (True, False):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation, able=able: able)
        processor(avx512=able)
        for device in ("cuda", "cpu"):
            assert execution.mixed_precision("auto", torch.device(device)) == ("bf16" if able else None)
    processor(amx=True)
    assert execution.mixed_precision("auto", torch.device("cpu")) == "bf16"
    processor(avx512=True, bfloat16=0.5)
    assert execution.mixed_precision("auto", torch.device("cpu")) is None, "it has bfloat16, and is slower in it"
    assert execution.mixed_precision("fp16", torch.device("cuda")) == "fp16"


def test_measuring_products_leaves_the_default_generator_alone():
    before = torch.random.get_rng_state()
    assert product_flops(torch.device("cpu"), 64, torch.bfloat16) > 0
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize(("able", "asked"), [(True, None), (False, None), (True, "no")])
def test_a_run_in_float32_is_told_of_the_bf16_of_its_processor(able, asked, tmp_path, processor, caplog):
    processor(avx512=able)
    caplog.set_level("INFO")
    pretrain(tmp_path, max_train_steps=1, mixed_precision=asked)
    assert ("--mixed_precision auto trains in it" in caplog.text) == (able and asked is None)


class CountReads(TorchDispatchMode):
    """Counts the operations for which the host must wait for what a device computes: values read, shapes that depend on them."""

    reads = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.reads += bool({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(operation.tags))
        return operation(*args, **(kwargs or {}))


def small_bert() -> BertForMaskedLM:
    """A model that, unlike S3BERT on CPU, does not look at its inputs' values."""
    return BertForMaskedLM(
        BertConfig(
            vocab_size=99, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
            max_position_embeddings=LENGTH,
        )
    )  # fmt: skip


def test_the_loop_reads_nothing_from_the_device_between_two_log_records(tmp_path):
    reads = []
    for steps in (2, 7):
        config = TrainingConfig(
            output_dir=str(tmp_path / str(steps)), max_train_steps=steps, logging_steps=10, report_to="none",
            per_device_train_batch_size=2, gradient_accumulation_steps=2,
        )  # fmt: skip
        with CountReads() as counter:
            train(
                small_bert(),
                MlmBatches(PackedSteps(MadeUpBlocks(), 4, seed=7), Masking.for_tokenizer(tokenizer())),
                config,
            )
        reads.append(counter.reads)
    assert reads[0] > 0, "the log record itself is read"
    assert reads[0] == reads[1]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_step_on_the_gpu_never_waits_for_it(tmp_path):
    steps = []

    def watch(*_):
        steps.append(len(steps) + 1)
        if steps[-1] in (3, 6):  # the first steps allocate; the seventh logs
            torch.cuda.set_sync_debug_mode("error" if steps[-1] == 3 else "default")

    handle = register_optimizer_step_pre_hook(watch)
    try:
        pretrain(tmp_path, max_train_steps=7, logging_steps=7, save_steps=7, eval_steps=7)
    finally:
        handle.remove()
        torch.cuda.set_sync_debug_mode("default")
    assert steps[-1] == 7


class WatchedBatches(MlmBatches):
    """Batches that say which of them were asked for, and fail at one step."""

    def __init__(self, failing_step: int | None = None):
        super().__init__(PackedSteps(MadeUpBlocks(), batch_size=2, seed=7), Masking.for_tokenizer(tokenizer()))
        self.failing_step, self.asked = failing_step, [threading.Event() for _ in range(10)]

    def share(self, step: int, own: Callable) -> tuple[dict[str, torch.Tensor], int, int]:
        self.asked[step].set()
        if step == self.failing_step:
            raise OSError(f"the disk with step {step} is gone")
        return super().share(step, own)


def preparing_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("batches")]


def test_deterministic_algorithms_are_taken_during_a_run_alone_and_change_nothing_on_a_cpu(tmp_path):
    def state() -> tuple:
        cudnn = torch.backends.cudnn
        return torch.get_deterministic_debug_mode(), cudnn.deterministic, cudnn.benchmark

    def run(name: str, **settings) -> list[dict]:
        return exact(pretrain(tmp_path / name, max_train_steps=5, **settings).history)

    before, states = state(), []
    assert before[:2] == (0, False)
    usual = run("usual")
    with register_optimizer_step_pre_hook(lambda *_: states.append(state())):
        assert run("deterministic", deterministic=True) == usual
    assert states == [(2, True, False)] * 5
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] in (":4096:8", ":16:8")
    assert state() == before
    with pytest.raises(FloatingPointError):
        run("not-finite", deterministic=True, learning_rate=1e30, num_warmup_steps=0)
    assert state() == before


def test_the_next_batches_are_prepared_while_a_step_is_computed(tmp_path):
    batches, early = WatchedBatches(), []
    config = TrainingConfig(
        output_dir=str(tmp_path), max_train_steps=5, per_device_train_batch_size=2, report_to="none"
    )

    def wait_for_the_next(*_):
        following = min(len(early) + 1, 4)
        early.append(batches.asked[following].wait(timeout=5))

    handle = register_optimizer_step_pre_hook(wait_for_the_next)
    train(small_bert(), batches, config)
    handle.remove()
    assert early == [True] * 5, "a step ends only when the next one's batch is under way"
    assert not preparing_threads()


def test_an_error_in_the_data_reaches_the_caller_after_the_steps_before_it(tmp_path):
    config = TrainingConfig(
        output_dir=str(tmp_path), max_train_steps=9, per_device_train_batch_size=2, logging_steps=1, report_to="none"
    )
    with pytest.raises(OSError, match="the disk with step 4 is gone"):
        train(small_bert(), WatchedBatches(failing_step=4), config)
    assert read_log(tmp_path / "log.jsonl")[-1]["step"] == 4
    assert not preparing_threads()


def test_worker_processes_prepare_the_same_batches(tmp_path):
    runs = [
        pretrain(tmp_path / str(workers), max_train_steps=6, dataloader_num_workers=workers).history
        for workers in (0, 2)
    ]
    assert exact(runs[0]) == exact(runs[1])
