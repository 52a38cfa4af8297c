"""Arguments from YAML and the command line."""

import math
import re
import time
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Literal, get_type_hints

import pytest
from argument_classes import argument_classes, numbers

from s3bert import S3BertConfig, arguments
from s3bert.arguments import (
    RECIPES,
    find_recipe,
    named_settings,
    option,
    override_config,
    parse_arguments,
    save_arguments,
)
from s3bert.data.arguments import CorpusArguments
from s3bert.experiments.arguments import ModelArguments
from s3bert.training.arguments import GridConfig


@dataclass
class Arguments:
    """Kinds: some of every one."""

    output_dir: str = option(help="where to")
    learning_rate: float = option(help="how fast", default=5e-5)
    epochs: list[int] = option(help="how long", default_factory=lambda: [1])
    compile: bool = option(help="whether", default=False)
    shuffle: bool = option(help="whether not", default=True)
    limit: int | None = option(help="how many", default=None)
    extra: list[float] = option(help="what else", default_factory=list)
    dtype: Literal["float32", "float16"] = option(help="how fine", default="float32")
    max_train_steps: int | None = option(help="how far", default=None)
    num_warmup_steps: int | float = option(help="how softly", default=0)
    mixed_precision: str | None = option(help="no, fp16 or bf16", default=None)


def parse(*argv: str) -> Arguments:
    return parse_arguments((Arguments,), list(argv))[0]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("output_dir: from/file\nlearning_rate: 1e-4\nepochs: [2, 3]\ncompile: true\nlimit: null\n")
    return path


def test_the_command_line_overrides_the_file(file):
    assert parse("--config", str(file)) == Arguments("from/file", 1e-4, [2, 3], True)
    expected = Arguments("here", 1e-3, [7], False, limit=5)
    words = ["--output_dir", "here", "--learning_rate", "1e-3", "--epochs", "7", "--compile", "false", "--limit", "5"]
    assert parse(f"--config={file}", *words) == expected


def test_a_model_or_a_text_on_the_command_line_takes_the_place_of_the_files_whichever_way_it_is_named(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(
        "config_name: small.json\nconfig_overrides: num_segments=4\ndataset_name: wiki\nvalidation_file: b.txt\n"
    )
    words = ["--config", str(file), "--model_name_or_path", "run", "--train_file", "a.txt"]
    model, corpus = parse_arguments((ModelArguments, CorpusArguments), words)
    assert model == ModelArguments(model_name_or_path="run", config_overrides="num_segments=4")
    assert corpus == CorpusArguments(train_file="a.txt", validation_file="b.txt")
    _, corpus = parse_arguments((ModelArguments, CorpusArguments), [*words[:2], "--validation_file", "c.txt"])
    assert corpus == CorpusArguments(dataset_name="wiki", validation_file="c.txt")


@pytest.mark.parametrize("extra", [[], [2.0, 4.0]], ids=str)
def test_saved_arguments_repeat_the_run(extra, tmp_path):
    arguments = Arguments("-with space", 3e-4, [1, 2], True, False, 9, extra, "float16", num_warmup_steps=0.1)
    save_arguments(tmp_path / "sub" / "arguments.yaml", arguments)
    assert parse("--config", str(tmp_path / "sub" / "arguments.yaml")) == arguments


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--output_dir", "x", "--learning_rte", "1"], "unknown argument --learning_rte. Did you mean learning_rate?"),
        (["--output_dir", "x", "--learning_rate", "fast"], "invalid float value: 'fast'"),
        (["--output_dir", "x", "--compile", "maybe"], "invalid boolean value: 'maybe'"),
        (["--output_dir", "x", "--dtype", "int8"], "choose from"),
        (["--output_dir", "x", "--no_shuffle"], "unknown argument --no_shuffle: give --shuffle false."),
        (["--output_dir", "x", "--eval_strategy", "steps"], "unknown argument --eval_strategy: give --eval_steps"),
        (["x"], "unexpected word 'x': arguments are --name value."),
        (["--learning_rate", "1"], "the following arguments are required: --output_dir"),
        (["--config", "nowhere.yaml"], "cannot read the configuration file: 'nowhere.yaml' is not a file"),
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
        (
            "epochs: [1]\noutput_dir: [unclosed\n",
            "wrong.yaml: not YAML that is taken here (line 3, column 1: expected ',' or ']', but",
        ),
        ("output_dir: x\nlearning_rate: abc\n", "wrong.yaml: argument --learning_rate: invalid float value: 'abc'"),
        ("output_dir: 2026-02-30\n", "not YAML that is taken here (day is out of range"),
        ("output_dir: !!bool x\n", "not YAML that is taken here"),
        ("extra: " + "[" * 9999, "not YAML that is taken here (maximum recursion"),
        ("extra: &some [1.0]\nepochs: *some\n", "an alias (*some) is not taken here; write the value out"),
        ("extra: &some {a: 1}\nepochs:\n  <<: *some\n", "an alias (*some) is not taken here"),
    ],
)
def test_mistakes_in_a_file_are_named_with_the_file(content, message, tmp_path, capsys):
    path = tmp_path / "wrong.yaml"
    path.write_text(content)
    with pytest.raises(SystemExit):
        parse("--config", str(path))
    assert message in capsys.readouterr().err
    assert path.exists()


