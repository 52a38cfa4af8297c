"""A benchmark's `results.json`: its settings, its machine, and a record for each measurement, kept from one call to the next."""

import json
import platform
import re
from pathlib import Path
from typing import Any, Literal

import torch
import transformers

from s3bert.files import reading, write_text
from s3bert.version import __version__


Record = dict[str, Any]


class SpeedResults:
    """The records of speed and memory by (model, length, mode, engine); the file is rewritten after every addition.

    Args:
        file: read if it is there. settings: what all measurements have in common. device: its name is part of the machine's.

    Raises:
        ValueError: the file's records were measured with other settings or on another machine.
    """

    def __init__(self, file: Path, settings: Record, device: str):
        self.file = file
        self.content = {"settings": settings, "machine": machine(device), "notes": {}, "speed": [], "memory": []}
        if file.exists():
            with reading(str(file)):
                old = json.loads(file.read_text(encoding="utf-8"))
                differences = [
                    f"{name} was {old[part].get(name)} and is {self.content[part].get(name)}"
                    for part in ("settings", "machine")
                    for name in old[part] | self.content[part]
                    if old[part].get(name) != self.content[part].get(name)
                ]
            if differences:
                raise ValueError(
                    f"{file} has measurements of another benchmark: {'; '.join(differences)}. Call with the same settings to "
                    "add to it, or choose another --output_dir."
                )
            self.content |= old

    def find(self, part: Literal["speed", "memory"], model: str, length: int, mode: str, engine: str) -> Record | None:
        """The record of a measurement, None where it is missing."""
        for record in self.content[part]:
            if (record["model"], record["length"], record["mode"], engine_of(record)) == (model, length, mode, engine):
                return record
        return None

    def add(self, part: Literal["speed", "memory"], records: list[Record]) -> None:
        """Adds records and writes all, a line each: a kill leaves the old file or the new one."""
        self.content[part] += records
        texts = [
            f'"{name}": '
            + (
                "[\n" + ",\n".join(map(json.dumps, entry)) + "\n]"
                if name in ("speed", "memory")
                else json.dumps(entry, indent=1)
            )
            for name, entry in self.content.items()
        ]
        write_text(self.file, "{\n" + ",\n".join(texts) + "\n}\n")


def engine_of(record: Record) -> str:
    """What ran the model; older files do not say, and knew one."""
    return record.get("engine", "torch")


def name_of(record: Record) -> str:
    """The model, and what ran it where that is not torch: "bert", "bert-int8"."""
    engine = engine_of(record)
    return record["model"] if engine == "torch" else f"{record['model']}-{engine}"


def machine(device: str) -> dict[str, str | int]:
    """The hardware and software that figures are measured with."""
    cpuinfo = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.+)", cpuinfo.read_text()) if cpuinfo.exists() else []
    facts = {
        "processor": names[0] if names else platform.processor() or platform.machine(),
        "num_threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "s3bert": __version__,
    }
    return facts | ({"accelerator": torch.cuda.get_device_name(device)} if device.startswith("cuda") else {})
