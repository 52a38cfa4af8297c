"""Commands in child processes, forked from a server that has imported everything once and run nothing; and what befalls them.

Faults are real: signals that a process sends itself before its n-th system call on a file, or that come from outside at any moment;
writes that the system refuses from that call on, as on a full disk.
"""

import gc
import multiprocessing
import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple


processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(
    [
        "s3bert.training.loop",
        *(
            f"s3bert.experiments.{name}"
            for name in ("copying", "documents", "forecasting", "glue", "lra", "own_series", "pretraining")
        ),
        *(f"s3bert.models.modeling_{name}" for name in ("forecast", "lra", "ponet", "s3bert")),
        *(f"s3bert.reports.{name}" for name in ("forecasting", "lra", "repository")),
        "s3bert.data.streaming",
        "torch._dynamo",
        "pandas.io.formats.csvs",
        "matplotlib.backends.backend_agg",
    ]
)

# A child's collections, one for every evaluation, do not look through what the server has imported.
gc.freeze()

# As Python's auditing calls those that take a path.
_CALLS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.listdir", "os.scandir"}
_TICK = 2.0**-40


def free_port() -> int:
    """A port nobody listens on, for processes to meet."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class Fault(NamedTuple):
    """What befalls a child at its n-th system call on a file under its folder.

    Args:
        call: which, from 1. number: of the signal sent before the call. room: bytes that a file may have from that call on, as on a full disk: a
            longer write fails, or where the number is SIGXFSZ's kills the child in its midst.
    """

    call: int
    number: signal.Signals | None = None
    room: int | None = None


@dataclass
class Outcome:
    """How a child ended: its exit status, as `subprocess` has it (None: it was killed when its time was over), all that it printed,
    and how many such calls it made (None: it was killed)."""

    status: int | None
    output: str
    calls: int | None
    seconds: float

    @property
    def problem(self) -> str | None:
        """What no command may do, whatever befalls it, or None: print a traceback, hang, or end in error without saying why."""
        if self.status is None:
            return f"it hangs: {self._end}"
        if "Traceback (most recent call last)" in self.output:
            return f"a traceback: {self._end}"
        if self.status > 0 and not self.output.strip():
            return f"status {self.status} without a word"
        return None

    @property
    def error(self) -> str | None:
        """The line in which a command tells an error of its caller; None without one."""
        return next((line for line in self.output.splitlines() if "error: " in line), None)

    @property
    def _end(self) -> str:
        return " | ".join(self.output.strip().splitlines()[-4:])


class Child:
    """A command, as the shell starts it, in a folder of its own.

    Args:
        name: in `s3bert.commands.COMMANDS`. words: its arguments. folder: where it runs. memory: bytes of address space it may take
            beyond what it has. before: called in the child before the command.
    """

    def __init__(
        self,
        name: str,
        words: list[str],
        folder: Path,
        fault: Fault | None = None,
        memory: int | None = None,
        before: Callable[[], None] | None = None,
    ):
        folder.mkdir(parents=True, exist_ok=True)
        self.output, output = processes.Pipe(duplex=False)
        self.report, report = processes.Pipe(duplex=False)
        arguments = (name, words, str(folder), fault, memory, before, output, report)
        self.process = processes.Process(target=_run, args=arguments)
        self.started = time.monotonic()
        self.process.start()
        output.close()
        report.close()
        self.text, self.open = b"", True

    def send(self, number: signal.Signals) -> None:
        """A signal, unless the child has ended."""
        with suppress(ProcessLookupError):
            if self.process.exitcode is None:
                os.kill(self.process.pid, number)

    def read(self, seconds: float) -> bool:
        """Collects what is printed in so many seconds; whether the child has closed its output before."""
        deadline = time.monotonic() + seconds
        while self.open and (left := deadline - time.monotonic()) > 0:
            if select.select([self.output.fileno()], [], [], left)[0]:
                chunk = os.read(self.output.fileno(), 1 << 16)
                self.text, self.open = self.text + chunk, bool(chunk)
        return not self.open

    def wait(self, seconds: float = 120.0) -> Outcome:
        """How it ends; one that has not after so many seconds is killed."""
        ended = self.read(seconds)
        if not ended:
            self.process.kill()
            self.read(10)
        self.process.join()
        seconds = time.monotonic() - self.started
        calls = None
        with suppress(EOFError):
            calls = self.report.recv()
        status = self.process.exitcode if ended else None
        self.process.close()
        self.output.close()
        self.report.close()
        return Outcome(status, self.text.decode(errors="replace"), calls, seconds)


def _run(
    name: str,
    words: list[str],
    folder: str,
    fault: Fault | None,
    memory: int | None,
    before: Callable[[], None] | None,
    output: Any,
    report: Connection,
) -> None:
    os.chdir(folder)
    for stream in (1, 2):
        os.dup2(output.fileno(), stream)
    output.close()
    import torch

    from s3bert import commands

    torch.set_num_threads(1)
    _let_the_clock_stand()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if fault is not None and fault.number == signal.SIGXFSZ:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    calls = _Calls(folder, fault)
    sys.addaudithook(calls)
    if memory is not None:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + memory, used + memory))
    sys.argv = [f"s3bert {name}", *words]
    if before is not None:
        before()
    try:
        commands.run(name)
    finally:
        report.send(calls.count)


def _let_the_clock_stand() -> None:
    """What is measured is then the same in every run, and files can be compared byte by byte."""
    readings = iter(range(1 << 62))
    time.perf_counter = lambda: next(readings) * _TICK


class _Calls:
    """An audit hook that counts the system calls on files under a folder, and brings the fault about."""

    def __init__(self, folder: str, fault: Fault | None):
        self.folder, self.fault, self.count = folder, fault, 0

    def __call__(self, event: str, arguments: tuple) -> None:
        if event not in _CALLS or not isinstance(arguments[0], str | bytes | os.PathLike):
            return
        if not os.path.abspath(os.fsdecode(arguments[0])).startswith(self.folder):
            return
        self.count += 1
        if self.fault is None or self.count != self.fault.call:
            return
        if self.fault.room is not None:  # Python ignores SIGXFSZ where the child does not ask for it
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.fault.room, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        else:
            os.kill(os.getpid(), self.fault.number)


def tree(folder: Path, *, leaving_out: str | None = None) -> dict[str, bytes]:
    """The content of every file under a folder; of none whose path has a part that begins with `leaving_out`."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    names = {path: path.relative_to(folder) for path in files}
    return {
        str(name): path.read_bytes()
        for path, name in names.items()
        if leaving_out is None or not any(part.startswith(leaving_out) for part in name.parts)
    }
