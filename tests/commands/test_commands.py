"""The scripts end to end, on the synthetic corpus: what a run leaves behind, and what mistakes are told."""

import json
import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from accelerate.commands.config.config_args import load_config_from_file
from huggingface_hub import ModelCard
from huggingface_hub.errors import StrictDataclassError
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer, pipeline

from s3bert.arguments import parse_arguments
from s3bert.commands import (
    _module,
    compare_clm,
    errors_in_a_line,
    prepare_corpus,
    pretrain_clm,
    pretrain_mlm,
    push_to_hub,
    reproduce_table3,
    run_copy_task,
    run_forecasting,
    run_glue,
    run_lra,
)
from s3bert.experiments.arguments import ModelArguments
from s3bert.experiments.objectives import MASKED
from s3bert.experiments.starting_model import read_config
from s3bert.reports.repository import adopt_card
from s3bert.training.checkpoints import all_checkpoints


ROOT = Path(__file__).parents[2]


SIZE = "hidden_size=32,num_hidden_layers=1,num_attention_heads=2,intermediate_size=32,max_position_embeddings=32"
SHORT = ["--max_train_steps", "4", "--per_device_train_batch_size", "4", "--eval_steps", "2", "--save_steps", "2"]
SHORT += ["--max_eval_blocks", "8", "--logging_steps", "1", "--report_to", "none", "--learning_rate", "1e-3"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus") / "synthetic"
    words = ["--vocab_size", "800", "--max_seq_length", "32", "--max_train_samples", "60"]
    prepare_corpus.main(["--dataset_name", "synthetic", *words, "--output_dir", str(folder)])
    return folder


@pytest.fixture(scope="module")
def pretrained(corpus, tmp_path_factory):
    """A finished run of a tiny S3BERT."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    pretrain(corpus, folder, "--model_type", "s3bert")
    return folder


def pretrain(corpus: Path, folder: Path, *words: str, size: str = SIZE):
    overrides = ["--config_overrides", size] if size else []
    return pretrain_mlm.main(["--dataset_name", str(corpus), "--output_dir", str(folder), *SHORT, *words, *overrides])


def test_a_pretraining_run_leaves_a_complete_hub_repository(pretrained, corpus):
    files = {path.name for path in pretrained.iterdir()}
    expected = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "README.md"}
    assert {name for name in files if name.endswith(".py")} == {"configuration_s3bert.py", "modeling_s3bert.py"}
    assert files >= expected | {"log.jsonl", "losses.png", "arguments.yaml", "all_results.json"}
    assert not [path for path in pretrained.rglob("*") if path.suffix in (".bin", ".pt", ".pth", ".pkl")]

    results = json.loads((pretrained / "all_results.json").read_text())
    assert results["train_steps"] == 4
    assert results["train_tokens"] == 4 * 4 * 32
    card = ModelCard.load(pretrained / "README.md")
    (entry,) = [result for result in card.data.eval_results if result.metric_type == "loss"]
    assert entry.metric_value == results["eval_loss"]
    assert "An S3BERT encoder of" in card.text
    assert (pretrained / "losses.png").read_bytes().startswith(b"\x89PNG")

    tokenizer = AutoTokenizer.from_pretrained(pretrained)
    assert tokenizer.model_max_length == 32
    guesses = pipeline("fill-mask", model=str(pretrained))("the [MASK] was there .")
    assert len(guesses) == 5
    assert torch.isfinite(AutoModel.from_pretrained(pretrained)(**tokenizer("a word", return_tensors="pt"))[0]).all()


def test_a_dry_run_of_publishing_lists_what_others_need_and_nothing_else(pretrained, capsys):
    assert push_to_hub.main(["--folder", str(pretrained), "--dry_run"]) is None
    listed = {line.split()[-1] for line in capsys.readouterr().out.splitlines()[:-1]}
    assert listed >= {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "README.md",
        "configuration_s3bert.py",
        "modeling_s3bert.py",
    }
    assert not [name for name in listed if name.startswith(("checkpoint-", "corpus", "."))]
    assert list(pretrained.glob("checkpoint-*")), "there was something to leave out"


def test_a_card_of_its_own_is_published_with_the_pictures_it_shows(pretrained, tmp_path, capsys):
    folder, report = tmp_path / "run", tmp_path / "report"
    shutil.copytree(pretrained, folder)
    (report / "plots").mkdir(parents=True)
    metadata = "---\nlicense: mit\nlibrary_name: transformers\npipeline_tag: fill-mask\n---\n"
    (report / "card.md").write_text(metadata + "# A card\n\n![GLUE](plots/glue.png)\n")
    words = ["--folder", str(folder), "--card", str(report / "card.md"), "--dry_run"]
    with pytest.raises(ValueError, match=r"card.md shows .*glue.png, which is not there"):
        push_to_hub.main(words)
    (report / "plots" / "glue.png").write_bytes(b"\x89PNG")
    push_to_hub.main(words)
    assert "card.md would become README.md" in capsys.readouterr().out
    assert (folder / "README.md").read_bytes() == (pretrained / "README.md").read_bytes(), "a dry run writes nothing"
    adopt_card(report / "card.md", folder)
    assert (folder / "glue.png").read_bytes() == b"\x89PNG"
    assert (folder / "README.md").read_text().endswith("# A card\n\n![GLUE](glue.png)\n")


def test_a_repository_in_half_precision_is_half_as_large_and_computes_in_float32(pretrained, tmp_path, capsys):
    target = tmp_path / "checkpoints" / "small"
    words = ["--folder", str(pretrained), "--output_dir", str(target), "--half_precision"]
    assert push_to_hub.main(words) is None
    assert f"Next: s3bert push --folder {target} --dry_run" in capsys.readouterr().out
    push_to_hub.main(["--folder", str(target), "--dry_run"])
    assert {path.name for path in target.parent.iterdir()} == {"small"}
    sizes = [(folder / "model.safetensors").stat().st_size for folder in (pretrained, target)]
    assert sizes[1] < 0.55 * sizes[0]
    first, second = (AutoModelForMaskedLM.from_pretrained(folder).eval() for folder in (pretrained, target))
    assert second.dtype == torch.float32
    tokens = torch.randint(5, 100, (2, 20))
    with torch.no_grad():
        torch.testing.assert_close(second(tokens).logits, first(tokens).logits, atol=2e-3, rtol=0)
    with pytest.raises(ValueError, match=r"small is there already: remove it, or name another"):
        push_to_hub.main(words)
    with pytest.raises(ValueError, match="half_precision is for a copy: give --output_dir"):
        push_to_hub.main(["--folder", str(pretrained), "--half_precision"])
    with pytest.raises(ValueError, match="output_dir is in place of the Hub: leave out hub_model_id"):
        push_to_hub.main(["--folder", str(pretrained), "--output_dir", "x", "--hub_model_id", "me/x"])


def test_weights_beyond_half_precision_are_named_and_nothing_is_left(pretrained, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(pretrained, folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["cls.predictions.bias"][0] = 1e5
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(
        ValueError, match=r"cls.predictions.bias reaches 100000, and float16 ends at 65504: leave out --half"
    ):
        push_to_hub.main(["--folder", str(folder), "--output_dir", str(tmp_path / "half"), "--half_precision"])
    assert {path.name for path in tmp_path.iterdir()} == {"run"}


def cut(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-9])


def overflow(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["cls.predictions.bias"][0] = float("inf")
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def replace(name: str, old: str, new: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text((folder / name).read_text().replace(old, new))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "config.json").unlink(), "has no config.json: name the folder of a finished run"),
        (lambda folder: (folder / "model.safetensors").unlink(), "No model.safetensors: the run is not finished"),
        (cut, "model.safetensors is damaged"),
        (overflow, "holds numbers that are not finite"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "No tokenizer"),
        (
            lambda folder: (folder / "modeling_s3bert.py").unlink(),
            "No modeling_s3bert.py, which the configuration's auto_map",
        ),
        (lambda folder: (folder / "README.md").unlink(), "No README.md"),
        (replace("README.md", "library_name", "library"), "the metadata has no library_name"),
        (replace("README.md", "---\n", "---\n{"), "its metadata cannot be read"),
        (lambda folder: (folder / "training_args.bin").write_bytes(b"x"), "training_args.bin: pickled files"),
    ],
)
def test_a_folder_that_others_could_not_use_is_not_published(damage, message, pretrained, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(pretrained, folder)
    damage(folder)
    with pytest.raises(ValueError, match=message):
        push_to_hub.main(["--folder", str(folder), "--dry_run"])


def test_saved_arguments_repeat_a_run_to_the_last_digit(pretrained, tmp_path):
    again = pretrain_mlm.main(["--config", str(pretrained / "arguments.yaml"), "--output_dir", str(tmp_path)])
    first = json.loads((pretrained / "all_results.json").read_text())
    assert again.metrics["loss"] == first["eval_loss"]


@pytest.mark.parametrize("model_type", ["bert", "fnet", "ponet"])
def test_any_masked_lm_model_trains_on_the_same_batches(model_type, corpus, pretrained, tmp_path):
    size = SIZE.replace("num_attention_heads=2,", "") if model_type == "fnet" else SIZE
    result = pretrain(corpus, tmp_path / model_type, "--model_type", model_type, size=size)
    assert result.step == 4
    assert (tmp_path / model_type / "losses.png").stat().st_size > 10_000


def test_a_recipes_model_is_found_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("configs/model/s3bert-tiny.json", "model/s3bert-tiny"):
        assert read_config(MASKED, ModelArguments(config_name=name)).model_type == "s3bert"


def test_pretraining_goes_on_from_a_finished_model_and_says_what_to_do_next(corpus, pretrained, tmp_path, capsys):
    result = pretrain(corpus, tmp_path, "--model_name_or_path", str(pretrained), size="")
    first = json.loads((pretrained / "all_results.json").read_text())["eval_loss"]
    assert result.metrics["loss"] < first
    told = capsys.readouterr().out
    assert f"losses.png are in {tmp_path}. Next:" in told
    assert f"s3bert push --folder {tmp_path} --dry_run" in told


def test_a_streamed_corpus_trains_and_resumes_to_the_last_digit(tmp_path):
    words = [
        "--vocab_size",
        "800",
        "--max_seq_length",
        "32",
        "--streaming",
        "--model_type",
        "s3bert",
        "--save_total_limit",
        "0",
    ]
    text = ROOT / "README.md"
    source = tmp_path / "train.txt"
    source.write_text("\n".join(line for line in text.read_text().splitlines() if line.strip()) * 3)
    words += ["--max_eval_samples", "40"]
    whole = pretrain(source, tmp_path / "run", *words)
    last = all_checkpoints(tmp_path / "run")[-1]
    for file in last.iterdir():
        file.unlink()
    last.rmdir()
    resumed = pretrain(source, tmp_path / "run", *words, "--resume_from_checkpoint", "latest")
    assert [record.get("loss") for record in resumed.history] == [record.get("loss") for record in whole.history]


def test_a_run_learns_from_a_teacher_of_the_corpus_alone_and_keeps_it(pretrained, corpus, tmp_path):
    words, run = ["--model_type", "s3bert", "--teacher_name_or_path", str(pretrained)], tmp_path / "run"
    taught = pretrain(corpus, run, *words)
    assert taught.history[0]["loss"] != json.loads((pretrained / "log.jsonl").read_text().splitlines()[0])["loss"]
    other = tmp_path / "other"
    shutil.copytree(pretrained, other)
    model = AutoModelForMaskedLM.from_pretrained(other)
    model.cls.predictions.bias.data += 1
    model.save_pretrained(other)
    words[-1] = str(other)
    with pytest.raises(ValueError, match=r"teacher: '\w+\.\.\.\w+' -> "):
        pretrain(corpus, run, *words, "--resume_from_checkpoint", "latest")
    text = (other / "tokenizer.json").read_text()
    (other / "tokenizer.json").write_text(text.replace('"[MASK]"', '"[BLANK]"'))
    with pytest.raises(ValueError, match="has another vocabulary than the corpus"):
        pretrain(corpus, tmp_path / "second", *words)
    (other / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match=r"The teacher .* has no tokenizer, .*: put the one"):
        pretrain(corpus, tmp_path / "second", *words)
    AutoModel.from_pretrained(other).save_pretrained(other)
    with pytest.raises(
        ValueError,
        match=r"has no weights of their shape for cls.predictions.bias.* stay random: name a checkpoint with its head",
    ):
        pretrain(corpus, tmp_path / "second", *words)


def test_going_on_replaces_nothing_and_adds_no_random_layers(pretrained, corpus, tmp_path):
    start = ["--model_name_or_path", str(pretrained)]
    with pytest.raises(ValueError, match="is the checkpoint to start from, which would be replaced"):
        pretrain(corpus, pretrained, *start, size="")
    (tmp_path / "README.md").write_text("my project")
    with pytest.raises(ValueError, match=r"has README.md, which no such run wrote"):
        pretrain(corpus, tmp_path, *start, size="")
    assert (tmp_path / "README.md").read_text() == "my project"
    for overrides, message in (
        ("num_hidden_layers=3", r"num_hidden_layers=3 has no weights of their shape for s3bert.encoder.layer.1"),
        ("intermediate_size=48", "intermediate_size=48 has no weights of their shape for s3bert.encoder.layer.0.inter"),
        ("hidden_act=foo", "hidden_act = 'foo'"),
    ):
        with pytest.raises((ValueError, StrictDataclassError), match=message):
            pretrain(corpus, tmp_path / "run", *start, size=overrides)


@pytest.mark.parametrize("model_type", ["s3bert", "bert"])
def test_a_checkpoint_of_fewer_positions_is_lengthened_to_the_corpus_and_teaches_nothing_longer(
    model_type, pretrained, corpus, tmp_path, caplog
):
    short, long = tmp_path / "short", tmp_path / "long"
    words = [
        "--vocab_size",
        "800",
        "--max_seq_length",
        "16",
        "--max_train_samples",
        "60",
        "--tokenizer_name",
        str(corpus),
    ]
    prepare_corpus.main(["--dataset_name", "synthetic", *words, "--output_dir", str(tmp_path / "blocks")])
    size = SIZE.replace("max_position_embeddings=32", "max_position_embeddings=16")
    pretrain(tmp_path / "blocks", short, "--model_type", model_type, size=size)
    with pytest.raises(ValueError, match=r"blocks of 32 tokens, the teacher .* takes up to 16: pretrain it further"):
        pretrain(corpus, long, "--model_type", "s3bert", "--teacher_name_or_path", str(short))
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("config_name: model/s3bert-small\n")
    with caplog.at_level("INFO", "s3bert"):
        pretrain(corpus, long, "--config", str(recipe), "--model_name_or_path", str(short), size="")
    assert f"{short}, pretrained with 16 positions, is lengthened in place to 32" in caplog.text
    model = AutoModelForMaskedLM.from_pretrained(long)
    assert model.config.max_position_embeddings == 32
    assert model(input_ids=torch.full((1, 32), 5)).logits.shape == (1, 32, model.config.vocab_size)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model_type", "s3brt"], "Unknown --model_type s3brt. Did you mean s3bert"),
        ([], "Give exactly one of --model_name_or_path, --config_name, --model_type"),
        (["--model_type", "s3bert", "--config_overrides", "num_segmentz=4"], "has no 'num_segmentz'. Did you mean num_segments"),
        (["--model_type", "s3bert", "--config_overrides", "max_position_embeddings=16"], "blocks of 32 tokens, the model takes up to 16"),
        (["--model_type", "roberta", "--config_overrides", "max_position_embeddings=32"], "blocks of 32 tokens, the model takes up to 30: set --config_overrides max_position_embeddings=34"),
        (["--model_type", "s3bert", "--config_overrides", "num_segments=7"], "num_segments = 7"),
        (["--model_type", "bert", "--mlm_probability", "15"], "mlm_probability = 15"),
        (["--model_type", "bert", "--short_seq_length", "5"], "short_seq_length = 5: blocks of 32 tokens are cut into 2, 4, 8, 16"),
        (["--model_type", "bert", "--short_seq_length", "8", "--short_seq_share", "2"], "short_seq_share = 2.0: must be above 0 and at most 1"),
    ],
)  # fmt: skip
def test_mistakes_are_named_before_anything_is_trained(words, message, corpus, tmp_path):
    # huggingface_hub's strict configurations raise errors of their own
    with pytest.raises((ValueError, StrictDataclassError), match=re.escape(message)):
        pretrain(corpus, tmp_path / "run", *words, size="")
    assert not (tmp_path / "run" / "log.jsonl").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--teacher_name_or_path", "runs/bret"], "The configuration runs/bret"),
        (["--distillation_weight", "0.9"], "distillation_weight: of a teacher; give --teacher_name_or_path too"),
        (["--streaming"], "A streamed corpus has no known length: give --max_train_steps"),
        (["--short_seq_length", "16"], "short_seq_share is a share of the optimiser steps: give --max_train_steps"),
    ],
)
def test_mistakes_do_not_wait_for_the_corpus(words, message, tmp_path):
    run = tmp_path / "run"
    with pytest.raises((ValueError, OSError), match=re.escape(message)):
        pretrain_mlm.main(["--model_type", "s3bert", "--dataset_name", "synthetic", "--output_dir", str(run), *words])
    assert not (run / "corpus").exists()


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(print))  # a function, which weights are not


def not_finite(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    save_file(
        {name: tensor * torch.nan for name, tensor in weights.items()}, folder / "model.safetensors", {"format": "pt"}
    )


def of_other_shapes(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights = {name: tensor[..., :3].clone() for name, tensor in weights.items()}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def vocabulary(text: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "tokenizer.json").unlink()
        (folder / "vocab.txt").write_text(text)

    return write


def written(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content)


GLUE = (
    "glue --model_name_or_path run --task_name synthetic_acceptability --dataset_name synthetic --max_train_samples 8 "
)
GLUE += "--max_eval_samples 8 --max_seq_length 16 --output_dir out"
TEXT = "prepare-corpus --dataset_name synthetic --max_train_samples 20 --tokenizer_name run --output_dir out"
NEW = f"pretrain --dataset_name corpus --output_dir out --max_train_steps 1 --config_overrides {SIZE},"
RESUMED = f"pretrain --config run/arguments.yaml --config_overrides {SIZE} --dataset_name corpus --output_dir run "
RESUMED += "--resume_from_checkpoint latest"
MEASURED = "approximation --model_name_or_path run --dataset_name corpus --output_dir out"
ADDED = "report --results_dir out/new --title New --add run"
UNREADABLE = "cannot be read \\({}.*it is damaged, or something else. Make or fetch it again, or name another one"


@pytest.mark.parametrize(
    ("words", "damage", "message"),
    [
        (GLUE, cut, "The checkpoint run " + UNREADABLE.format("SafetensorError")),
        (GLUE, pickled, "The checkpoint run " + UNREADABLE.format("UnpicklingError")),
        (GLUE, of_other_shapes, "The checkpoint run " + UNREADABLE.format("RuntimeError")),
        (GLUE, not_finite, "run is damaged, or of a training that diverged: .* holds numbers that are not finite"),
        (GLUE, written("config.json", b"null"), "The checkpoint run " + UNREADABLE.format("TypeError")),
        (GLUE, written("tokenizer.json", b"{}"), "The tokenizer run " + UNREADABLE.format("KeyError")),
        (GLUE, vocabulary(""), "run has no vocabulary: give --tokenizer_name"),
        (TEXT, vocabulary(""), "tokenizer 'run' " + UNREADABLE.format("Exception: WordPiece error")),
        (TEXT, written("tokenizer.json", b"\xff"), "tokenizer 'run' " + UNREADABLE.format("UnicodeDecodeError")),
        (f"{NEW}hidden_act=nope --model_type bert", None, "hidden_act = 'nope': give one of .*gelu, "),
        (f"{NEW}hidden_act=nope --model_type s3bert", None, "hidden_act = 'nope': give one of .*gelu, "),
        (f"{NEW}pad_token_id=999999 --model_type bert", None, r"pad_token_id = 999999: give None or .* 0\.\.799"),
        (f"{NEW}pad_token_id=999999 --model_type s3bert", None, r"pad_token_id = 999999: give None or .* 0\.\.799"),
        (f"{NEW}num_hidden_layers=-1 --model_type bert", None, "num_hidden_layers = -1: must be at least 1"),
        (f"{NEW}model_type=bert --model_type s3bert", None, "model_type = 'bert': .* --model_type, .* choose"),
        (f"{NEW}dtype=nope --model_type bert", None, "dtype = 'nope': .*--mixed_precision"),
        (f"{NEW}num_segments=4 --model_name_or_path run", cut, "run " + UNREADABLE.format("SafetensorError")),
        (f"{NEW}hidden_act=relu --model_name_or_path run", not_finite, "run is damaged, or of a training that diverged"),
        (RESUMED, written("log.jsonl", b"[1,2]"), r"log\.jsonl, line 1: .*\[1,2\].* no record of a run. .* remove it"),
        (RESUMED, written("log.jsonl", bytes(range(256))), r"log\.jsonl, line 1: .* is no record of a run"),
        (RESUMED, written("log.jsonl", b'{"step": 1}\n{"st\n{"step": 2}\n'), r"log\.jsonl, line 2: .* is no record of a run"),
        ("report --results_dir run", written("results.json", b"{}"), r"results\.json " + UNREADABLE.format("KeyError: 'title'")),
        ("report --results_dir run", written("results.json", b"[]"), r"results\.json " + UNREADABLE.format("TypeError")),
        ("report --results_dir run", written("results.json", b"\xff"), r"results\.json " + UNREADABLE.format("UnicodeDecodeError")),
        ("benchmark --output_dir run", written("results.json", b"[]"), r"results\.json " + UNREADABLE.format("TypeError")),
        ("push --folder run", written("config.json", b"[]"), r"config\.json " + UNREADABLE.format("AttributeError")),
        (f"{MEASURED} --lengths 16 --sizes 4", cut, "The model run " + UNREADABLE.format("SafetensorError")),
        (ADDED, written("all_results.json", b'{"eval_loss": 1}'), r"run/all_results\.json is of a run that no report tells of: add those .* s3bert report --help names\.$"),
        (ADDED, written("log.jsonl", b""), r"run/log\.jsonl holds no evaluation: bring the run's log back"),
        (ADDED, written("all_results.json", b"[]"), r"all_results\.json " + UNREADABLE.format("AttributeError")),
        (ADDED, written("all_results.json", b'{"variants": {"s3": 5}}'), r"all_results\.json " + UNREADABLE.format("TypeError")),
        (ADDED, written("arguments.yaml", b"a: &b 1\nc: *b\n"), r"arguments\.yaml: not YAML .*an alias"),
        (ADDED, written("arguments.yaml", b"- 1\n"), r"arguments\.yaml must hold `name: value` lines, not list"),
    ],
)  # fmt: skip
def test_damaged_files_and_values_that_cannot_be_end_in_one_paragraph(
    words, damage, message, corpus, pretrained, tmp_path, monkeypatch
):
    shutil.copytree(pretrained, tmp_path / "run")
    (tmp_path / "corpus").symlink_to(corpus)
    monkeypatch.chdir(tmp_path)
    if damage is not None:
        damage(tmp_path / "run")
    name, *words = words.split()
    with pytest.raises(SystemExit) as ended, errors_in_a_line(name):
        _module(name).main(words)
    assert re.match(f"error: .*{message}", ended.value.code, re.DOTALL), ended.value.code
    assert "\n\n" not in ended.value.code
    assert not (tmp_path / "out" / "all_results.json").exists()


@pytest.mark.parametrize("name", ["ACCELERATE_DYNAMO_BACKEND", "ACCELERATE_MIXED_PRECISION"])
def test_what_accelerate_does_not_know_is_named(name, corpus, tmp_path, monkeypatch):
    monkeypatch.setenv(name, "nope")
    with pytest.raises(ValueError, match=f"{name} = nope: there is no, .* or leave it out"):
        pretrain(corpus, tmp_path, "--model_type", "s3bert")


def test_a_finished_run_without_its_log_is_told_again(pretrained, corpus, tmp_path):
    run = shutil.copytree(pretrained, tmp_path / "run")
    before = (run / "all_results.json").read_text()
    (run / "log.jsonl").unlink()
    pretrain(corpus, run, "--model_type", "s3bert", "--resume_from_checkpoint", "latest")
    assert json.loads((run / "all_results.json").read_text()) == json.loads(before)


def test_a_tokenizer_larger_than_the_checkpoints_vocabulary_is_refused(pretrained, tmp_path):
    words = ["--vocab_size", "900", "--max_seq_length", "32", "--max_train_samples", "60"]
    prepare_corpus.main(["--dataset_name", "synthetic", *words, "--output_dir", str(tmp_path / "corpus")])
    with pytest.raises(
        ValueError, match=r"tokenizer has \d+ entries, .* knows \d+: prepare the corpus with --tokenizer_name"
    ):
        pretrain(tmp_path / "corpus", tmp_path / "run", "--model_name_or_path", str(pretrained), size="")


def test_a_run_that_goes_on_keeps_the_vocabulary_of_its_checkpoint(pretrained, tmp_path):
    text = ["--dataset_name", "synthetic", "--vocab_size", "700", "--max_seq_length", "32", "--max_train_samples", "60"]
    start = ["--model_name_or_path", str(pretrained), *SHORT]
    for _ in range(2):  # the second time its corpus is found again
        pretrain_mlm.main([*text, *start, "--output_dir", str(tmp_path / "run"), "--resume_from_checkpoint", "latest"])
    own, kept = (AutoTokenizer.from_pretrained(folder).get_vocab() for folder in (pretrained, tmp_path / "run"))
    assert kept == own

    other = tmp_path / "other"
    prepare_corpus.main([*text, "--output_dir", str(other)])
    assert len(AutoTokenizer.from_pretrained(other)) < len(own), "by its size alone it would be taken"
    with pytest.raises(
        ValueError, match=r"another vocabulary than the corpus, .*: prepare the corpus with --tokenizer"
    ):
        pretrain(other, tmp_path / "second", "--model_name_or_path", str(pretrained), size="")
    with pytest.raises(
        ValueError, match=r"another vocabulary than the tokenizer .*other, .*: leave --tokenizer_name out"
    ):
        pretrain_mlm.main([*text, *start, "--tokenizer_name", str(other), "--output_dir", str(tmp_path / "second")])
    assert not (tmp_path / "second").exists(), "no text was read"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "Give exactly one of --model_name_or_path"),
        (["--model_type", "s3bert", "--config_overrides", "num_segmentz=4"], "has no 'num_segmentz'"),
        (["--model_type", "gpt2"], "--model_type gpt2 is of type gpt2, which is no masked language model: name a model that"),
        (["--model_type", "t5"], "--model_type t5 is an encoder-decoder (t5); give an encoder, as BERT's or S3BERT's."),
    ],
)  # fmt: skip
def test_a_model_that_cannot_be_is_refused_before_the_text_is_read(words, message, tmp_path):
    with pytest.raises(ValueError, match=re.escape(message)):
        pretrain_mlm.main(["--dataset_name", "synthetic", "--output_dir", str(tmp_path / "run"), *SHORT, *words])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("file", sorted((ROOT / "configs").rglob("*.json")), ids=lambda file: file.stem)
def test_every_published_model_configuration_builds(file):
    with torch.device("meta"):
        config = AutoConfig.from_pretrained(file)
        auto_class = AutoModelForCausalLM if config.model_type == "fmmformer" else AutoModelForMaskedLM
        model = auto_class.from_config(config)
    assert model.num_parameters() > 10_000


@pytest.mark.parametrize(("name", "kind"), [("ddp", "MULTI_GPU"), ("fsdp2", "FSDP")])
def test_accelerate_takes_its_published_configurations(name, kind):
    config = load_config_from_file(str(ROOT / "configs" / "accelerate" / f"{name}.yaml"))
    assert (config.distributed_type.value, config.mixed_precision) == (kind, "bf16")
    assert config.fsdp_config.get("fsdp_version") == (2 if kind == "FSDP" else None)


@pytest.mark.parametrize(
    "file",
    # Those of benchmark are read in test_benchmark.py, those of accelerate above.
    sorted(f for f in (ROOT / "configs").rglob("*.yaml") if f.parent.name not in ("accelerate", "benchmark")),
    ids=lambda file: f"{file.parent.name}-{file.stem}",
)
def test_every_published_recipe_is_understood_by_its_script(file, tmp_path, monkeypatch):
    """A wrong name or value ends with status 2; what is missing here, a model or a folder, is added."""
    monkeypatch.chdir(ROOT)
    if file.parent.name == "table3":
        classes, words = (reproduce_table3.Budget,), []
    elif file.name.startswith("copy"):
        classes, words = (run_copy_task.CopyArguments, run_glue.GridConfig), []
    elif file.stem.startswith("compare"):
        classes, words = (compare_clm.CompareArguments, compare_clm.CausalCorpusArguments, run_glue.GridConfig), []
    elif file.parent.name == "lra":
        classes = (run_lra.LraArguments, run_glue.GridConfig)
        words = [] if "task_name:" in file.read_text() else ["--task_name", "image"]
    elif file.parent.name == "forecasting":
        classes = (run_forecasting.ForecastArguments, run_glue.GridConfig)
        words = [] if "dataset_name:" in file.read_text() else ["--dataset_name", "ili"]
    elif "glue" in str(file):
        classes = (run_glue.ModelArguments, run_glue.GlueArguments, run_glue.GridConfig)
        words = ["--model_name_or_path", "x", "--task_name", "cola"]
    else:
        module, own = (
            (pretrain_clm, ["CausalCorpusArguments", "ClmArguments"])
            if file.parent.name == "clm"
            else (pretrain_mlm, ["CorpusArguments", "MlmArguments"])
        )
        classes = [getattr(module, name) for name in ("ModelArguments", *own, "HubArguments", "TrainingConfig")]
        words = []
    parsed = parse_arguments(classes, ["--config", str(file), *words, "--output_dir", str(tmp_path)])
    values = {name: value for instance in parsed for name, value in vars(instance).items()}
    for name, given in yaml.safe_load(file.read_text()).items():
        # 5e-5 without a point is text in YAML.
        rates = [float(rate) for rate in given] if isinstance(given, list) and "rate" in name else given
        assert values[name] == (float(given) if name == "learning_rate" and not isinstance(given, list) else rates)
