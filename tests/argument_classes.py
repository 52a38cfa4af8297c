"""The commands' dataclasses of options, and their fields."""

import importlib
import pkgutil
from collections.abc import Iterator
from dataclasses import Field, fields, is_dataclass
from typing import get_args, get_type_hints

import s3bert


def argument_classes() -> list[type]:
    """Every dataclass of options, of all commands."""
    found = {}
    for module in pkgutil.walk_packages(s3bert.__path__, "s3bert."):
        if module.name.startswith("s3bert.commands.") or module.name.endswith((".arguments", ".budget")):
            for kind in vars(importlib.import_module(module.name)).values():
                if is_dataclass(kind) and any("help" in entry.metadata for entry in fields(kind)):
                    found[kind] = None
    return list(found)


def numbers(kind: type) -> Iterator[Field]:
    """Its fields that hold a number, or several."""
    for entry in fields(kind):
        hint = get_type_hints(kind)[entry.name]
        if {int, float} & {hint, *get_args(hint)}:
            yield entry