def test_a_bomb_of_aliases_is_refused_at_once(tmp_path, capsys):
    levels = ["&a0 [x, x, x, x, x, x, x, x, x]", *(f"&a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12))]
    (tmp_path / "bomb.yaml").write_text("output_dir: x\nextra:\n" + "".join(f"- {level}\n" for level in levels))
    started = time.process_time()
    with pytest.raises(SystemExit):
        parse("--config", str(tmp_path / "bomb.yaml"))
    assert time.process_time() - started < 5
    assert "an alias (*a0) is not taken here; write the value out" in capsys.readouterr().err
    with pytest.raises(ValueError, match="settings are name=value"):
        named_settings("s3:a=&x [1],b=*x")


def test_a_list_that_two_arguments_share_is_saved_without_aliases(tmp_path):
    shared = [2.0, 3.0]
    save_arguments(tmp_path / "arguments.yaml", Arguments("x", extra=shared, epochs=shared))
    assert (tmp_path / "arguments.yaml").read_text().count("- 2.0") == 2


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--max_steps", "7"], {"max_train_steps": 7}),
        (["--warmup_ratio", "0.1"], {"num_warmup_steps": 0.1}),
        (["--warmup_steps=20"], {"num_warmup_steps": 20}),
        (["--bf16"], {"mixed_precision": "bf16"}),
        (["--fp16", "false"], {}),
    ],
)
def test_names_of_transformers_are_taken_for_ours_on_the_command_line_and_in_files(words, expected, tmp_path):
    assert parse("--output_dir", "x", *words) == Arguments("x", **expected)
    name, _, value = "=".join(words).removeprefix("--").partition("=")
    (tmp_path / "run.yaml").write_text(f"output_dir: x\n{name}: {value or 'true'}\n")
    assert parse("--config", str(tmp_path / "run.yaml")) == Arguments("x", **expected)


def test_what_has_no_meaning_here_is_taken_and_said(caplog):
    assert parse("--output_dir", "x", "--do_train", "--limit", "5") == Arguments("x", limit=5)
    assert "do_train changes nothing: a run trains, and then evaluates." in caplog.text


def test_help_names_each_argument_once_with_the_default_that_says_something(capsys):
    with pytest.raises(SystemExit) as ended:
        parse("--help")
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert "\nKinds: some of every one:\n" in text
    lines = {line.split()[0].strip("-"): line for line in text.splitlines() if line.startswith("  --")}
    assert list(lines) == ["config", *vars(Arguments("x"))]
    assert lines["output_dir"].endswith("where to (required)")
    assert lines["shuffle"].endswith("whether not (default: true)")
    assert lines["epochs"].endswith("how long (default: 1)")
    for name in ("compile", "limit", "extra"):
        assert "default" not in lines[name]


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


