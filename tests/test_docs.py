"""README and docs: every code block runs, and README stays one page.

A page is read from top to bottom in a folder of its own. What its blocks are for is written in their first lines:

    ```python                 runs, in one namespace per page
    ```sh                     runs, command by command, with the arguments of SMALL behind the page's own
    ```text                   is what the block before prints. After Python it is compared, `...` standing for anything;
                              after commands, whose full size it is of, it is not
    ```csv title="a.csv"      is written to that file; so is any block with a title

`<!-- parsed only: hours -->` before commands that are too long for a test: their arguments are read, and no more.
"""

import contextlib
import doctest
import importlib
import io
import itertools
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from accelerate.commands.launch import launch_command_parser
from accelerate.state import AcceleratorState
from torch.distributed.run import get_args_parser

from s3bert.arguments import find_recipe
from s3bert.commands import COMMANDS, main


ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
ALL_PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md")), *sorted(DOCS.glob("api/*.md"))]
PAGES = [page for page in ALL_PAGES if "```" in page.read_text(encoding="utf-8")]
BLOCK = re.compile(r"(?:^<!-- parsed only: (?P<why>.+?) -->\n+)?^```(?P<info>[^\n]+)\n(?P<code>.*?)^```$", re.M | re.S)
DEMO = "runs/demo/synthetic/pretrained"

_TRAINING = "--max_train_steps 2 --per_device_train_batch_size 4 --per_device_eval_batch_size 8 --logging_steps 1"
_WIDTH = "--hidden_size 16 --num_hidden_layers 1 --intermediate_size 16"
_MODEL = "hidden_size=32,num_hidden_layers=1,num_attention_heads=2,intermediate_size=32,max_position_embeddings=64"
SMALL = {
    "prepare-corpus": "--vocab_size 300 --max_seq_length 32",
    "pretrain": f"{_TRAINING} --vocab_size 300 --max_seq_length 32 --max_eval_blocks 4 --report_to none "
    f"--config_overrides {_MODEL}",
    "pretrain-clm": f"{_TRAINING} --max_seq_length 32 --max_eval_blocks 4 --report_to none "
    f"--config_overrides {_MODEL},adaptive_cutoffs=[]",
    "finetune": f"{_TRAINING} --max_train_samples 16 --max_eval_samples 8 --max_seq_length 640",
    "glue": f"{_TRAINING} --max_train_samples 16 --max_eval_samples 8 --max_seq_length 16",
    "prepare-lra": "--num_train 40 --num_val 10 --num_test 10",
    "lra": f"{_TRAINING} {_WIDTH} --max_seq_length 64 --max_train_samples 16 --max_eval_samples 8",
    "analyse-lra": "--hidden_size 16 --max_seq_length 64 --num_inputs 8 --seed 1",
    "copy-task": f"{_TRAINING} {_WIDTH} --num_eval_batches 1",
    "approximation": "--lengths 32 --sizes 4 8 --num_sequences 2",
    "attention-rank": "--length 32 --num_sequences 1",
    "forecast": "--hidden_size 8 --num_hidden_layers 1 --num_train_epochs 1",
    "benchmark": f"--lengths 16 32 {_WIDTH} --num_attention_heads 2 --tokens_per_batch 64 --rounds 1 --min_seconds 0 --memory false",
}


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its file if it has a title, its text and line, and why it is only parsed."""

    language: str
    file: str | None
    code: str
    line: int
    why: str | None


def blocks(page: Path) -> list[Block]:
    """The blocks of a page."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in BLOCK.finditer(text):
        language, _, rest = match["info"].partition(" ")
        title = re.fullmatch(r'title="(.+)"', rest)
        assert bool(rest) == bool(title), f"{page.name}: what is ```{match['info']}?"
        line = text.count("\n", 0, match.start("code")) + 1
        found.append(Block(language, title and title[1], match["code"], line, match["why"]))
    fences = len(re.findall(r"^\s*```", text, re.M))
    assert fences == 2 * len(found), f"{page.name}: {fences} fences, {len(found)} blocks: one is indented or open"
    return found


class ParsedError(Exception):
    """The arguments of a command were read."""


class Reader:
    """Somebody who follows a page in the current folder; `done` counts what was done with its blocks."""

    def __init__(self, page: Path, monkeypatch: pytest.MonkeyPatch):
        self.page, self.monkeypatch = page, monkeypatch
        self.namespace: dict[str, object] = {"__name__": "page"}
        self.printed: str | None = None  # by the Python block before
        self.done: Counter[str] = Counter()

    def read(self, block: Block) -> None:
        if block.file:
            file = Path(block.file)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.code, encoding="utf-8")
            self.done["written"] += 1
        elif block.language == "python":
            self.run_python(block)
            self.done["run"] += 1
        elif block.language == "sh":
            for command in block.code.replace("\\\n", " ").splitlines():
                if words := shlex.split(command, comments=True):
                    self.run_command(words, block.why)
            self.printed = None
            self.done["parsed only" if block.why else "run"] += 1
        elif block.language == "text":
            if self.printed is not None:
                options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
                same = doctest.OutputChecker().check_output(block.code, self.printed, options)
                assert same, f"{self.page.name}:{block.line} promises\n{block.code}\nand gets\n{self.printed}"
            self.done["printed"] += 1
        else:
            pytest.fail(f"{self.page.name}:{block.line}: nothing is known about ```{block.language} without a title")

    def run_python(self, block: Block) -> None:
        source = "\n" * (block.line - 1) + block.code  # a traceback names the page's line
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile(source, str(self.page), "exec"), self.namespace)
        self.printed = output.getvalue()

    def run_command(self, words: list[str], why: str | None) -> None:
        """Runs one command, or has its arguments read."""
        AcceleratorState._reset_state(reset_partial_state=True)  # a command is a process of its own
        match words:
            case ["s3bert", name, *rest]:
                self.run_s3bert(name, rest, why)
            case [variable, *rest] if re.match(r"[A-Z_]+=", variable):
                self.run_command(rest, why)
            case [("accelerate" | "torchrun") as launcher, *rest]:
                parser = launch_command_parser() if launcher == "accelerate" else get_args_parser()
                read = parser.parse_args(rest[1:] if launcher == "accelerate" else rest)
                if file := getattr(read, "config_file", None):
                    assert (ROOT / file).is_file()
                assert read.module
                names = {f"s3bert.commands.{command.module}": name for name, command in COMMANDS.items()}
                self.run_s3bert(names[read.training_script], read.training_script_args, why)
            case ["python", script, *rest] if script.startswith("examples/"):
                self.monkeypatch.setattr("sys.argv", [script, *rest])
                runpy.run_path(str(ROOT / script), run_name="__main__")
            case ["make", target, *_]:  # .ci/run makes them all
                subprocess.run(["make", "-n", target], cwd=ROOT, check=True, capture_output=True)
            case ["pip", "install", package]:
                name, *extras = re.findall(r"^[.]|[\w-]+", package)
                known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
                assert name in (".", "s3bert")
                assert set(extras) <= set(known), f"{package}: the extras are {', '.join(known)}"
            case ["tensorboard", "--logdir", folder]:
                assert list(Path(folder).rglob("events.out.*"))
            case _:
                pytest.fail(f"{self.page.name}: no way is known to run {shlex.join(words)}")

    def run_s3bert(self, name: str, words: list[str], why: str | None) -> None:
        if not why:
            self.monkeypatch.setattr("sys.argv", sys.argv)  # which a command changes
            main([name, *words, *shlex.split(SMALL.get(name, ""))])
            return
        module = importlib.import_module(f"s3bert.commands.{COMMANDS[name].module}")
        parse = module.parse_arguments

        def parse_and_stop(*arguments, **keywords):
            parse(*arguments, **keywords)
            raise ParsedError

        with self.monkeypatch.context() as patch:
            patch.setattr(module, "parse_arguments", parse_and_stop)
            with pytest.raises(ParsedError):
                module.main(words)


@pytest.fixture(scope="session")
def demo(tmp_path_factory) -> Path:
    """A tiny model where `make demo` leaves one."""
    folder = tmp_path_factory.mktemp("demo")
    size = _MODEL.replace("hidden_size=32", "hidden_size=64")
    words = ["--dataset_name", "synthetic", "--config_name", str(find_recipe("model/s3bert-tiny", ".json"))]
    words += ["--vocab_size", "800", "--max_seq_length", "64", "--max_train_samples", "60", "--config_overrides", size]
    training = [*shlex.split(_TRAINING), "--max_eval_blocks", "4", "--report_to", "none"]
    main(["pretrain", *words, *training, "--output_dir", str(folder / "pretrained")])
    return folder / "pretrained"


@pytest.fixture
def readers_folder(demo, tmp_path, monkeypatch) -> Path:
    """The current folder: the checkpoint of a clone, what `make demo` leaves, and stand-ins for the files that a page takes to be the reader's own."""
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints/s3bert-small-en").symlink_to(ROOT / "checkpoints/s3bert-small-en")
    (tmp_path / DEMO).parent.mkdir(parents=True)
    shutil.copytree(demo, tmp_path / DEMO, ignore=shutil.ignore_patterns("checkpoint-*", "corpus"))
    words = [
        ["anna", "george", "helen", "jack"],
        ["praises the", "leaves the"],
        ["mill", "bread", "tower", "song"],
        ".",
    ]
    sentences = [" ".join(choice) for choice in itertools.product(*words)]
    (tmp_path / "my_text.txt").write_text("\n".join(5 * sentences), encoding="utf-8")
    (tmp_path / "sentences.txt").write_text("\n".join(sentences), encoding="utf-8")
    reviews = [f"{sentence},{'positive' if 'praises' in sentence else 'negative'}" for sentence in sentences]
    (tmp_path / "reviews.csv").write_text("\n".join(["text,label", *reviews]), encoding="utf-8")
    hours = [
        f"2024-01-{day:02}T{hour:02}:00,{10 + hour % 12},{hour / 24}" for day in range(1, 15) for hour in range(24)
    ]
    (tmp_path / "series.csv").write_text("\n".join(["date,load,temperature", *hours]), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_of_a_page_runs(page, readers_folder, monkeypatch):
    reader = Reader(page, monkeypatch)
    found = blocks(page)
    for block in found:
        reader.read(block)
    print(f"{page.name}: {len(found)} blocks, {', '.join(f'{n} {what}' for what, n in reader.done.items())}")
    assert reader.done.total() == len(found)


def test_options_named_in_the_text_exist(capsys):
    for name in COMMANDS:
        with pytest.raises(SystemExit):
            main([name, "--help"])
    help_texts = capsys.readouterr().out + launch_command_parser().format_help() + get_args_parser().format_help()
    examples = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "examples").glob("*.py"))
    known = set(re.findall(r"--(\w+)", help_texts)) | set(re.findall(r'"--(\w+)"', examples))
    for page in ALL_PAGES:
        inline = " ".join(re.findall(r"`[^`\n]+`", BLOCK.sub("", page.read_text(encoding="utf-8"))))
        assert set(re.findall(r"--(\w+)", inline)) <= known, page.name


def test_few_blocks_are_only_parsed():
    found = [block for page in PAGES for block in blocks(page)]
    parsed = [block for block in found if block.why]
    print(f"{len(found)} blocks in {len(PAGES)} pages, {len(parsed)} of them only parsed")
    assert len(parsed) <= len(found) / 6


def test_readme_is_one_page():
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    words = sum(len(line.split()) for line in lines)
    assert len(lines) <= 150
    assert max(map(len, lines)) < 120
    assert words <= 1200


def test_numbers_of_readme_are_those_of_the_results():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in row.split("|")[2:-1]] for row in re.findall(r"^\|.+\|$", text, re.M)]
    run, compared = "", 0
    for *values, name in rows[2 : [len(row) for row in rows].index(1)]:
        run = name or run
        results = (ROOT / "results" / run / "results.md").read_text(encoding="utf-8")
        for value in filter(None, values):
            assert value == "1" or value in results, f"{value} is not in {run}"
            compared += value != "1"
    assert compared


def test_readme_lists_every_command():
    listed = re.findall(r"`s3bert ([a-z0-9-]+)`", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert Counter(listed) == Counter(list(COMMANDS))


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_not_through_symbolic_links_which_github_does_not_follow(page):
    for target in re.findall(r"\]\(([^)#]+)", BLOCK.sub("", page.read_text(encoding="utf-8"))):
        if not target.startswith("https://"):
            file = Path(os.path.normpath(page.parent.resolve() / target))
            assert file.exists(), target
            assert file == file.resolve(), f"{target} leads through a symbolic link"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("words,label\na,x\nb,y\n", "rows.csv has no column text, only words, label: rename one to it."),
        ("text,label\na,x\nb,\n", "rows.csv, row 2 behind the header has no label: fill it in, or take the row out."),
        ("text,label\na,1\n,2\n", "rows.csv, row 2 behind the header has no text: fill it in, or take the row out."),
    ],
)
def test_the_example_of_ones_own_csv_names_what_a_row_lacks(content, message, tmp_path, monkeypatch, capsys):
    (tmp_path / "rows.csv").write_text(content)
    monkeypatch.chdir(tmp_path)
    words = ["finetune_own_csv.py", "--model", "none", "--data", "rows.csv", "--output_dir", "run"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "examples" / "finetune_own_csv.py"), run_name="__main__")
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
