"""Commands that depend on one another, run side by side, each finished once: what a long comparison is made of.

A job is finished when its result file is there, so the same jobs run again after a kill do only what is missing; a job that
was cut off is started again, and goes on by its own means. While a job runs, a process beside it (`locked.py`) holds a lock
on its folder: a job that outlived the program that started it is waited for, not started twice.
"""

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from s3bert.files import write_text


logger = logging.getLogger(__name__)

_LOCKED = Path(__file__).with_name("locked.py")


@dataclass(frozen=True)
class Job:
    """One command.

    Args:
        name: what people call it. command: its words, run as they are, without a shell.
        folder: holds its output (`output.txt`) and lock. result: the file that it writes last.
        after: names of jobs that must be finished first.
        finding: the exit status that says there is no result to be had, as when a trial diverges: kept in `failed.txt`, and
            not tried again. Any other failure is one to mend.
        steps: how much it has to do, for a progress bar.
    """

    name: str
    command: tuple[str, ...]
    folder: Path
    result: Path
    after: tuple[str, ...] = ()
    finding: int | None = None
    steps: int | None = None

    @property
    def output(self) -> Path:
        """What its process prints."""
        return self.folder / "output.txt"

    @property
    def no_result(self) -> Path:
        """The file that says there is no result to be had."""
        return self.folder / "failed.txt"

    @property
    def endings(self) -> list[Path]:
        """The files of which either says that it is over."""
        return [self.result] if self.finding is None else [self.result, self.no_result]

    @property
    def over(self) -> bool:
        """Whether it has its result, or is known to have none."""
        return any(file.exists() for file in self.endings)


class JobError(ValueError):
    """A job ended without its result; the message says which and what it printed last."""


class _Running:
    """A job that was started, or waits for an earlier start of it to end."""

    def __init__(self, job: Job, environment: dict[str, str]):
        self.job = job
        job.folder.mkdir(parents=True, exist_ok=True)
        lock = job.folder / ".lock"
        try:
            with FileLock(lock, timeout=0):
                pass
        except Timeout:
            logger.info("%s: still running from an earlier start; waiting for it.", job.name)
        with job.output.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-P", _LOCKED, lock, *job.endings, "--", *job.command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | environment,
            )

    def finished(self) -> bool:
        """Whether the job is over.

        Raises:
            JobError: the process ended without a result or a finding.
        """
        status = self.process.poll()
        if status is None:
            return False
        if not self.job.over or status != 0:
            end = "\n".join(self.job.output.read_text(encoding="utf-8", errors="replace").splitlines()[-5:])
            error = (
                f"{self.job.name} ended with status {status} and without {self.job.result.name}, and said last:\n{end}\n"
                f"All it said: {self.job.output}"
            )
            if status != self.job.finding:
                raise JobError(error)
            logger.warning("%s", error)
            write_text(self.job.no_result, f"{error}\n")
        return True

    def stop(self) -> None:
        """Ends the job's processes; kills those that are there after 30 seconds."""
        with suppress(psutil.NoSuchProcess):  # it has ended
            started = psutil.Process(self.process.pid)
            processes = [*started.children(recursive=True), started]
            for process in processes:
                with suppress(psutil.NoSuchProcess):
                    process.terminate()
            for process in psutil.wait_procs(processes, timeout=30)[1]:
                with suppress(psutil.NoSuchProcess):
                    process.kill()


def run_jobs(
    jobs: Sequence[Job],
    at_once: int,
    environment: dict[str, str],
    watch: Callable[[list[str], list[str]], None],
    every: float = 1.0,
) -> None:
    """Runs the jobs that have no result yet, up to `at_once` side by side, in their order as far as `after` allows.

    Args:
        environment: variables the processes get on top of this one's.
        watch: called every so many seconds with the names of running and of finished jobs.

    Raises:
        JobError: a job failed; those that do not depend on it have been run to their end first.
    """
    finished = [job.name for job in jobs if job.over]
    waiting = [job for job in jobs if job.name not in finished]
    running: list[_Running] = []
    failures: dict[str, JobError] = {}
    try:
        while running or waiting:
            for job in list(waiting):
                if any(name in failures for name in job.after):
                    waiting.remove(job)
                    failures[job.name] = JobError(f"{job.name} was not run.")
                elif len(running) < at_once and all(name in finished for name in job.after):
                    waiting.remove(job)
                    running.append(_Running(job, environment))
            for entry in list(running):
                try:
                    if not entry.finished():
                        continue
                    finished.append(entry.job.name)
                except JobError as error:
                    logger.error("%s", error)
                    failures[entry.job.name] = error
                running.remove(entry)
            watch([entry.job.name for entry in running], finished)
            if running:
                time.sleep(every)
    finally:
        for entry in running:
            entry.stop()
    if failures:
        others = f" ({', '.join(list(failures)[1:])} could not be run for it.)" if len(failures) > 1 else ""
        raise JobError(f"{next(iter(failures.values()))}{others} Mend it, and give the same command again.")
