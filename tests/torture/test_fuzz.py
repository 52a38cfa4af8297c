"""Values and files of any kind: what comes of them is a result, or an error in a line that says what to do."""

import gzip
import importlib
import json
import math
import random
import shutil
import signal
import string
import traceback
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from argument_classes import argument_classes, numbers
from children import Child
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from long_commands import Commands
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSequenceClassification

from s3bert import PoNetConfig, S3BertConfig
from s3bert.arguments import parse_arguments
from s3bert.commands import COMMANDS, errors_in_a_line
from s3bert.data.arguments import CorpusArguments
from s3bert.data.corpus import Corpus, prepare_corpus
from s3bert.models.configuration_fmm import FmmConfig
from s3bert.models.configuration_forecast import S3ForecastConfig
from s3bert.models.configuration_lra import LraConfig
from s3bert.models.mixers import MIXERS
from s3bert.reports.results import REPORTS, read_run
from s3bert.tasks.glue import load_task
from s3bert.tasks.lra import LRA_TASKS
from s3bert.tasks.series import future_dates, read_series, regularize
from s3bert.training.log import read_log


def told(call: Callable[[], Any], command: str = "pretrain") -> tuple[Any, str | None]:
    """What a call returns, and what is wrong with the error that it ends in, as a command tells it; None for what is right."""
    try:
        with errors_in_a_line(command):
            return call(), None
    except SystemExit as ended:
        line = str(ended.code)
        return None, f"an error of several lines: {line}" if len(line.splitlines()) > 1 else None
    except BaseException as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        return None, f"a traceback: {error!r} in {Path(place.filename).name}, line {place.lineno}"


