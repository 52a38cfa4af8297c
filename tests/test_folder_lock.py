"""Locks on output folders: real processes that hold them, are killed, and start at once."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from children import Child, free_port, processes
from torch.optim.optimizer import register_optimizer_step_pre_hook

from s3bert import folder_lock
from s3bert.commands import COMMANDS, _module, prepare_corpus
from s3bert.folder_lock import locked_folder, turn_at
from s3bert.training.processes import locked_for_run


# Locks a folder, forks a child, as a loader of data does, and waits.
HOLDER = """
import os, sys, time
from pathlib import Path
from s3bert.folder_lock import locked_folder
with locked_folder(Path(sys.argv[1])):
    child = os.fork()
    if child:
        print(child, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path):
    """A process that has locked `tmp_path / "run"`, and its child's id."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        child = int(process.stdout.readline())
        yield process, child
        process.kill()
        os.kill(child, signal.SIGKILL)


def test_a_folder_in_use_names_its_process_and_is_free_once_that_is_killed(holder, tmp_path):
    process, child = holder
    whose = rf"run is in use: process {process.pid} on {socket.gethostname()}, since 20.* \(-c .*run\) writes into it\."
    with pytest.raises(ValueError, match=whose), locked_folder(tmp_path / "run"):
        pass
    process.kill()
    process.wait()
    os.kill(child, 0)  # is there still
    with locked_folder(tmp_path / "run"), locked_folder(tmp_path / "run"):
        pass
    assert not list((tmp_path / "run").iterdir())


@pytest.mark.skipif(not Path("/sys/kernel").is_dir(), reason="needs a folder that not even root writes into")
@pytest.mark.parametrize(("folder", "what"), [("/sys/run", "made"), ("/sys/kernel", "written into")])
def test_a_folder_that_cannot_be_written_is_named_with_the_remedy(folder, what):
    told = rf"^{folder} cannot be {what} \(.*\): name another folder, where you may write"
    with pytest.raises(OSError, match=told), locked_folder(Path(folder)):
        pass


@pytest.mark.parametrize("note", ["", "[]", "{}", "\0"])
def test_who_has_the_folder_may_be_unknown(note, holder, tmp_path, monkeypatch):
    monkeypatch.setattr(folder_lock, "_PATIENCE", 0.0)
    (tmp_path / "run" / ".run.json").write_text(note)
    with pytest.raises(ValueError, match="in use: another process writes"), locked_folder(tmp_path / "run"):
        pass


def test_a_process_of_another_machine_may_be_gone(holder, tmp_path, monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "elsewhere")
    with pytest.raises(ValueError, match=r"long gone there, remove .*run/\.run\.lock"), locked_folder(tmp_path / "run"):
        pass


WAITED_FOR = """
import sys
from pathlib import Path
from s3bert.folder_lock import turn_at
with turn_at(Path(sys.argv[1])):
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_who_waits_for_a_turn_says_for_whom_and_leaves_nothing(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(folder_lock, "_PATIENCE", 0.0)
    command = [sys.executable, "-c", WAITED_FOR, str(tmp_path / "corpus")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        threading.Timer(0.3, process.stdin.close).start()
        with caplog.at_level("INFO", "s3bert.folder_lock"), turn_at(tmp_path / "corpus"):
            assert process.wait(60) == 0
    (said,) = caplog.messages
    assert f"corpus is being written by process {process.pid} on {socket.gethostname()}" in said
    assert not list(tmp_path.iterdir())


def test_folders_made_for_nothing_go_again_and_no_others(tmp_path):
    with suppress(KeyError), locked_folder(tmp_path / "runs" / "new"):
        assert (tmp_path / "runs" / "new").is_dir()
        raise KeyError
    assert not list(tmp_path.iterdir())
    (tmp_path / "empty").mkdir()
    with locked_folder(tmp_path / "empty" / "full"):
        (tmp_path / "empty" / "full" / "results.md").touch()
    with locked_folder(tmp_path / "empty"):
        pass
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["empty", "full", "results.md"]
    with (
        pytest.raises(ValueError, match="cannot be a folder, for a file lies there"),
        locked_folder(tmp_path / "empty" / "full" / "results.md"),
    ):
        pass


# What each command takes to get as far as its folder; `run` is that folder.
WORDS = {
    "convert": "--model_name_or_path none --output_dir run",
    "pretrain": "--dataset_name synthetic --output_dir run",
    "pretrain-clm": "--dataset_name synthetic --output_dir run",
    "compare-clm": "--dataset_name synthetic --config_name model/fmmformer-mini --output_dir run",
    "eval-perplexity": "--model_name_or_path none --dataset_name synthetic --output_dir run",
    "finetune": "--model_name_or_path none --train_file none.csv --output_dir run",
    "glue": "--model_name_or_path none --task_name sst2 --output_dir run",
    "table3": "--config table3/smoke --output_dir run",
    "prepare-lra": "--task_name listops --output_dir .",
    "lra": "--task_name text --output_dir run",
    "analyse-lra": "--task_name text --mixer s3 --output_dir run",
    "copy-task": "--max_train_steps 1 --output_dir run",
    "approximation": "--model_name_or_path none --dataset_name synthetic --output_dir run",
    "attention-rank": "--model_name_or_path none --dataset_name synthetic --output_dir run",
    "forecasting": "--dataset_name ettm2 --output_dir run",
    "forecast": "--csv_file none.csv --output_dir run",
    "benchmark": "--output_dir run",
    "export": "--folder none --output_dir run",
    "report": "--results_dir run/text --title Text --add none",
}
NOT_LOCKED = {"demo": "calls others", "prepare-corpus": "waits for its turn", "push": "writes nothing of its own"}


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in NOT_LOCKED])
def test_no_command_writes_into_a_folder_in_use(name, holder, tmp_path, monkeypatch):
    monkeypatch.setattr(folder_lock, "_PATIENCE", 0.0)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "listops").symlink_to("run")  # the folder that prepare-lra writes into
    with pytest.raises(ValueError, match=rf"is in use: process {holder[0].pid} "):
        _module(name).main(WORDS[name].split())
    assert {path.name for path in (tmp_path / "run").iterdir()} == {".run.lock", ".run.json"}


