"""Files written atomically: aside first, so that a kill or a full disk leaves what was there before; and Markdown tables."""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """Gives a path beside `file` to write to; what is written takes the place of `file` at the end, and is removed on an error."""
    file.parent.mkdir(parents=True, exist_ok=True)
    aside = file.with_name(f".{file.name}.unfinished")
    try:
        yield aside
        os.replace(aside, file)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def write_text(file: Path, text: str) -> None:
    """Writes a text file as a whole."""
    with replacing(file) as aside:
        aside.write_text(text, encoding="utf-8")


def file_name(label: str) -> str:
    """A label with settings, "s3bert:smoother_norm=layer", as a name that every file system takes."""
    return re.sub(r"[^\w.]+", "-", label).strip("-")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table of a head and rows of the same length, without a line's end."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
