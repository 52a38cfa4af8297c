"""Files written atomically: aside first, so that a kill or a full disk leaves what was there before; and text as Markdown."""

import html
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


def as_markdown(text: object) -> str:
    """A name or value of any characters as one line of Markdown that shows them: no markup, no HTML, no new cell of a table."""
    line = " ".join(str(text).split())
    line = re.sub(r"([\\`*\[\]|~$]|(?<!\w)[_#]|_(?!\w))", r"\\\1", line)  # snake_case is no emphasis
    return html.escape(line, quote=False)


def fenced(language: str, code: str) -> str:
    """A block of code in Markdown, whatever backticks it holds."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", code)), default=0))
    return f"{fence}{language}\n{code}\n{fence}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table of a head and rows of the same length, without a line's end."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