def _one_of_two(rank: int, port: int, folder: str, said: str) -> None:
    os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", ACCELERATE_USE_CPU="true")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    with locked_for_run(Path(folder)):
        (Path(folder) / f"rank-{rank}").touch()


def test_processes_of_one_run_share_the_folder_and_the_refusal(holder, tmp_path):
    said = tmp_path / "said.txt"
    for folder, statuses in (("run", [1, 1]), ("free", [0, 0])):
        arguments = (free_port(), str(tmp_path / folder), str(said))
        pair = [processes.Process(target=_one_of_two, args=(rank, *arguments)) for rank in range(2)]
        for process in pair:
            process.start()
        for process in pair:
            process.join(120)
        assert [process.exitcode for process in pair] == statuses
    assert not list((tmp_path / "run").glob("rank-*"))
    assert sorted(path.name for path in (tmp_path / "free").iterdir()) == ["rank-0", "rank-1"]
    assert said.read_text().count(f"is in use: process {holder[0].pid} ") == 1


def _longer_than_patience() -> None:
    time.perf_counter = time.monotonic  # stands still in a child, and a lock's patience is counted by it
    register_optimizer_step_pre_hook(lambda *_: time.sleep(0.1))


def test_of_two_starts_at_once_one_goes_on_undisturbed_and_the_other_says_why_not(tmp_path):
    words = ["--vocab_size", "800", "--max_seq_length", "32", "--max_train_samples", "60"]
    prepare_corpus.main(["--dataset_name", "synthetic", *words, "--output_dir", str(tmp_path / "corpus")])
    size = "hidden_size=32,num_hidden_layers=1,num_attention_heads=2,intermediate_size=32,max_position_embeddings=32"
    words = ["--dataset_name", str(tmp_path / "corpus"), "--model_type", "s3bert", "--config_overrides", size]
    words += ["--max_train_steps", "40", "--save_steps", "20", "--max_eval_blocks", "8", "--report_to", "none"]
    starts = [
        Child("pretrain", [*words, "--output_dir", str(tmp_path / folder)], tmp_path, before=_longer_than_patience)
        for folder in ("both", "both", "alone")
    ]
    ids = [start.process.pid for start in starts]
    outcomes = [start.wait() for start in starts]
    assert [outcome.problem for outcome in outcomes] == [None] * 3
    assert sorted(outcome.status for outcome in outcomes[:2]) == [0, 1]
    refused = next(number for number in range(2) if outcomes[number].status)
    assert outcomes[refused].error.startswith(f"error: {tmp_path / 'both'} is in use: process {ids[1 - refused]} on ")
    files = [{path.name for path in (tmp_path / folder).rglob("*")} for folder in ("both", "alone")]
    assert files[0] == files[1]
    for file in ("model.safetensors", "checkpoint-40/optimizer.safetensors"):
        assert (tmp_path / "both" / file).read_bytes() == (tmp_path / "alone" / file).read_bytes()
    losses = []
    for folder in ("both", "alone"):
        records = [json.loads(line) for line in (tmp_path / folder / "log.jsonl").read_text().splitlines()]
        losses.append([record.get("loss", record.get("eval_loss")) for record in records])
    assert losses[0] == losses[1]
