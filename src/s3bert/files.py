"""Files written atomically: aside first, so that a kill or a full disk leaves what was there before; damaged ones named; text as Markdown."""

import html
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import mean, stdev


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


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Within it what libraries, and code that expects other content, raise on damaged files becomes one error that names `what`.

    Errors that say themselves what is wrong, as of a file that is not there or of a setting that cannot be, stay. Transformers' words on a
    checkpoint that is neither a folder nor to be fetched do not always name it: `what` goes before them.

    Raises:
        ValueError: `what` cannot be read.
        OSError: it is not there.
    """
    try:
        yield
    except (OSError, ImportError, MemoryError) as error:
        if type(error) is OSError and error.errno is None and what.split()[-1] not in str(error):
            raise OSError(f"{what} is no folder here, and was not found elsewhere. {error}") from error
        raise
    except Exception as error:
        from huggingface_hub.errors import StrictDataclassError  # not at the top: it imports an HTTP client

        undecoded = isinstance(error, UnicodeError | json.JSONDecodeError)
        if isinstance(error, ValueError | StrictDataclassError) and not undecoded:
            raise
        said = (str(error).strip().splitlines() or [""])[0]
        raise ValueError(
            f"{what} cannot be read ({': '.join(filter(None, (type(error).__name__, said)))}): it is damaged, or something else. "
            "Make or fetch it again, or name another one."
        ) from error


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


def mean_and_deviation(values: Sequence[float], mean_format: str, deviation_format: str = "") -> str:
    """The mean of some values, with their sample deviation where there are several; "" for none. The formats are those of f-strings."""
    deviation = f" ± {stdev(values):{deviation_format or mean_format}}" if len(values) > 1 else ""
    return f"{mean(values):{mean_format}}{deviation}" if values else ""


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table of a head and rows of the same length, without a line's end."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
