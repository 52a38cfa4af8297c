"""The campaign: how often each thing is tried, and what came of it."""

import json
import random
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from long_commands import Commands

from s3bert.arguments import save_arguments
from s3bert.benchmark.results import machine
from s3bert.files import write_text
from s3bert.reports.torture import torture_sections


@dataclass
class Class:
    """What a test tried of one class, and what did not hold."""

    name: str
    noted: Callable[[], None]
    tries: int = 0
    lost: list[str] = field(default_factory=list)

    def note(self, what: str, problem: str | None, tries: int = 1) -> None:
        """What was tried, once or several times that are judged together, and what was wrong, if anything."""
        self.tries += tries
        if problem is not None:
            self.lost.append(f"{what[:600]}: {problem[:600]}")
        self.noted()

    def check(self) -> None:
        """Fails the test where nothing was tried, or something did not hold."""
        assert self.tries
        if self.lost:
            pytest.fail(f"{len(self.lost)} of {self.tries} lost:\n" + "\n".join(self.lost[:20]), pytrace=False)


class Campaign:
    """All that is tried. The long form has a folder, and leaves there what `s3bert report` takes in."""

    def __init__(self, folder: Path | None):
        self.folder, self.classes = folder, []
        self.started = self.written = time.monotonic()

    def tries(self, short: int, long: int) -> int:
        """How often to try, in the short form and the long one."""
        return short if self.folder is None else long

    def chosen(self, draw: random.Random, names: Sequence[str], short: int, long: int) -> Sequence[str]:
        """So many of the names in the short form, and in the long one all of them, so often."""
        return draw.sample(names, short) if self.folder is None else list(names) * long

    def of(self, name: str) -> Class:
        """A test's part of a class."""
        self.classes.append(Class(name, self._write_now_and_then))
        return self.classes[-1]

    def _write_now_and_then(self) -> None:
        """Twice a minute: a campaign that is cut off has a report of what it did."""
        if time.monotonic() - self.written > 30:
            self.write()

    def write(self) -> None:
        """A row for each class."""
        self.written = time.monotonic()
        if self.folder is not None:
            rows = {each.name: {"class": each.name, "tries": 0, "held": 0, "lost": []} for each in self.classes}
            for each in self.classes:
                row = rows[each.name]
                row["tries"] += each.tries
                row["held"] += each.tries - len(each.lost)
                row["lost"] += each.lost
            minutes = round((time.monotonic() - self.started) / 60, 1)
            content = {"tries": list(rows.values()), "minutes": minutes, "machine": machine("cpu")}
            write_text(self.folder / "all_results.json", json.dumps(content, indent=1) + "\n")
            write_text(self.folder / "results.md", "\n\n".join(torture_sections({self.folder.name: content})) + "\n")
            save_arguments(self.folder / "arguments.yaml")


@pytest.fixture(scope="session")
def session_campaign(request) -> Campaign:
    folder = request.config.getoption("--torture")
    return Campaign(folder and Path(folder))


@pytest.fixture
def campaign(session_campaign) -> Iterator[Campaign]:
    yield session_campaign
    session_campaign.write()


@pytest.fixture(scope="session")
def commands(tmp_path_factory) -> Commands:
    return Commands(tmp_path_factory.mktemp("commands"))


@pytest.fixture
def fresh_folder(commands) -> Iterator[Callable[[], Path]]:
    """A place for one try; all go with the test."""
    yield commands.fresh_folder
    shutil.rmtree(commands.top / "tries", ignore_errors=True)
