"""What a run leaves in its output folder: a page for people, and what `s3bert report` takes in."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from s3bert.arguments import Arguments, save_arguments
from s3bert.files import write_text


def write_run(folder: Path, run: Mapping[str, Any], parts: Sequence[str], *arguments: Arguments) -> None:
    """Writes `arguments.yaml`, `results.md`, and last, for it says that all is there, `all_results.json`.

    Args:
        run: what the command has found, with a `title`; JSON can hold it. parts: Markdown, what the page tells under the title.
    """
    save_arguments(folder / "arguments.yaml", *arguments)
    write_text(folder / "results.md", "\n\n".join([f"# {run['title']}", *parts]) + "\n")
    write_text(folder / "all_results.json", json.dumps(run, indent=1) + "\n")
