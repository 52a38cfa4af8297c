"""Arguments of the commands: dataclasses filled from a YAML file and the command line.

A configuration file is nothing but arguments written down: `--config run.yaml --learning_rate 1e-4` reads the file's
entries first and lets the command line override them. A run saves its own resolved file, so that it can be repeated.
Neither torch nor transformers is imported here, nor by the modules that hold the dataclasses: `--help` answers at once.
"""

import argparse
import difflib
import inspect
import logging
import math
import re
import sys
from collections.abc import Iterable
from dataclasses import MISSING, asdict, field, fields
from pathlib import Path
from types import UnionType
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import yaml

from .files import write_text


logger = logging.getLogger(__name__)

_PACKAGE = Path(__file__).parent
# Recipes travel inside the installed package; a clone has them at its top.
RECIPES = next(folder for folder in (_PACKAGE / "configs", _PACKAGE.parents[1] / "configs") if folder.is_dir())

# Names of Transformers' scripts and TrainingArguments, and ours for the same thing. A flag that stands for one value of
# ours is written `name=value`.
_ALIASES = {
    "max_steps": "max_train_steps",
    "warmup_steps": "num_warmup_steps",
    "warmup_ratio": "num_warmup_steps",
    "gradient_checkpointing": "activation_checkpointing",
    "max_length": "max_seq_length",
    "push_to_hub_model_id": "hub_model_id",
    "bf16": "mixed_precision=bf16",
    "fp16": "mixed_precision=fp16",
}
_MEANINGLESS = ("do_train", "do_eval")  # a run always does both
# Those that mean nearly the same, and what to do instead.
_INSTEAD = {
    "eval_strategy": "give --eval_steps; an evaluation an epoch is the default",
    "evaluation_strategy": "give --eval_steps; an evaluation an epoch is the default",
    "save_strategy": "give --save_steps",
    "logging_strategy": "give --logging_steps",
    "overwrite_output_dir": "give another --output_dir, or go on with --resume_from_checkpoint latest",
    "checkpointing_steps": "give --save_steps",
    "with_tracking": "give --report_to",
    "use_cpu": "set ACCELERATE_USE_CPU=true",
    "no_cuda": "set ACCELERATE_USE_CPU=true",
    **dict.fromkeys(("train_file", "validation_file", "test_file"), "files of your own are for s3bert finetune"),
}


# Fields of every configuration that say what a model is, or are written by Transformers.
_NO_SETTINGS = ("model_type", "architectures", "auto_map", "dtype", "transformers_version")


