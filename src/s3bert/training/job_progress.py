"""The progress of jobs that run side by side, read from what they write."""

import sys
from collections.abc import Callable

from tqdm.auto import tqdm

from .jobs import Job
from .log import read_log


class JobProgress:
    """A bar for each running job, from the log it writes; a line and a fresh report for each one that ends."""

    def __init__(self, jobs: list[Job], report: Callable[[], object]):
        self.jobs = {job.name: job for job in jobs}
        self.report = report
        self.bars: dict[str, tqdm] = {}
        self.ended: set[str] | None = None

    def __enter__(self) -> Callable[[list[str], list[str]], None]:
        return self._watch

    def __exit__(self, *_: object) -> None:
        for bar in self.bars.values():
            bar.close()

    def _watch(self, running: list[str], ended: list[str]) -> None:
        for name in [name for name in self.bars if name not in running]:
            self.bars.pop(name).close()
        for name in running:
            job = self.jobs[name]
            if name not in self.bars:
                taken = {bar.pos for bar in self.bars.values()}
                free = next(place for place in range(len(self.jobs)) if -place not in taken)
                self.bars[name] = tqdm(
                    desc=name, total=job.steps, position=free, unit="step", leave=False, disable=None
                )
            self._update(self.bars[name], job)
        if self.ended is None:
            self.ended = set(ended)
        for name in [name for name in ended if name not in self.ended]:
            tqdm.write(f"{name}: done ({len(ended)} of {len(self.jobs)})", file=sys.stderr)
            self.ended.add(name)
            self.report()

    @staticmethod
    def _update(bar: tqdm, job: Job) -> None:
        if job.steps is None:
            trials = len(list(job.folder.glob("**/trials/*/results.json")))
            bar.set_postfix_str(f"{trials} trainings done")
            return
        records = read_log(job.folder / "log.jsonl")
        bar.n = max((record["step"] for record in records), default=0)
        losses = [
            f"{name} {record[name]:.3f}" for name in ("loss", "eval_loss") for record in records[::-1] if name in record
        ]
        bar.set_postfix_str(", ".join(losses[:1] + [text for text in losses if text.startswith("eval")][:1]))
