"""The console command: every command's help, quickly; mistakes in a line; the extra that a missing package is in."""

import ast
import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from s3bert import __version__
from s3bert.commands import COMMANDS, errors_in_a_line, main
from s3bert.models.configuration_forecast import S3ForecastConfig
from s3bert.training.arguments import DIVERGED


ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_that_names_it_and_a_script(name, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["pytest"])
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: s3bert {name} [--config FILE.yaml]")
    assert f"    s3bert {name} --" in text, "an example to copy"
    assert "default: None" not in text
    assert f'run("{name}")' in (ROOT / "scripts" / f"{COMMANDS[name].module}.py").read_text(encoding="utf-8")


def test_the_console_command_lists_the_commands():
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    told = subprocess.run([sys.executable, "-m", "s3bert"], env=environment, capture_output=True, text=True, check=True)
    listed = [line.split()[0] for line in told.stdout.splitlines() if line.startswith("  ")]
    assert listed == list(COMMANDS)


def test_a_misspelt_command_is_named_with_its_close_match(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["pretraim"])
    assert ended.value.code == 2
    assert "there is no command 'pretraim'. Did you mean pretrain" in capsys.readouterr().err


def test_the_version_is_the_packages(capsys):
    main(["--version"])
    assert capsys.readouterr().out == f"s3bert {__version__}\n"


def imported_at_the_top(module: str, seen: set[str]) -> set[str]:
    """Packages that importing a module of s3bert imports, through the modules of s3bert that it imports; not by `s3bert` itself."""
    if module in seen or module == "s3bert":
        return set()
    seen.add(module)
    file = Path(importlib.util.find_spec(module).origin)
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    names = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            names |= {base, *(f"{base}.{alias.name}" for alias in node.names if base.startswith("s3bert"))}
    packages = set()
    for name in names:
        if not name.startswith("s3bert"):
            packages.add(name.partition(".")[0])
        elif importlib.util.find_spec(name.rpartition(".")[0]) and _is_module(name):
            packages |= imported_at_the_top(name, seen)
    return packages - sys.stdlib_module_names


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # a name within a module
        return False


@pytest.mark.parametrize("command", COMMANDS.values(), ids=list(COMMANDS))
def test_a_command_parses_before_it_imports_anything_slow(command):
    assert imported_at_the_top(f"s3bert.commands.{command.module}", set()) <= {"yaml"}


def test_a_missing_package_is_told_with_its_extra():
    with pytest.raises(SystemExit) as ended, errors_in_a_line("pretrain"):
        raise ModuleNotFoundError("No module named 'accelerate'", name="accelerate.utils")
    message = "error: 's3bert pretrain' needs the extra 'train': pip install 's3bert[train]' (accelerate is missing)"
    assert ended.value.code == message
    with pytest.raises(SystemExit, match="s3bert\\[forecast\\]"), errors_in_a_line("forecast"):
        raise ModuleNotFoundError("No module named 'pandas'", name="pandas")
    with pytest.raises(SystemExit, match="s3bert\\[export\\]"), errors_in_a_line("benchmark"):
        raise ModuleNotFoundError("No module named 'onnxruntime'", name="onnxruntime")
    with pytest.raises(ModuleNotFoundError), errors_in_a_line("pretrain"):
        raise ModuleNotFoundError("No module named 's3bert.nowhere'", name="s3bert.nowhere")


def raised(error: BaseException):
    raise error


@pytest.mark.parametrize(
    ("main", "message"),
    [
        (lambda: S3ForecastConfig(num_harmonics=60), "error: num_harmonics = 60: a context of 96 steps has 0 to 48."),
        (
            lambda: S3ForecastConfig(hidden_size="wide"),
            "error: Field 'hidden_size' expected int, got str (value: 'wide')",
        ),
        (lambda: raised(ValueError("lr = -1: must be positive.")), "error: lr = -1: must be positive."),
        (lambda: torch.empty(2**50, 2**10), "error: this machine has too little memory ("),
        (lambda: np.empty(2**55), "error: this machine has too little memory (Unable to allocate 256. PiB"),
        (lambda: torch.empty(2**62, 2**10), "error: this machine has too little memory ("),
    ],
)
def test_a_command_ends_with_what_can_be_mended_in_a_line(main, message):
    with pytest.raises(SystemExit) as error, errors_in_a_line("pretrain"):
        main()
    assert str(error.value.code).startswith(message)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_command_that_is_interrupted_says_how_to_go_on_and_ends_as_is_usual(number):
    code = (
        "import signal, sys, time, s3bert.commands as commands\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background jobs ignore it
        "sleep = type('Sleep', (), {'main': staticmethod(lambda: (print('ready', flush=True), time.sleep(60)))})\n"
        "commands._module = lambda name: sleep\n"
        "commands.run('pretrain')"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert errors.startswith("interrupted; what was saved is kept, and the same call goes on")
    assert len(errors.splitlines()) == 1, "no traceback"


def test_a_training_that_diverged_has_an_exit_status_of_its_own(capsys):
    with pytest.raises(SystemExit) as error, errors_in_a_line("pretrain"):
        raise FloatingPointError("The loss is not finite.")
    assert error.value.code == DIVERGED
    assert "error: The loss is not finite." in capsys.readouterr().err
