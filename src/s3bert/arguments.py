"""Arguments of the scripts: dataclasses filled from a YAML file and the command line.

A configuration file is nothing but arguments written down: `--config run.yaml --learning_rate 1e-4` reads the file's
entries first and lets the command line override them. A run saves its own resolved file, so that it can be repeated.
"""

import argparse
import difflib
import logging
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import transformers
import yaml
from huggingface_hub.errors import StrictDataclassError
from transformers import HfArgumentParser, PreTrainedConfig

from .files import write_text


_PACKAGE = Path(__file__).parent
# Recipes travel inside the installed package; a clone has them at its top.
RECIPES = next(folder for folder in (_PACKAGE / "configs", _PACKAGE.parents[1] / "configs") if folder.is_dir())
DIVERGED = 3  # exit status of a script whose training did


def close_match(name: str, known: Iterable[str]) -> str:
    """' Did you mean ...?' for a misspelt name, or the list of what there is."""
    known = sorted(known)
    matches = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    return f" Did you mean {' or '.join(matches)}?" if matches else f" There is: {', '.join(known)}."


def find_recipe(name: str, suffix: str = ".yaml") -> Path:
    """The file of that path, or else the recipe of that name that comes with s3bert: "lra/text", or "configs/lra/text.yaml".

    Raises:
        FileNotFoundError: there is neither.
    """
    path = Path(name)
    if path.is_file():
        return path
    short = name.removeprefix("configs/").removesuffix(suffix)
    recipe = RECIPES / f"{short}{suffix}"
    if recipe.is_file() and recipe.is_relative_to(RECIPES):
        return recipe
    known = [str(file.relative_to(RECIPES).with_suffix("")) for file in RECIPES.rglob(f"*{suffix}")]
    near = difflib.get_close_matches(short, known, n=3, cutoff=0.6)
    raise FileNotFoundError(
        f"{name!r} is not a file, and no recipe has this name. "
        + (f"Did you mean {' or '.join(near)}?" if near else f"Recipes are in {RECIPES}.")
    )


class _Help(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """The script's docstring as it is written, and a line or two for each argument with its default."""

    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=36, width=110)

    def _get_default_metavar_for_optional(self, action: argparse.Action) -> str:
        return "X"


def parse_arguments(
    argument_classes: tuple[type, ...], argv: list[str] | None = None, description: str | None = None
) -> tuple[Any, ...]:
    """One instance of each dataclass, from `--config FILE.yaml` and the command line (which wins).

    Args:
        argument_classes: dataclasses whose fields carry `metadata={"help": ...}`; their names are the arguments.
        argv: the command line without the program's name; `sys.argv[1:]` by default.
        description: shown on top of `--help`.

    Exits with status 2 and a message, as argparse does, on an unknown argument or key (naming the close match), a value
    of the wrong kind, or an unreadable file.
    """
    usage = "%(prog)s [--config FILE.yaml] [--name value ...]"
    parser = HfArgumentParser(
        argument_classes, description=description, usage=usage, formatter_class=_Help, allow_abbrev=False
    )
    parser.add_argument(
        "--config",
        metavar="FILE.yaml",
        help="YAML file of arguments, or the name of a recipe that comes with s3bert, as lra/text; the command line overrides it",
    )
    argv = sys.argv[1:] if argv is None else list(argv)
    names = {field.name for argument_class in argument_classes for field in fields(argument_class) if field.init}

    only_config = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    only_config.add_argument("--config")
    file = only_config.parse_known_args(argv)[0].config
    from_file = [] if file is None else _file_arguments(parser, file, names)
    *instances, unknown = parser.parse_args_into_dataclasses(from_file + argv, return_remaining_strings=True)
    if unknown:
        flags = [word for word in unknown if word.startswith("--")] or unknown
        name = flags[0].lstrip("-").split("=")[0]
        parser.error(f"unknown argument {flags[0]}.{close_match(name, names | {'config'})}")
    return tuple(instances[: len(argument_classes)])


def _file_arguments(parser: HfArgumentParser, name: str, names: set[str]) -> list[str]:
    """A YAML file's entries as command-line words, so that one parser converts and checks both."""
    file = Path(name)
    try:
        file = find_recipe(name)
        entries = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        parser.error(f"cannot read the configuration file {file}: {error}")
    if not isinstance(entries, dict):
        parser.error(f"{file} must hold `name: value` lines, not {type(entries).__name__}.")
    words = []
    for name, value in entries.items():
        if name not in names:
            parser.error(f"{file}: unknown key {name!r}.{close_match(str(name), names)}")
        if value is None or value == []:  # `--name` with no word after it is an error
            continue
        values = value if isinstance(value, list) else [value]
        words += [f"--{name}", *(str(item).lower() if isinstance(item, bool) else str(item) for item in values)]
    return words


def named_settings(text: str) -> tuple[str, dict[str, Any]]:
    """`NAME:setting=value,...` to the name and its settings, values read as YAML: "fmm:bandwidth=5,kernels=[elu,tanh]"; 1e-5,
    which YAML takes for a word, is a number.

    Raises:
        ValueError: what stands after the colon are no settings.
    """
    name, _, settings = text.partition(":")
    try:
        entries = yaml.safe_load("{" + settings.replace("=", ": ") + "}")
    except yaml.YAMLError:
        entries = None
    if not isinstance(entries, dict) or None in entries.values():
        raise ValueError(f"{text!r}: settings are name=value, with commas between them.")
    return name, {key: _number(value) if isinstance(value, str) else value for key, value in entries.items()}


def _number(text: str) -> float | str:
    return float(text) if re.fullmatch(r"[-+]?\d+(\.\d+)?[eE][-+]?\d+", text) else text


def override_config(config: PreTrainedConfig, text: str) -> None:
    """Changes a model's configuration by `name=value,...`.

    Raises:
        ValueError: it has no such field, or the value is of another type.
    """
    for entry in text.split(","):
        name = entry.partition("=")[0].strip()
        if not hasattr(config, name):
            raise ValueError(f"{config.model_type} has no {name!r}.{close_match(name, vars(config))}")
    config.update_from_string(text)


def save_arguments(file: Path, *instances: Any) -> None:
    """Writes the resolved arguments as a YAML file that `--config` takes."""
    entries = {name: value for instance in instances for name, value in asdict(instance).items() if value is not None}
    write_text(file, yaml.safe_dump(entries, sort_keys=False))


def run_as_script(main: Callable[[], Any]) -> None:
    """Runs a script's `main`; an error the user can mend ends it with its message alone and status 1, DIVERGED where the
    training did."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    for noisy in ("httpx", "datasets", "evaluate", "filelock"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    transformers.utils.logging.disable_progress_bar()  # a bar for each checkpoint read or written
    try:
        main()
    except (ValueError, OSError, FloatingPointError, StrictDataclassError) as error:
        logging.getLogger(__name__).debug("traceback", exc_info=True)
        if isinstance(error, FloatingPointError):
            print(f"error: {error}", file=sys.stderr)
            sys.exit(DIVERGED)
        # A configuration's value: the cause says which, and what is allowed.
        told = error.__cause__ if isinstance(error, StrictDataclassError) else None
        sys.exit(f"error: {told or error}")
    except KeyboardInterrupt:
        sys.exit(
            "interrupted; what was saved is kept, and the same call goes on from there, with "
            "--resume_from_checkpoint latest where a script has that argument"
        )
