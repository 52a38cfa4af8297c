"""A command on several processes: one that is killed, hangs or is told to stop, torchrun's restarts, and FSDP2 from the shell."""

import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from datetime import timedelta
from functools import partial
from pathlib import Path

import psutil
import pytest
import torch
from children import Child, free_port, processes, tree
from long_commands import Commands
from sharded_on_cpus import shard_on_cpus
from tiny_pretraining import exact
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from s3bert import commands
from s3bert.training import processes as training_processes
from s3bert.training.checkpoints import all_checkpoints
from s3bert.training.log import read_log


ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Commands:
    return Commands(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def words(runs) -> list[str]:
    """A pretraining of six steps with dropout, a checkpoint every other step."""
    return runs.words("pretrain")


def _send_itself(number: signal.Signals, step: int) -> None:
    """From here on this process gets a signal in the midst of that step."""
    steps = itertools.count(1)

    def send(*_) -> None:
        if next(steps) == step:
            os.kill(os.getpid(), number)

    register_optimizer_step_pre_hook(send)


def _rank(rank: int, port: int, lost: signal.Signals | None, patience: float, sharded: bool) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", OMP_NUM_THREADS="1")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    training_processes._PATIENCE = timedelta(seconds=patience)
    if sharded:
        os.environ.update(ACCELERATE_USE_FSDP="true", FSDP_VERSION="2", ACCELERATE_MIXED_PRECISION="bf16")
        shard_on_cpus()
    if lost and rank == 1:
        _send_itself(lost, step=3)


def _pair(
    words: list[str], folder: Path, lost: signal.Signals | None = None, patience: float = 100.0, sharded: bool = False
) -> list[Child]:
    """The two processes of a run, the second of which gets a signal in the third step."""
    port = free_port()
    befores = [partial(_rank, rank, port, lost, patience, sharded) for rank in range(2)]
    return [Child("pretrain", words, folder, before=before) for before in befores]


@pytest.mark.parametrize(
    ("lost", "said"), [(signal.SIGKILL, "Connection (reset|closed) by peer"), (signal.SIGSTOP, "[Tt]imed out")]
)
def test_the_process_that_is_left_says_what_happened_and_how_to_go_on(lost, said, words, tmp_path):
    left, other = _pair(words, tmp_path, lost, patience=10.0)
    outcome = left.wait()
    other.send(signal.SIGKILL)
    other.wait()
    assert (outcome.status, outcome.problem) == (1, None)
    assert "error: process 0 of 2 does not reach the others" in outcome.error
    assert re.search(said, outcome.error), outcome.error
    assert "--resume_from_checkpoint latest" in outcome.error
    assert [folder.name for folder in all_checkpoints(tmp_path / "run")] == ["checkpoint-2"]


def _prepares_slowly(rank: int, port: int) -> None:
    _rank(rank, port, lost=None, patience=1.0, sharded=False)
    torch.set_num_threads(1)
    written = Path("written")
    with training_processes.main_process_first():
        if rank == 0:
            time.sleep(2)
            written.touch()
        assert written.exists()


def test_processes_wait_as_long_as_one_prepares_data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    port = free_port()
    pair = [processes.Process(target=_prepares_slowly, args=(rank, port)) for rank in range(2)]
    for process in pair:
        process.start()
    for process in pair:
        process.join(60)
    assert [process.exitcode for process in pair] == [0, 0]


def test_a_signal_to_one_of_several_processes_stops_all_after_its_step(words, tmp_path):
    pair = _pair([*words, "--logging_steps", "6", "--eval_steps", "6", "--save_steps", "6"], tmp_path, signal.SIGTERM)
    outcomes = [child.wait() for child in pair]
    assert [outcome.status for outcome in outcomes] == [128 + signal.SIGTERM] * 2
    assert "stopped after step 3 of 6, with run/checkpoint-3" in outcomes[0].output


def test_processes_that_do_not_see_the_same_output_folder_do_not_train(runs, words, tmp_path):
    shutil.copytree(runs.whole("pretrain").folder, tmp_path / "first")
    port = free_port()
    children = [
        Child("pretrain", words, tmp_path / name, before=partial(_rank, rank, port, None, 100.0, False))
        for rank, name in enumerate(("first", "second"))
    ]
    outcomes = [child.wait() for child in children]
    assert [(outcome.status, outcome.problem) for outcome in outcomes] == [(1, None)] * 2
    assert (
        "Process 1 would go on from no checkpoint, the first one from run/checkpoint-6: --output_dir run"
        in outcomes[1].error
    )
    assert tree(tmp_path / "first") == tree(runs.whole("pretrain").folder)


def _work(words: list[str]) -> None:
    torch.set_num_threads(1)
    restart, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
    if (restart, rank) == ("0", "0"):  # the one that holds the folder's lock
        _send_itself(signal.SIGKILL, step=4)
    if (restart, rank) == ("1", "1"):
        assert [folder.name for folder in all_checkpoints(Path("run"))] == ["checkpoint-2"]
        time.sleep(1)  # the other comes alone to where they meet, and finds what those before them left
    sys.argv = ["s3bert pretrain", *words]
    commands.run("pretrain")


def _torchrun(words: list[str], folder: str) -> None:
    """`torchrun --nproc_per_node 2 --max-restarts 1`, whose workers are forked rather than started."""
    os.chdir(folder)
    os.environ["OMP_NUM_THREADS"] = "1"
    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=2, max_restarts=1, start_method="forkserver", run_id="run",
        rdzv_backend="static", rdzv_endpoint=f"127.0.0.1:{free_port()}", rdzv_configs={"rank": 0},
    )  # fmt: skip
    elastic_launch(config, _work)(words)


