"""Arguments from YAML and the command line."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from s3bert.arguments import (
    DIVERGED,
    RECIPES,
    find_recipe,
    named_settings,
    parse_arguments,
    run_as_script,
    save_arguments,
)
from s3bert.models.configuration_forecast import S3ForecastConfig


@dataclass
class Arguments:
    """Some of every kind."""

    output_dir: str = field(metadata={"help": "where to"})
    learning_rate: float = field(default=5e-5, metadata={"help": "how fast"})
    epochs: list[int] = field(default_factory=lambda: [1], metadata={"help": "how long"})
    compile: bool = field(default=False, metadata={"help": "whether"})
    limit: int | None = field(default=None, metadata={"help": "how many"})
    extra: list[float] = field(default_factory=list, metadata={"help": "what else"})


def parse(*argv: str) -> Arguments:
    return parse_arguments((Arguments,), list(argv))[0]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("output_dir: from/file\nlearning_rate: 1e-4\nepochs: [2, 3]\ncompile: true\nlimit: null\n")
    return path


def test_the_command_line_overrides_the_file(file):
    assert parse("--config", str(file)) == Arguments("from/file", 1e-4, [2, 3], True, None)
    expected = Arguments("here", 1e-3, [7], False, 5)
    words = ["--output_dir", "here", "--learning_rate", "1e-3", "--epochs", "7", "--compile", "false", "--limit", "5"]
    assert parse(f"--config={file}", *words) == expected


@pytest.mark.parametrize("extra", [[], [2.0, 4.0]], ids=str)
def test_saved_arguments_repeat_the_run(extra, tmp_path):
    arguments = Arguments("with space", 3e-4, [1, 2], True, 9, extra)
    save_arguments(tmp_path / "sub" / "arguments.yaml", arguments)
    assert parse("--config", str(tmp_path / "sub" / "arguments.yaml")) == arguments


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--output_dir", "x", "--learning_rte", "1"], "unknown argument --learning_rte. Did you mean learning_rate?"),
        (["--output_dir", "x", "--learning_rate", "fast"], "invalid float value: 'fast'"),
        (["--learning_rate", "1"], "the following arguments are required: --output_dir"),
        (["--config", "nowhere.yaml"], "cannot read the configuration file nowhere.yaml"),
    ],
)
def test_mistakes_on_the_command_line_are_named(words, message, capsys):
    with pytest.raises(SystemExit) as error:
        parse(*words)
    assert error.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("output_dirr: x\n", "unknown key 'output_dirr'. Did you mean output_dir?"),
        ("- a list\n", "must hold `name: value` lines"),
        ("output_dir: [unclosed\n", "cannot read the configuration file"),
    ],
)
def test_mistakes_in_a_file_are_named_with_the_file(content, message, tmp_path, capsys):
    path = tmp_path / "wrong.yaml"
    path.write_text(content)
    with pytest.raises(SystemExit):
        parse("--config", str(path))
    assert message in capsys.readouterr().err
    assert path.exists()


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("s3", {}),
        ("s3:a=1,b=true,c=word,d=[elu,tanh]", {"a": 1, "b": True, "c": "word", "d": ["elu", "tanh"]}),
        ("s3:a=1e-5,b=-2.5E3,c=1e-5x", {"a": 1e-5, "b": -2500.0, "c": "1e-5x"}),
    ],
)
def test_settings_after_a_name_have_the_types_they_look_like(text, settings):
    assert named_settings(text) == ("s3", settings)


@pytest.mark.parametrize("text", ["s3:a", "s3:a=", "s3:a=[1"])
def test_what_is_no_setting_is_named(text):
    with pytest.raises(ValueError, match="settings are name=value, with commas between them"):
        named_settings(text)


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
        (lambda: raised(KeyboardInterrupt()), "interrupted; what was saved is kept, and the same call goes on"),
    ],
)
def test_a_script_ends_with_what_can_be_mended_in_a_line(main, message):
    with pytest.raises(SystemExit) as error:
        run_as_script(main)
    assert str(error.value.code).startswith(message)


def test_a_training_that_diverged_has_an_exit_status_of_its_own(capsys):
    with pytest.raises(SystemExit) as error:
        run_as_script(lambda: raised(FloatingPointError("The loss is not finite.")))
    assert error.value.code == DIVERGED
    assert "error: The loss is not finite." in capsys.readouterr().err


def test_a_recipe_is_found_by_name_from_anywhere_and_a_file_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("lra/text", "configs/lra/text.yaml"):
        assert find_recipe(name) == RECIPES / "lra" / "text.yaml"
    (tmp_path / "lra").mkdir()
    (tmp_path / "lra" / "text").write_text("task_name: text\n")
    assert find_recipe("lra/text") == Path("lra/text")
    with pytest.raises(FileNotFoundError, match="Did you mean lra/listops"):
        find_recipe("lra/listop")
