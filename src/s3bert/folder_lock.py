"""Locks on output folders: one process writes into a folder, and another is told which.

They are the operating system's, so they end with their process, however it ends; a folder on a network's disk is locked for other
machines too where its file system has locks, and by the lock file alone where it has none. Beside the lock file lies what its holder
says of itself. Both are hidden files, which are never published, and both go with the lock.
"""

import json
import logging
import os
import shlex
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from .files import write_text


logger = logging.getLogger(__name__)

_PATIENCE = 1.0  # seconds: a process that is just leaving has left, and one that has just come has said who it is


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Makes the folder where it is not there, and keeps it from other processes; folders that it made and nobody filled go again.

    Within it the same thread may lock the folder once more.

    Raises:
        ValueError: another process has locked it; the message says which. A file is in its place.
        OSError: it cannot be made, or nothing written into it.
    """
    lock = FileLock(folder / ".run.lock", timeout=_PATIENCE, is_singleton=True)
    if lock.is_locked:
        yield
        return
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise ValueError(
            f"{folder} cannot be a folder, for a file lies there or above it: name another one."
        ) from error
    except OSError as error:
        raise OSError(
            f"{folder} cannot be made ({error.strerror}): name another folder, where you may write."
        ) from error
    try:
        try:
            lock.acquire()
        except Timeout:
            who, elsewhere = _holder(lock)
            remedy = f", or, if it is long gone there, remove {lock.lock_file}" if elsewhere else ""
            raise ValueError(
                f"{folder} is in use: {who} writes into it. Two at once would overwrite one another's files: wait for its end or "
                f"end it, or name another folder{remedy}."
            ) from None
        except OSError as error:
            raise OSError(
                f"{folder} cannot be written into ({error.strerror}): name another folder, where you may write."
            ) from error
        with _held(lock):
            yield
    finally:
        for path in made:
            with suppress(OSError):
                path.rmdir()


@contextmanager
def turn_at(folder: Path) -> Iterator[None]:
    """Waits until no other process is within it for this folder, which may be replaced meanwhile: the lock lies beside it."""
    lock = FileLock(folder.parent / f".{folder.resolve().name}.lock", timeout=_PATIENCE)
    try:
        lock.acquire()
    except Timeout:
        logger.info("%s is being written by %s: waiting for its end.", folder, _holder(lock)[0])
        lock.acquire(timeout=-1)
    with _held(lock):
        yield


@contextmanager
def _held(lock: FileLock) -> Iterator[None]:
    """Says who has the lock, and releases it."""
    file, note = Path(lock.lock_file), _note(lock)
    try:
        holder = {
            "process": os.getpid(),
            "host": socket.gethostname(),
            "started": datetime.now().astimezone().isoformat(" ", "seconds"),
            "command": f"{sys.argv[0]} {shlex.join(sys.argv[1:])}",  # the first is "s3bert pretrain"
        }
        write_text(note, json.dumps(holder) + "\n")
        yield
    finally:
        # The file goes while it is locked: one who waits for it sees that it is gone, and makes another.
        for written in (note, file):
            with suppress(OSError):  # Windows removes no open file; filelock does so there
                written.unlink()
        lock.release()


def _note(lock: FileLock) -> Path:
    return Path(lock.lock_file).with_suffix(".json")


def _holder(lock: FileLock) -> tuple[str, bool]:
    """Who has the lock, in words, and whether on another machine."""
    try:
        holder = json.loads(_note(lock).read_text(encoding="utf-8"))
        who = f"process {holder['process']} on {holder['host']}, since {holder['started']} ({holder['command']})"
        return who, holder["host"] != socket.gethostname()
    except (OSError, ValueError, TypeError, KeyError):
        return "another process", False