def test_torchrun_starts_a_killed_run_again_which_goes_on_to_the_same_losses(words, tmp_path):
    (tmp_path / "killed").mkdir()
    launcher = processes.Process(target=_torchrun, args=(words, str(tmp_path / "killed")))
    launcher.start()
    whole = _pair(words, tmp_path / "whole")
    assert [child.wait().status for child in whole] == [0, 0]
    launcher.join(100)
    launcher.terminate()  # if it hangs, and its workers with it
    launcher.join()
    assert launcher.exitcode == 0
    logs = [read_log(tmp_path / name / "run" / "log.jsonl") for name in ("killed", "whole")]
    assert exact(logs[0]) == exact(logs[1])


@pytest.mark.slow
def test_accelerate_shards_the_script_and_starts_it_again_when_a_process_is_killed(words, tmp_path):
    """FSDP2 in bf16: steps, evaluations, checkpoints, a resume, and the losses of a run that nothing disturbed."""
    words = [*words, "--max_train_steps", "30"]
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", "configs/accelerate/fsdp2.yaml"]
    launch += ["--max_restarts", "1", "--main_process_port", str(free_port())]
    script = [ROOT / "tests" / "sharded_on_cpus.py", ROOT / "scripts" / "pretrain_mlm.py"]
    run = tmp_path / "killed"
    output = tmp_path / "output"
    with output.open("wb") as file:
        launcher = subprocess.Popen([*launch, *script, *words, "--output_dir", run], cwd=ROOT, stdout=file, stderr=file)
    while not all_checkpoints(run) and launcher.poll() is None:
        time.sleep(0.02)
    workers = psutil.Process(launcher.pid).children()
    (second,) = [worker for worker in workers if worker.environ().get("RANK") == "1"]
    second.kill()
    assert launcher.wait(300) == 0
    assert "error: process 0 of 2 does not reach the others" in output.read_text()
    assert f"Resuming from {run}/checkpoint-" in output.read_text()
    assert [child.wait().status for child in _pair(words, tmp_path / "whole", sharded=True)] == [0, 0]
    logs = [read_log(folder / "log.jsonl") for folder in (run, tmp_path / "whole" / "run")]
    assert exact(logs[0]) == exact(logs[1])