def test_a_configuration_takes_values_of_its_own_types_alone():
    config = S3BertConfig()
    override_config(config, "hidden_dropout_prob=0,num_segments=4,smoother_norm=layer")
    assert (config.hidden_dropout_prob, config.num_segments, config.smoother_norm) == (0.0, 4, "layer")
    with pytest.raises(ValueError, match=r"hidden_size = 4.5: give a value of type int, as 768 is"):
        override_config(config, "hidden_size=4.5")
    with pytest.raises(ValueError, match=r"s3bert has no 'hidden_sizes'. Did you mean hidden_size"):
        override_config(config, "hidden_sizes=4")


def test_a_recipe_is_found_by_name_from_anywhere_and_a_file_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("lra/text", "configs/lra/text.yaml"):
        assert find_recipe(name) == RECIPES / "lra" / "text.yaml"
    (tmp_path / "lra").mkdir()
    (tmp_path / "lra" / "text").write_text("task_name: text\n")
    assert find_recipe("lra/text") == Path("lra/text")
    with pytest.raises(FileNotFoundError, match="Did you mean lra/listops"):
        find_recipe("lra/listop")


@pytest.mark.parametrize("kind", argument_classes(), ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_every_number_of_every_command_has_a_range_and_keeps_to_it(kind):
    assert issubclass(kind, arguments.Arguments)
    required = {entry.name: "x" for entry in fields(kind) if entry.default is entry.default_factory is MISSING}
    for entry in numbers(kind):
        assert "range" in entry.metadata, f"{entry.name} has no range"
        allowed = entry.metadata["range"]
        with pytest.raises(ValueError, match=f"^{entry.name}: a number of more than 64 bits"):
            kind(**required | {entry.name: [2**64] if entry.default_factory is not MISSING else 2**64})
        outside = {math.nan, math.inf, -math.inf, allowed.above, allowed.below}
        outside |= {bound + step for bound, step in ((allowed.least, -1), (allowed.most, 1)) if bound is not None}
        for value in outside - {None}:
            given = [value] if entry.default_factory is not MISSING else value
            with pytest.raises(
                ValueError, match=rf"^{entry.name} = {re.escape(str(value))}: must be {re.escape(str(allowed))}"
            ):
                kind(**required | {entry.name: given})
        default = entry.default if entry.default_factory is MISSING else entry.default_factory()
        for value in default if isinstance(default, list) else [default]:
            assert value is None or value is MISSING or value in allowed, f"{entry.name}'s own default"


def test_a_list_that_has_values_by_default_is_not_emptied():
    with pytest.raises(ValueError, match="learning_rate: give at least one value"):
        GridConfig("x", learning_rate=[])


@pytest.mark.parametrize("kind", argument_classes(), ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_no_text_of_any_command_is_empty(kind):
    required = {entry.name: "x" for entry in fields(kind) if entry.default is entry.default_factory is MISSING}
    for entry in fields(kind):
        hints = str(get_type_hints(kind)[entry.name])
        if "str" not in hints or entry.default == "":
            continue
        empty = [""] if "list" in hints else ""
        with pytest.raises(ValueError, match=f"^{entry.name} is empty, as a shell variable that is not set leaves it"):
            kind(**required | {entry.name: empty})


@pytest.mark.parametrize("name", ["seed", "learning_rate", "per_device_train_batch_size", "num_train_epochs"])
def test_a_value_of_a_grid_is_given_once(name):
    with pytest.raises(ValueError, match=f"^{name} = 1 2 1: 1 stands there twice; give it once."):
        GridConfig("x", **{name: [1, 2, 1]})
