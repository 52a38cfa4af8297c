"""A run's own log: one JSON object a line, exact across kills and resumes."""

import json
from pathlib import Path
from typing import Any

from s3bert.files import write_text


def read_log(file: Path) -> list[dict[str, Any]]:
    """The records of a log, in order; a last line torn by a kill is left out.

    Raises:
        ValueError: another line is no record, which has a "step".
    """
    records: list[dict[str, Any]] = []
    lines = file.read_bytes().splitlines() if file.exists() else []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
        except ValueError:  # of JSON or its encoding
            if number == len(lines) and line.startswith((b"{", b"\0")):
                break
            record = None
        if not isinstance(record, dict) or type(record.get("step")) is not int:
            raise ValueError(
                f"{file}, line {number}: {line[:40]!r} is no record of a run. Bring the log back, or remove it: its run goes on "
                "without the records so far."
            )
        records.append(record)
    return records


class RunLog:
    """Appends records to `log.jsonl`; records after the step a run resumes from are dropped first.

    Args:
        file: the log. last_step: number of optimiser steps already done; later records are of a run that was cut off.
        enabled: False on all processes but the main one.
    """

    def __init__(self, file: Path, last_step: int, enabled: bool = True):
        self.file = file
        self.records = [record for record in read_log(file) if record["step"] <= last_step]
        self.enabled = enabled
        if enabled:
            write_text(file, "".join(json.dumps(record) + "\n" for record in self.records))

    def write(self, record: dict[str, Any]) -> None:
        """Adds a record, which carries its "step"."""
        self.records.append(record)
        if self.enabled:
            with self.file.open("a", encoding="utf-8") as log:
                log.write(json.dumps(record) + "\n")