def fuzz(found, tries: int, strategy: st.SearchStrategy, check: Callable[[Any], str | None]) -> None:
    """Draws so many values, the same ones every time, and notes what `check` finds wrong with each."""

    @settings(
        max_examples=tries,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(strategy)
    def one(drawn):
        found.note(repr(drawn), check(drawn))

    one()


# Arguments.

WORDS = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Zl", "Zp")), max_size=12)
ODD = [
    "",
    " ",
    "0",
    "-1",
    "nan",
    "inf",
    "-inf",
    "1e999",
    "9" * 30,
    "9" * 400,
    "0x10",
    "1_000",
    "true",
    "none",
    "../..",
    "~",
    "=1+1",
    "é",
]
BOUNDARIES = [0, 1, -1, 2, 3, 7, 0.5, 1.0, -0.0, 1e-9, 100, 2**31, 2**32 - 1, 2**32, 2**63, 1e308, -1e308]


def words_of(entry: Field, kind: type) -> st.SearchStrategy[str]:
    """Words for a field: near its range and outside, of its type and of others."""
    allowed = entry.metadata.get("range")
    edges = [edge for edge in allowed or () if edge is not None]
    near = [edge + step for edge in edges for step in (-1, -1e-9, 0, 1e-9, 1)]
    choices = [str(choice) for choice in get_args(get_type_hints(kind)[entry.name]) if isinstance(choice, str)]
    plain = st.sampled_from([*map(str, near + BOUNDARIES), *ODD, *choices])
    return st.one_of(plain, st.integers().map(str), st.floats().map(str), WORDS)


@pytest.mark.parametrize("kind", argument_classes(), ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_every_field_of_every_command_takes_its_range_and_nothing_else(kind, campaign, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = campaign.of("any word for any field of any command's arguments")
    required = [entry for entry in fields(kind) if entry.default is entry.default_factory is MISSING]
    usual = {"task_name": "text", "dataset_name": "ili", "results_dir": "x", "model_name_or_path": "x"}
    of_numbers = {entry.name for entry in numbers(kind)}

    def check(drawn: tuple[str, str]) -> str | None:
        name, word = drawn
        words = [f"--{entry.name}={usual.get(entry.name, 'x')}" for entry in required if entry.name != name]
        result, problem = told(lambda: parse_arguments((kind,), [*words, f"--{name}={word}"])[0])
        if problem or result is None or name not in of_numbers:
            return problem
        value = getattr(result, name)
        entry = next(entry for entry in fields(kind) if entry.name == name)
        (value,) = value if isinstance(value, list) else [value]
        return None if value in entry.metadata["range"] else f"{value!r} is taken, outside of {entry.metadata['range']}"

    drawn = st.sampled_from(fields(kind)).flatmap(lambda entry: st.tuples(st.just(entry.name), words_of(entry, kind)))
    fuzz(found, campaign.tries(6, 25) * len(fields(kind)), drawn, check)
    found.check()


LAST_FILES = {"prepare-corpus": "corpus.json", "forecast": "forecast.csv"}


@pytest.mark.parametrize("name", Commands.names)
def test_a_command_with_any_value_of_a_field_runs_or_says_why_not(name, commands, campaign, fresh_folder):
    found = campaign.of("a command run with any value of one of its arguments")
    module = importlib.import_module(f"s3bert.commands.{COMMANDS[name].module}")
    kinds = [kind for kind in argument_classes() if getattr(module, kind.__name__, None) is kind]
    pairs = [
        (kind, entry) for kind in kinds for entry in fields(kind) if entry.name not in ("output_dir", "push_to_hub")
    ]

    def check(drawn: tuple[str, str]) -> str | None:
        field, word = drawn
        if field.endswith("workers") and word.isdigit():  # they would take this machine from everyone else
            word = str(int(word[:1] or 0) % 3)
        folder = fresh_folder()
        child = Child(name, [*commands.words(name), f"--{field}={word}"], folder, memory=4 << 30)
        if not child.read(20):  # it was asked for much work, and is now asked to stop
            child.send(signal.SIGTERM)
        outcome = child.wait(60)
        last = folder / "run" / LAST_FILES.get(name, "all_results.json")
        problem = outcome.problem
        if problem is None and outcome.status == 0 and not last.exists():
            problem = f"status 0 without {last.name}"
        if problem is None and outcome.status in (1, 2, 3) and not outcome.error:
            problem = f"status {outcome.status} and no error told"
        if problem is None and outcome.status not in (0, 1, 2, 3, 128 + signal.SIGTERM):
            problem = f"status {outcome.status}"
        shutil.rmtree(folder)
        return problem

    drawn = st.sampled_from(pairs).flatmap(lambda pair: st.tuples(st.just(pair[1].name), words_of(pair[1], pair[0])))
    if name in campaign.chosen(random.Random("values"), Commands.names, 1, 1):
        fuzz(found, campaign.tries(2, 25), drawn, check)
        found.check()


# Configurations of models.

CONFIGS = {
    S3BertConfig: ([AutoModelForMaskedLM, AutoModelForSequenceClassification], {}),
    PoNetConfig: ([AutoModelForMaskedLM, AutoModelForSequenceClassification], {"cls_token_id": 2, "sep_token_id": 3}),
    LraConfig: ([AutoModelForMaskedLM, AutoModelForSequenceClassification], {"classifier_size": 8}),
    S3ForecastConfig: ([AutoModel], {"context_length": 12, "prediction_length": 4, "num_input_channels": 2}),
    FmmConfig: ([AutoModelForCausalLM], {}),
}
TINY = {"vocab_size": 30, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
TINY |= {
    "max_position_embeddings": 16,
    "num_segments": 4,
    "num_row_samples": 3,
    "num_column_samples": 2,
    "num_harmonics": 2,
}


def values_of(hint: Any) -> st.SearchStrategy:
    """Values of a field's type, no larger than a test affords, and of others."""
    kinds = {hint, *get_args(hint)}
    small = st.integers(-3, 40)
    rates = st.one_of(st.sampled_from([0, 1, -0.1, 1.1, math.nan, math.inf, -math.inf, 1e-300, 1e300]), st.floats(0, 1))
    strategies = [st.none(), WORDS, st.booleans(), small, rates, st.lists(small, max_size=2)]
    if get_origin(hint) is Literal:
        strategies += [st.sampled_from(get_args(hint))] * 3
    if bool in kinds:
        strategies += [st.booleans()] * 3
    if int in kinds:
        strategies += [small] * 5
    if float in kinds:
        strategies += [rates] * 5
    if str in kinds:
        strategies += [
            st.sampled_from([*MIXERS, "relu", "gelu", "silu", "batch", "layer", "special", "fixed:3", "fixed:99"])
        ] * 3
    return st.one_of(strategies)


@pytest.mark.parametrize("kind", CONFIGS, ids=lambda kind: kind.__name__)
def test_any_configuration_is_refused_or_makes_a_model_that_computes(kind, campaign):
    found = campaign.of("a model's configuration with any values")
    ours = {
        name
        for each in kind.__mro__
        if each.__module__.startswith("s3bert")
        for name in vars(each).get("__annotations__", ())
    }
    hints = {entry.name: entry.type for entry in fields(kind) if entry.name in ours - {"auto_map"}}
    models, own = CONFIGS[kind]
    base = {name: value for name, value in TINY.items() if name in hints} | own

    def check(changes: dict[str, Any]) -> str | None:
        config, problem = told(lambda: kind(**base | changes))
        if config is None:
            return problem
        if any(size > 99 for size in changes.values() if isinstance(size, int)):
            return None
        for model in models:
            if problem := told(lambda model=model: computed(model.from_config(config)))[1]:
                return problem
        return None

    changes = st.lists(st.sampled_from(sorted(hints)), min_size=1, max_size=3, unique=True).flatmap(
        lambda chosen: st.fixed_dictionaries({name: values_of(hints[name]) for name in chosen})
    )
    fuzz(found, campaign.tries(40, 800), changes, check)
    found.check()


def computed(model: torch.nn.Module) -> None:
    """A forward in training and in evaluation; pairs are for the classifier alone.

    Raises:
        AssertionError: an output is not finite.
    """
    config = model.config
    if config.model_type == "s3-forecast":
        batch = {"past_values": torch.randn(2, config.context_length, config.num_input_channels)}
    else:
        length = min(6, config.max_position_embeddings)
        rows = (2, 2) if getattr(config, "pair_inputs", False) and not hasattr(model, "decoder") else (2,)
        batch = {
            "input_ids": torch.randint(1, config.vocab_size, (*rows, length))
            if config.vocab_size > 1
            else torch.zeros(*rows, length, dtype=torch.long)
        }
    for training in (True, False):
        output = model.train(training)(**batch)
        assert torch.isfinite(output[0]).all(), "an output is not finite"


# Files.

CELLS = st.one_of(
    st.floats(-1e3, 1e3).map("{:.3g}".format),
    st.sampled_from(
        [
            "",
            " ",
            "nan",
            "NA",
            "null",
            "inf",
            "1e308",
            "-1e200",
            "1,5",
            '"',
            '""',
            '"a',
            "x",
            "=1+1",
            "\t",
            "\0",
            "é",
            "1" * 400,
        ]
    ),
)
STEPS = st.sampled_from(["h", "D", "B", "MS", "ME", "15min", "W", "YS", "QE", "3D", "1s"])
SEPARATORS = st.sampled_from([",", ",", ",", ",", ";", "\t"])
ENDS = st.sampled_from(["\n", "\n", "\r\n", "\r"])
ENCODINGS = st.sampled_from(["utf-8", "utf-8", "utf-8", "utf-8-sig", "latin1", "utf-16"])


@st.composite
def csv_files(draw) -> bytes:
    """Regular dates and numbers, most of the time; and everything that can be wrong with such a file."""
    columns = draw(st.integers(1, 3))
    names = draw(
        st.lists(
            st.one_of(st.sampled_from(["a", "b", "c", "date", "", "=a", "a,b"]), WORDS),
            min_size=columns,
            max_size=columns,
        )
    )
    count = draw(st.integers(0, 30))
    start = draw(st.sampled_from(["2024-02-28", "1999-12-31", "2262-01-01", "1677-10-01", "0001-01-01", "9999-12-01"]))
    try:
        dates = [str(date) for date in pd.date_range(start, periods=count, freq=draw(STEPS))]
    except (ValueError, OverflowError):
        dates = [start] * count
    rows = [["when", *names]]
    for date in dates:
        rows.append([date, *(draw(CELLS) if draw(st.integers(0, 9)) == 0 else f"{len(rows)}" for _ in names)])
    for _ in range(draw(st.integers(0, 2))):  # spoilt rows
        if len(rows) > 1:
            place = draw(st.integers(0, len(rows) - 1))
            spoilt = rows[place]
            rows[place] = draw(
                st.one_of(
                    st.just([]),
                    st.just(rows[-1]),
                    st.just([*spoilt, "1"]),
                    st.just(spoilt[:-1]),
                    st.lists(CELLS, max_size=4),
                    st.sampled_from(["2024-13-01", "today", "31/12/2024", "2024-01-01T00:00+01:00", "1e9", ""]).map(
                        lambda date, rest=tuple(spoilt[1:]): [date, *rest]
                    ),
                )
            )
    separator, end = draw(SEPARATORS), draw(ENDS)
    text = end.join(separator.join(row) for row in rows) + draw(st.sampled_from([end, "", end * 3]))
    content = text.encode(draw(ENCODINGS), errors="replace")
    return content[: draw(st.integers(0, len(content)))] if draw(st.integers(0, 19)) == 0 else content


def test_any_csv_file_is_a_series_or_an_error_in_a_line(campaign, tmp_path):
    found, file = campaign.of("a CSV file by grammar"), tmp_path / "series.csv"

    def read() -> None:
        series, step = regularize(read_series(file))
        assert np.isfinite(series.values[~np.isnan(series.values)]).all()
        assert len(series.values) == len(series.dates)
        ahead = future_dates(series.dates, step, 3)
        assert len(ahead) == 3
        assert ahead[0] > series.dates.iloc[-1]

    def check(content: bytes) -> str | None:
        file.write_bytes(content)
        return told(read, "forecast")[1]

    fuzz(found, campaign.tries(60, 1500), csv_files(), check)
    found.check()


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 3), st.floats(), WORDS, st.just([]), st.just({}), st.just(10**30)
)


@st.composite
def json_lines(draw, text: str) -> bytes:
    """Rows of a text and a label, most of the time."""
    lines = []
    for number in range(draw(st.integers(0, 8))):
        row: Any = {text: f"some words {number}", "label": number % 2}
        match draw(st.integers(0, 19)):
            case 0:
                row[draw(st.sampled_from([text, "label", "other"]))] = draw(VALUES)
            case 1:
                row.pop(draw(st.sampled_from([text, "label"])))
            case 2:
                row = draw(VALUES)
        line = json.dumps(row, ensure_ascii=draw(st.booleans()))
        match draw(st.integers(0, 29)):
            case 0:
                line = line[: draw(st.integers(0, len(line)))]
            case 1:
                line = draw(WORDS)
            case 2:
                line += draw(st.sampled_from([" ", ",", "}", "\0", "\u2028", line, " " + line]))
        lines.append(line)
    content = draw(ENDS).join(lines).encode(draw(ENCODINGS), errors="replace")
    return content[: draw(st.integers(0, len(content)))] if draw(st.integers(0, 19)) == 0 else content


def test_any_json_lines_are_a_task_or_an_error_in_a_line(campaign, tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
    found, folder = campaign.of("JSON lines by grammar"), tmp_path / "data"
    (folder / "sst2").mkdir(parents=True)
    (folder / "text").mkdir()

    def check(contents: list[bytes]) -> str | None:
        for split, content in zip(("train", "validation"), contents):
            (folder / "sst2" / f"{split}.jsonl").write_bytes(content)
        for split, content in zip(("train", "test"), contents[2:]):
            (folder / "text" / f"{split}.jsonl.gz").write_bytes(gzip.compress(content, 1))
        glue = told(lambda: load_task("sst2", str(folder)), "glue")[1]
        shutil.rmtree(tmp_path / "cache", ignore_errors=True)
        return glue or told(lambda: LRA_TASKS["text"].read(folder / "text", 8), "lra")[1]

    lines = [json_lines("sentence"), json_lines("sentence"), json_lines("text"), json_lines("text")]
    fuzz(found, campaign.tries(8, 300), st.tuples(*lines), check)
    found.check()


TEXTS = st.one_of(
    st.binary(max_size=200),
    st.lists(
        st.one_of(WORDS, st.just("word " * 30), st.just("x" * 3000), st.just("\u2028"), st.just("[MASK] [SEP]")),
        max_size=30,
    ).map(lambda lines: "\n".join(lines).encode()),
    st.lists(st.text(string.ascii_lowercase + " ", min_size=20, max_size=90), min_size=5, max_size=40).map(
        lambda lines: "\n".join(lines).encode()
    ),
)


def test_any_text_is_a_corpus_or_an_error_in_a_line(campaign, tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
    found, file, folder = campaign.of("text files by grammar"), tmp_path / "text.txt", tmp_path / "corpus"

    def check(content: bytes) -> str | None:
        file.write_bytes(content)

        def prepare() -> None:
            arguments = CorpusArguments(
                train_file=str(file), vocab_size=60, max_seq_length=8, preprocessing_num_workers=1
            )
            blocks = Corpus.open(prepare_corpus(arguments, folder)).split("train")
            assert all(len(blocks[number]) == 8 for number in range(len(blocks)))

        problem = told(prepare, "prepare-corpus")[1]
        left = {path.name for path in tmp_path.iterdir()} - {"text.txt", "corpus", "cache", ".corpus.lock"}
        shutil.rmtree(folder, ignore_errors=True)
        return problem or (f"left over: {left}" if left else None)

    fuzz(found, campaign.tries(10, 300), TEXTS, check)
    found.check()


def test_any_log_and_any_results_are_read_or_an_error_in_a_line(campaign, tmp_path):
    found, folder = campaign.of("logs and results of runs by grammar"), tmp_path / "run"
    folder.mkdir()
    (folder / "arguments.yaml").write_text("output_dir: x\n")
    rows = st.one_of(
        VALUES, st.lists(VALUES, max_size=3), st.dictionaries(st.sampled_from([*REPORTS, "complete", "step"]), VALUES)
    )
    contents = st.one_of(st.binary(max_size=60), rows.map(lambda row: json.dumps(row).encode()))

    def check(content: bytes) -> str | None:
        (folder / "all_results.json").write_bytes(content)
        (folder / "log.jsonl").write_bytes(content)
        return told(lambda: read_log(folder / "log.jsonl"))[1] or told(lambda: read_run(folder))[1]

    fuzz(found, campaign.tries(100, 1500), contents, check)
    found.check()
