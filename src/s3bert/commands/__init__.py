"""The console command `s3bert` and its commands: one module each, with its arguments and a `main(argv)`.

A command parses first and imports then: its module holds dataclasses and imports neither torch nor transformers at the top, so
that `--help` and a misspelt argument are answered at once. What it does is in `s3bert.experiments` and the rooms below.
"""

import logging
import os
import re
import signal
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import FrameType
from typing import NamedTuple

from s3bert.arguments import close_match
from s3bert.training.arguments import DIVERGED
from s3bert.version import __version__


class Command(NamedTuple):
    """The module of a command, whose docstring begins with what it does, and the extra that has all its packages."""

    module: str
    extra: str = "train"


COMMANDS = {
    "demo": Command("demo"),
    "prepare-corpus": Command("prepare_corpus"),
    "convert": Command("convert"),
    "pretrain": Command("pretrain_mlm"),
    "pretrain-clm": Command("pretrain_clm"),
    "eval-perplexity": Command("eval_perplexity"),
    "compare-clm": Command("compare_clm"),
    "finetune": Command("run_finetuning"),
    "glue": Command("run_glue"),
    "table3": Command("reproduce_table3"),
    "prepare-lra": Command("prepare_lra"),
    "lra": Command("run_lra"),
    "analyse-lra": Command("analyse_lra"),
    "copy-task": Command("run_copy_task"),
    "approximation": Command("approximation_error"),
    "attention-rank": Command("attention_rank"),
    "forecasting": Command("run_forecasting", "forecast"),
    "forecast": Command("forecast", "forecast"),
    "benchmark": Command("benchmark"),
    "export": Command("export", "export"),
    "report": Command("report_runs"),
    "push": Command("push_to_hub"),
}
# What extras install; `pip install s3bert` alone brings none of it.
_OPTIONAL = {"accelerate", "datasets", "evaluate", "filelock", "matplotlib", "pandas", "psutil", "scipy", "sklearn"}
_OPTIONAL |= {"tensorboard", "tokenizers", "tqdm"}
_OF_EXPORT = {"onnx", "onnxruntime", "onnxscript"}


# What torch's RuntimeErrors say where an accelerator or a CPU has none left, or a size is beyond any memory.
_NO_MEMORY = re.compile("out of memory|allocate memory|not enough memory|[Ss]torage size calculation overflowed")
# What they say, with the name of the library that processes talk through, where one of several does not answer.
_UNREACHABLE = re.compile("gloo|NCCL|TCPStore|client socket")
_KEPT = (
    "what was saved is kept, and the same call goes on from there, with --resume_from_checkpoint latest where a command has that "
    "argument"
)


def main(argv: list[str] | None = None) -> None:
    """`s3bert COMMAND ...`: the command of that name, or the list of them."""
    words = sys.argv[1:] if argv is None else list(argv)
    if not words or words[0] in ("-h", "--help"):
        print(_overview())
    elif words[0] == "--version":
        print(f"s3bert {__version__}")
    elif words[0] not in COMMANDS:
        print(f"s3bert: error: there is no command {words[0]!r}.{close_match(words[0], COMMANDS)}", file=sys.stderr)
        sys.exit(2)
    else:
        sys.argv = [f"s3bert {words[0]}", *words[1:]]
        run(words[0])


def run(name: str) -> None:
    """Runs a command with the arguments of `sys.argv`."""
    first = os.environ.get("RANK", "0") == "0"  # of several processes, which would all say the same
    logging.basicConfig(level=logging.INFO if first else logging.ERROR, format="%(message)s", stream=sys.stderr)
    for noisy in ("httpx", "datasets", "evaluate", "filelock"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    signal.signal(signal.SIGTERM, _terminate)
    with errors_in_a_line(name):
        _module(name).main()


def _terminate(number: int, frame: FrameType | None) -> None:
    """SIGTERM ends the process in order, so that what it has begun, jobs for one, is put away."""
    print(f"interrupted; {_KEPT}", file=sys.stderr)
    sys.exit(128 + number)


@contextmanager
def errors_in_a_line(name: str) -> Iterator[None]:
    """Ends the process on an error the user can mend, with its message alone and status 1, or DIVERGED where a training did.

    A missing package is one: the message says which extra has it. So is too little memory.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _OPTIONAL | _OF_EXPORT:
            raise
        extra = "export" if package in _OF_EXPORT else COMMANDS[name].extra
        sys.exit(
            f"error: 's3bert {name}' needs the extra '{extra}': pip install 's3bert[{extra}]' ({package} is missing)"
        )
    except FloatingPointError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(DIVERGED)
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        print(f"interrupted; {_KEPT}", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
    except Exception as error:
        from huggingface_hub.errors import StrictDataclassError  # not at the top: it imports an HTTP client

        if isinstance(error, StrictDataclassError):
            sys.exit(f"error: {error.__cause__ or error}")  # the cause says which value, and what is allowed
        if isinstance(error, MemoryError) or _NO_MEMORY.search(str(error)):
            said = " ".join(str(error).split()) or "no more can be had"
            sys.exit(
                f"error: this machine has too little memory ({said}). Lower the sizes of the model, its inputs or batches."
            )
        if isinstance(error, RuntimeError) and "RANK" in os.environ and _UNREACHABLE.search(str(error)):
            said = textwrap.shorten(str(error), 400, placeholder=" ...").rstrip(".")
            sys.exit(
                f"error: process {os.environ['RANK']} of {os.environ['WORLD_SIZE']} does not reach the others ({said}). Where one of "
                f"them has ended or hangs, its own last lines, or the launcher's, say why. All end with it; {_KEPT}."
            )
        raise


def _module(name: str):
    return import_module(f"{__name__}.{COMMANDS[name].module}")


def _overview() -> str:
    """The commands, each with the first sentence of its module."""
    lines = [f"  {name:<16}{(_module(name).__doc__ or '').splitlines()[0]}" for name in COMMANDS]
    return "\n".join(
        [
            "usage: s3bert COMMAND [--config FILE.yaml] [--name value ...]",
            "",
            "BERT for long inputs, with S3Attention for self-attention, as a Transformers model.",
            "",
            *lines,
            "",
            "s3bert COMMAND --help lists a command's arguments, s3bert --version the version.",
        ]
    )
