"""Jobs: their order, that each is done once, and what becomes of those that fail or outlive their starter."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from filelock import FileLock

import s3bert
from s3bert.training.jobs import Job, JobError, run_jobs


def job(folder: Path, name: str, code: str = "", **fields) -> Job:
    """A job that runs `code` and then writes its result; it notes its start in the file `order`."""
    note = f"open({str(folder / 'order')!r}, 'a').write({name!r} + ' ')"
    end = f"open({str(folder / name / 'done')!r}, 'w').close()"
    command = (sys.executable, "-c", "\n".join(["import os, sys, time", note, code, end]))
    return Job(name, command, folder / name, folder / name / "done", **fields)


def order(folder: Path) -> list[str]:
    file = folder / "order"
    return file.read_text().split() if file.exists() else []


def run(jobs: list[Job], at_once: int = 1) -> list[list[str]]:
    """Runs them; the names that ran at the same time, each time that it was looked."""
    seen = []
    run_jobs(jobs, at_once, {}, lambda running, ended: seen.append(running), every=0.02)
    return seen


def test_a_job_runs_after_those_it_needs_and_is_never_run_again(tmp_path):
    jobs = [job(tmp_path, "last", after=("first", "second")), job(tmp_path, "first"), job(tmp_path, "second")]
    run(jobs)
    assert order(tmp_path) == ["first", "second", "last"]
    run(jobs)
    assert len(order(tmp_path)) == 3
    (tmp_path / "second" / "done").unlink()
    run(jobs)
    assert order(tmp_path)[3:] == ["second"]


def test_jobs_run_side_by_side_up_to_the_number_asked_for(tmp_path):
    seen = run([job(tmp_path, name, "time.sleep(0.5)") for name in "abc"], at_once=2)
    assert max(map(len, seen)) == 2


def test_a_failure_is_told_with_the_last_words_after_the_others_have_run(tmp_path):
    jobs = [job(tmp_path, "bad", "print('no room left'); sys.exit(3)"), job(tmp_path, "worse", after=("bad",))]
    jobs += [job(tmp_path, "good")]
    with pytest.raises(JobError, match=r"(?s)bad ended with status 3.*no room left.*output.txt.*worse"):
        run(jobs)
    assert order(tmp_path) == ["bad", "good"]
    with pytest.raises(JobError, match="silent ended with status 0 and without done"):
        run([job(tmp_path, "silent", "os._exit(0)")])


def test_a_finding_is_kept_and_not_tried_again_and_any_other_failure_is(tmp_path):
    diverges = "print('diverged'); sys.exit(3)"
    jobs = [job(tmp_path, "trial", diverges, finding=3), job(tmp_path, "rest", after=("trial",))]
    run(jobs)
    run(jobs)
    assert order(tmp_path) == ["trial", "rest"]
    assert "diverged" in (tmp_path / "trial" / "failed.txt").read_text()
    for _ in range(2):
        with pytest.raises(JobError, match="no room left"):
            run([job(tmp_path, "unlucky", "sys.exit('no room left')", finding=3)])
    assert order(tmp_path)[2:] == ["unlucky", "unlucky"]


@pytest.mark.parametrize("how", ["the starter is interrupted", "the process that holds the lock is ended"])
def test_no_process_of_a_job_outlives_its_end(tmp_path, how):
    note = f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    children = []

    def watch(running: list[str], ended: list[str]) -> None:
        if not children and (tmp_path / "pid").exists() and (pid := (tmp_path / "pid").read_text()):
            children.append(psutil.Process(int(pid)))
            if how == "the starter is interrupted":
                raise KeyboardInterrupt
            children[0].parent().terminate()

    with pytest.raises((KeyboardInterrupt, JobError)):
        run_jobs([job(tmp_path, "long", note)], 1, {}, watch, every=0.02)
    assert children[0].wait(5) is None, "it has ended; its status is for its parent"
    with FileLock(tmp_path / "long" / ".lock", timeout=0):
        pass


STARTER = """
import sys, types
from pathlib import Path
sys.modules["s3bert"] = package = types.ModuleType("s3bert")  # without its own imports, which take seconds
package.__path__ = [sys.argv[2]]
from s3bert.training.jobs import Job, run_jobs
folder = Path(sys.argv[1])
code = f"import time; open({str(folder / 'order')!r}, 'a').write('long '); time.sleep(3); open({str(folder / 'done')!r}, 'w')"
run_jobs([Job("long", (sys.executable, "-c", code), folder, folder / "done")], 1, {}, lambda *_: None, every=0.05)
"""


def starting(folder: Path) -> list[str]:
    return [sys.executable, "-c", STARTER, str(folder), str(Path(s3bert.__file__).parent)]


def start(folder: Path) -> subprocess.Popen:
    starter = subprocess.Popen(starting(folder), start_new_session=True)
    deadline = time.monotonic() + 60
    while not order(folder):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return starter


def test_a_job_that_outlived_its_starter_is_waited_for_and_not_started_twice(tmp_path):
    starter = start(tmp_path)
    os.kill(starter.pid, signal.SIGKILL)
    starter.wait()
    assert not (tmp_path / "done").exists()
    subprocess.run(starting(tmp_path), check=True, timeout=60)
    assert (tmp_path / "done").exists()
    assert order(tmp_path) == ["long"]


def test_a_job_killed_with_its_starter_is_started_again(tmp_path):
    starter = start(tmp_path)
    os.killpg(starter.pid, signal.SIGKILL)
    starter.wait()
    subprocess.run(starting(tmp_path), check=True, timeout=60)
    assert order(tmp_path) == ["long", "long"]
