"""This process's place among those of a run, and the output folder that they share."""

import contextlib
import os
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import DynamoBackend, PrecisionType, broadcast_object_list, parse_flag_from_env
from torch.distributed import PrefixStore, TCPStore

from s3bert.folder_lock import locked_folder


# How long a process waits for the others, which may have gone without a word: the longest that one of them writes a checkpoint. Torch's
# own is this for GPUs and half an hour for CPUs.
_PATIENCE = timedelta(minutes=10)
# How long where one of them prepares what the others then find: a large corpus takes hours.
_PATIENCE_WITH_DATA = timedelta(days=2)


def process_state() -> PartialState:
    """This process's place among those of the run; call it rather than `PartialState`, which takes processes without an
    accelerator for separate runs unless told that they are meant to be on CPUs.

    Raises:
        ValueError: accelerate's configuration names a compiler or a precision that there is not.
    """
    for name, known in (("ACCELERATE_DYNAMO_BACKEND", DynamoBackend), ("ACCELERATE_MIXED_PRECISION", PrecisionType)):
        value, names = os.environ.get(name, "no"), [each.value.lower() for each in known]
        if value.lower() not in names:
            raise ValueError(
                f"{name} = {value}: there is {', '.join(names)}. Set one of them, here or by `accelerate config`, or leave it out."
            )
    on_cpu = parse_flag_from_env("ACCELERATE_USE_CPU") or not torch.accelerator.is_available()
    return PartialState(cpu=on_cpu, timeout=_PATIENCE, **_meeting_place())


def _meeting_place() -> dict[str, Any]:
    """For processes that torchrun started again, a store without the addresses of those before them, as `init_process_group` takes it.

    Torch 2.13 gives both the same store, and they call those that are gone (pytorch/pytorch#135712). Over several machines restarts are
    not counted alike, and torchrun must be told to make a new one (docs/distributed.md).
    """
    place = os.environ
    restart = place.get("TORCHELASTIC_RESTART_COUNT", "0")
    one_machine = place.get("LOCAL_WORLD_SIZE") == place.get("WORLD_SIZE")
    same_store = restart != "0" and place.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if not (same_store and one_machine) or torch.distributed.is_initialized():
        return {}
    store = TCPStore(place["MASTER_ADDR"], int(place["MASTER_PORT"]), is_master=False, timeout=_PATIENCE)
    group = {"rank": int(place["RANK"]), "world_size": int(place["WORLD_SIZE"])}
    return group | {"store": PrefixStore(f"restart {restart}", store)}


@contextlib.contextmanager
def main_process_first() -> Iterator[None]:
    """What the first process of each machine writes within it, a corpus for example, the others find there; they wait as long as it takes.

    Accelerate's `local_main_process_first` ends the run where that takes longer than processes wait for one another.
    """
    state = process_state()
    if not torch.distributed.is_initialized():  # alone
        with state.local_main_process_first():
            yield
        return
    group = torch.distributed.new_group(backend="gloo", timeout=_PATIENCE_WITH_DATA)
    if not state.is_local_main_process:
        torch.distributed.barrier(group)
    yield
    if state.is_local_main_process:
        torch.distributed.barrier(group)


@contextlib.contextmanager
def locked_for_run(folder: Path) -> Iterator[None]:
    """`locked_folder` for all processes of a run: the main one locks it, and none goes on where it cannot.

    Raises:
        ValueError: in the main process, another run has locked it.
        SystemExit: in the others, then.
    """
    state = process_state()
    failure: list[Exception | None] = [None]
    with contextlib.ExitStack() as stack:
        if state.is_main_process:
            try:
                stack.enter_context(locked_folder(folder))
            except (ValueError, OSError) as error:
                failure = [error]
        broadcast_object_list(failure)
        if failure[0] is not None:
            if state.is_main_process:
                raise failure[0]
            sys.exit(1)
        yield