class Range(NamedTuple):
    """The numbers that an option may have: `least` to `most`, both included, or `above` and `below` one, which are not."""

    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None

    def __contains__(self, value: object) -> bool:
        return (
            isinstance(value, int | float)
            and math.isfinite(value)
            and (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        names = {"at least": self.least, "above": self.above, "at most": self.most, "below": self.below}
        return " and ".join(
            f"{name} {bound:,g}" if bound < 1e6 else f"{name} {bound:,}"
            for name, bound in names.items()
            if bound is not None
        )


def option(
    *,
    help: str,
    default: Any = MISSING,
    default_factory: Any = MISSING,
    free: bool = False,
    one_of: str | None = None,
    **bounds: float,
) -> Any:
    """A field of a dataclass that is an argument of a command; required without a default.

    Args:
        free: whether a run that goes on may be given another value: it changes none of the run's numbers, or what it stands for,
            as a corpus or a model, is compared itself. All other fields are settings, which a run keeps (`training/settings.py`).
        one_of: what this option and others are ways to name; one of them on the command line takes the place of another in a file.
        bounds: of a number, or of each number of a list: those of `Range`.
    """
    metadata = {"help": help, "free": free, "one_of": one_of} | ({"range": Range(**bounds)} if bounds else {})
    return field(default=default, default_factory=default_factory, metadata=metadata)


class Arguments:
    """The base of the commands' dataclasses. Numbers lie in the ranges of their options, a list has each once, and no text is empty.

    Raises:
        ValueError: a number does not, is not finite or has more than 64 bits; a list has one twice, or none where it has values by
            default; a text is empty, unless it is by default.
    """

    def __post_init__(self) -> None:
        for entry in fields(self):  # type: ignore[arg-type]  # of its subclasses, which are dataclasses
            value = getattr(self, entry.name)
            if value == [] and entry.default_factory is not MISSING and entry.default_factory():
                raise ValueError(f"{entry.name}: give at least one value.")
            values = value if isinstance(value, list) else [value]
            if any(isinstance(text, str) and not text.strip() and text != entry.default for text in values):
                optional = "" if entry.default is entry.default_factory is MISSING else ", or leave it out"
                raise ValueError(
                    f"{entry.name} is empty, as a shell variable that is not set leaves it: give a value{optional}."
                )
            if twice := [one for one in values if isinstance(one, int | float) and values.count(one) > 1]:
                raise ValueError(
                    f"{entry.name} = {' '.join(map(str, values))}: {twice[0]} stands there twice; give it once."
                )
            allowed = entry.metadata.get("range")
            if allowed is None:
                continue
            for number in values:
                if isinstance(number, int) and number.bit_length() > 63:
                    raise ValueError(f"{entry.name}: a number of more than 64 bits; must be {allowed}.")
                if number is not None and number not in allowed:
                    left_out = "; leave it out for the default" if entry.default is None else ""
                    raise ValueError(f"{entry.name} = {number}: must be {allowed}{left_out}.")


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


def parse_arguments(
    argument_classes: tuple[type, ...], argv: list[str] | None = None, description: str | None = None
) -> tuple[Any, ...]:
    """One instance of each dataclass, from `--config FILE.yaml` and the command line (which wins, also where it names a thing in another way:
    `option`'s `one_of`).

    Args:
        argument_classes: dataclasses of `option`s; their names are the arguments, a class's docstring is its group's title.
        argv: the command line without the program's name; `sys.argv[1:]` by default.
        description: shown on top of `--help`.

    Exits with status 2 and a message, as argparse does, on an unknown argument or key (naming the close match), a value
    of the wrong kind, or an unreadable file.
    """
    parser = _parser(argument_classes, description)
    ways = {entry.name: entry.metadata["one_of"] for kind in argument_classes for entry in fields(kind)}
    names = set(ways)
    argv = sys.argv[1:] if argv is None else list(argv)
    if "-h" in argv or "--help" in argv:
        parser.parse_args(["--help"])
    given = _options(parser, argv)
    files = [values for name, values in given if name == "config"]
    if files and len(files[-1]) != 1:
        parser.error("argument --config: expected one file")
    in_file = _file_options(parser, files[-1][0], argument_classes) if files else []
    on_line = [
        ours
        for name, values in given
        if name != "config"
        for ours in _our_option(parser, name, values, names, f"unknown argument --{name}")
    ]
    replaced = {ways[name] for name, _ in on_line} - {None}
    kept = [(name, values) for name, values in in_file if ways[name] not in replaced]
    found = vars(parser.parse_args(_words(kept + on_line)))
    return tuple(
        argument_class(**{entry.name: found[entry.name] for entry in fields(argument_class) if entry.name in found})
        for argument_class in argument_classes
    )


class _Help(argparse.RawDescriptionHelpFormatter):
    """The command's docstring as it is written, and a line or two for each argument."""

    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=36, width=110)


def _parser(argument_classes: tuple[type, ...], description: str | None, whole: bool = True) -> argparse.ArgumentParser:
    """
    Args:
        whole: what it reads is all that is given; else arguments may be missing, and it raises its errors.
    """
    usage = "%(prog)s [--config FILE.yaml] [--name value ...]"
    parser = argparse.ArgumentParser(
        description=description,
        usage=usage,
        formatter_class=_Help,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        exit_on_error=whole,
    )
    parser.add_argument(
        "--config",
        metavar="FILE.yaml",
        help="YAML file of arguments, or the name of a recipe that comes with s3bert, as lra/text; the command line overrides it",
    )
    for argument_class in argument_classes:
        title = inspect.cleandoc(argument_class.__doc__ or argument_class.__name__).split("\n\n")[0].rstrip(".")
        group = parser.add_argument_group(title)
        types = get_type_hints(argument_class)
        for entry in fields(argument_class):
            required = entry.default is MISSING and entry.default_factory is MISSING
            default = entry.default if entry.default_factory is MISSING else entry.default_factory()
            notes = ["required" if required else _default_in_words(default), str(entry.metadata.get("range", ""))]
            text = f"{entry.metadata['help']} ({'; '.join(filter(None, notes))})".removesuffix(" ()")
            group.add_argument(f"--{entry.name}", help=text, required=required and whole, **_kind(types[entry.name]))
    return parser


def _default_in_words(default: Any) -> str:
    """'default: ...', where it says something."""
    if default is None or default is False or default in ([], ""):
        return ""
    values = default if isinstance(default, list) else [default]
    text = " ".join(str(value).lower() if isinstance(value, bool) else str(value) for value in values)
    return f"default: {text}".replace("%", "%%")


def _kind(hint: Any) -> dict[str, Any]:
    """What argparse is to know of a field's type."""
    choices = tuple(kind for kind in get_args(hint) if kind is not type(None))
    if get_origin(hint) is list:
        return _kind(choices[0]) | {"nargs": "+"}
    if get_origin(hint) is Literal:
        return {"choices": choices, "metavar": "|".join(choices)}
    if isinstance(hint, UnionType):
        return {"type": number, "metavar": "N"} if len(choices) > 1 else _kind(choices[0])
    if hint is bool:
        return {"type": boolean, "nargs": "?", "const": True, "metavar": "true|false"}
    return {"type": hint, "metavar": {int: "N", float: "X"}.get(hint, "TEXT")}


def boolean(text: str) -> bool:
    """A truth value in words; argparse names this function in its error."""
    if text.lower() not in ("true", "yes", "1", "false", "no", "0"):
        raise ValueError
    return text.lower() in ("true", "yes", "1")


def number(text: str) -> int | float:
    """An integer where it is written as one."""
    return int(text) if re.fullmatch(r"[-+]?\d+", text) else float(text)


def _words(entries: list[tuple[str, list[str]]]) -> list[str]:
    """Names with their values as argparse reads them: `--name=value` for one value, which may then begin with a dash."""
    return [
        word
        for name, values in entries
        for word in ([f"--{name}={values[0]}"] if len(values) == 1 else [f"--{name}", *values])
    ]


def _options(parser: argparse.ArgumentParser, words: list[str]) -> list[tuple[str, list[str]]]:
    """The command line as names, each with its words."""
    options: list[tuple[str, list[str]]] = []
    for word in words:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            options.append((name, [value] if equals else []))
        elif options:
            options[-1][1].append(word)
        else:
            parser.error(f"unexpected word {word!r}: arguments are --name value.")
    return options


class _Loader(yaml.SafeLoader):
    """Takes no aliases: ten lines of them stand for billions of values."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()
            raise yaml.composer.ComposerError(
                None, None, f"an alias (*{event.anchor}) is not taken here; write the value out", event.start_mark
            )
        return super().compose_node(parent, index)


class _Dumper(yaml.SafeDumper):
    """Writes none: a list that is the value of two arguments is written twice."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def read_entries(file: Path) -> dict[str, Any]:
    """The arguments that a YAML file holds.

    Raises:
        OSError, ValueError: the file cannot be read, or does not hold `name: value` lines.
    """
    try:
        entries = _read_yaml(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error
    if entries is not None and not isinstance(entries, dict):
        raise ValueError(f"{file} must hold `name: value` lines, not {type(entries).__name__}.")
    return entries or {}


def _read_yaml(text: str) -> Any:
    """What a YAML text says.

    Raises:
        ValueError: it is not YAML, or has an alias.
    """
    try:
        return yaml.load(text, _Loader)
    # What is no YAMLError comes from its constructors, of dates as 2026-02-30 and tags as `!!bool x`, or from its depth.
    except (yaml.YAMLError, ValueError, KeyError, AttributeError, RecursionError) as error:
        said = " ".join(str(error).split())
        if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
            said = f"line {error.problem_mark.line + 1}, column {error.problem_mark.column + 1}: {error.problem}"
        raise ValueError(f"not YAML that is taken here ({said})") from error


def _file_options(
    parser: argparse.ArgumentParser, name: str, argument_classes: tuple[type, ...]
) -> list[tuple[str, list[str]]]:
    """A YAML file's entries as command-line words, so that one parser converts and checks both; a wrong one ends with the file's name."""
    names = {entry.name for argument_class in argument_classes for entry in fields(argument_class)}
    try:
        file = find_recipe(name)
        entries = read_entries(file)
    except (OSError, ValueError) as error:
        parser.error(f"cannot read the configuration file: {error}")
    options = []
    for name, value in entries.items():
        values = value if isinstance(value, list) else [value]
        words = [str(item).lower() if isinstance(item, bool) else str(item) for item in values if item is not None]
        if words or value not in (None, []):
            options += _our_option(parser, str(name), words, names, f"{file}: unknown key {name!r}")
        elif name not in names:
            parser.error(f"{file}: unknown key {name!r}.{close_match(str(name), names)}")
    try:
        _parser(argument_classes, None, whole=False).parse_known_args(_words(options))
    except argparse.ArgumentError as error:
        parser.error(f"{file}: {error}")
    return options


def _our_option(
    parser: argparse.ArgumentParser, name: str, values: list[str], names: set[str], unknown: str
) -> list[tuple[str, list[str]]]:
    """The option under our name, where it is one of Transformers'; none for what has no meaning here."""
    if name in names:
        return [(name, values)]
    if name in _MEANINGLESS:
        logger.warning("%s changes nothing: a run trains, and then evaluates.", name)
        return []
    ours, _, meant = _ALIASES.get(name, "").partition("=")
    if ours in names:
        if not meant:
            return [(ours, values)]
        return [] if values and values[0].lower() in ("false", "no", "0") else [(ours, [meant])]
    if name in _INSTEAD:
        parser.error(f"{unknown}: {_INSTEAD[name]}.")
    if name.removeprefix("no_") in names:
        parser.error(f"{unknown}: give --{name.removeprefix('no_')} false.")
    parser.error(f"{unknown}.{close_match(name, names | {'config'})}")


def named_settings(text: str, nullable: bool = False) -> tuple[str, dict[str, Any]]:
    """`NAME:setting=value,...` to the name and its settings, values read as YAML: "fmm:bandwidth=5,kernels=[elu,tanh]"; 1e-5,
    which YAML takes for a word, is a number. `nullable`: a value may be `null`.

    Raises:
        ValueError: what stands after the colon are no settings.
    """
    name, _, settings = text.partition(":")
    try:
        entries = _read_yaml("{" + settings.replace("=", ": ") + "}")
    except ValueError:
        entries = None
    if not isinstance(entries, dict) or any(
        value is None and not (nullable and f"{key}=null" in settings) for key, value in entries.items()
    ):
        raise ValueError(f"{text!r}: settings are name=value, with commas between them.")
    return name, {key: _number(value) if isinstance(value, str) else value for key, value in entries.items()}


def _number(text: str) -> float | str:
    return float(text) if re.fullmatch(r"[-+]?\d+(\.\d+)?[eE][-+]?\d+", text) else text


def override_config(config: Any, text: str) -> None:
    """Changes a model's configuration by `name=value,...`.

    Raises:
        ValueError: it has no such field, or one that is no setting; the value is of another type.
    """
    for name, value in named_settings(f"{config.model_type}:{text}", nullable=True)[1].items():
        if name in _NO_SETTINGS:
            raise ValueError(
                f"{name} = {value!r}: this is no setting of a model. --model_type, --config_name or --model_name_or_path choose "
                "which model it is, --mixed_precision its precision."
            )
        if not hasattr(config, name):
            known = [field for field in vars(config) if not field.startswith("_") and field not in _NO_SETTINGS]
            raise ValueError(f"{config.model_type} has no {name!r}.{close_match(name, known)}")
        before = getattr(config, name)
        if isinstance(before, float) and type(value) is int:
            value = float(value)
        if None not in (before, value) and type(value) is not type(before):
            raise ValueError(f"{name} = {value!r}: give a value of type {type(before).__name__}, as {before!r} is.")
        setattr(config, name, value)


def save_arguments(file: Path, *instances: Any) -> None:
    """Writes the resolved arguments as a YAML file that `--config` takes."""
    entries = {name: value for instance in instances for name, value in asdict(instance).items() if value is not None}
    write_text(file, yaml.dump(entries, Dumper=_Dumper, sort_keys=False))
