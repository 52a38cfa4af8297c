"""Commands that depend on one another, run side by side, each finished once: what a long comparison is made of.

A job is finished when its result file is there, so the same jobs run again after a kill do only what is missing; a job that
was cut off is started again, and goes on by its own means. While a job runs, its process holds a lock on its folder: one
that outlived the program that started it is waited for, not started twice.
"""

import fcntl
import logging
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from s3bert.files import write_text


logger = logging.getLogger(__name__)


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
    def over(self) -> bool:
        """Whether it has its result, or is known to have none."""
        return self.result.exists() or (self.finding is not None and (self.folder / "failed.txt").exists())


class JobError(ValueError):
    """A job ended without its result; the message says which and what it printed last."""


class _Running:
    """A job's process, and its lock while that is another's."""

    def __init__(self, job: Job, environment: dict[str, str]):
        self.job, self.environment = job, environment
        self.process: subprocess.Popen | None = None
        job.folder.mkdir(parents=True, exist_ok=True)
        self._lock = (job.folder / ".lock").open("w")
        self._waiting = False

    def finished(self) -> bool:
        """Starts the process when the lock is free; True when the job is over.

        Raises:
            JobError: the process ended without a result or a finding.
        """
        if self.process is None:
            if not _locked(self._lock):
                if not self._waiting:
                    logger.info("%s: still running from an earlier start; waiting for it.", self.job.name)
                self._waiting = True
                return False
            if self.job.over:
                self._lock.close()
                return True
            self._start()
        status = self.process.poll()
        if status is None:
            return False
        self._lock.close()
        if status != 0 or not self.job.result.exists():
            output = self.job.folder / "output.txt"
            end = "\n".join(output.read_text(encoding="utf-8", errors="replace").splitlines()[-5:])
            error = (
                f"{self.job.name} ended with status {status} and without {self.job.result.name}, and said last:\n{end}\n"
                f"All it said: {output}"
            )
            if status != self.job.finding:
                raise JobError(error)
            logger.warning("%s", error)
            write_text(self.job.folder / "failed.txt", f"{error}\n")
        return True

    def _start(self) -> None:
        with (self.job.folder / "output.txt").open("ab") as output:
            self.process = subprocess.Popen(
                self.job.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | self.environment,
                pass_fds=(self._lock.fileno(),),  # the lock lasts as long as any process holds the file open
            )

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def _locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


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
