"""Every command that goes on from a checkpoint: with the settings it was trained with, or with others knowingly."""

import contextlib
import html
import itertools
import json
import logging
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from huggingface_hub import ModelCard
from torch.optim.optimizer import register_optimizer_step_pre_hook
from transformers import BertTokenizer

from s3bert import S3BertConfig, S3BertForMaskedLM
from s3bert.commands import forecast, prepare_corpus, pretrain_mlm, run_copy_task, run_forecasting, run_glue, run_lra
from s3bert.data.synthetic import synthetic_acceptability
from s3bert.tasks.listops import write_listops
from s3bert.training.checkpoints import STATE, all_checkpoints, written_aside


ROOT = Path(__file__).parents[2]
SIZE = "hidden_size=32,num_hidden_layers=1,num_attention_heads=2,intermediate_size=32,max_position_embeddings=32"
SHORT = ["--per_device_train_batch_size", "4", "--max_eval_blocks", "8", "--logging_steps", "1", "--report_to", "none"]
SHORT += ["--max_train_steps", "8", "--save_steps", "2", "--learning_rate", "1e-3", "--model_type", "s3bert"]


def prepare(folder: Path, rows: int) -> Path:
    words = ["--vocab_size", "800", "--max_seq_length", "32", "--max_train_samples", str(rows)]
    prepare_corpus.main(["--dataset_name", "synthetic", *words, "--output_dir", str(folder)])
    return folder


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    return prepare(tmp_path_factory.mktemp("corpus") / "synthetic", 60)


def pretrain(corpus: Path, folder: Path, *words: str, changes: str = "", resume: bool = True):
    going_on = ["--resume_from_checkpoint", "latest"] if resume else []
    overrides = ["--config_overrides", SIZE + changes]
    places = ["--dataset_name", str(corpus), "--output_dir", str(folder)]
    return pretrain_mlm.main([*places, *SHORT, *going_on, *words, *overrides])


@contextlib.contextmanager
def cut_after(steps: int) -> Iterator[None]:
    """Within it the training that begins is interrupted after so many steps."""
    taken = itertools.count()

    def interrupt(*_) -> None:
        if next(taken) == steps:
            raise KeyboardInterrupt

    with register_optimizer_step_pre_hook(interrupt), pytest.raises(KeyboardInterrupt):
        yield


@pytest.fixture(scope="module")
def cut_run(corpus, tmp_path_factory) -> Path:
    """A pretraining of eight steps, cut off after four."""
    folder = tmp_path_factory.mktemp("runs") / "cut"
    with cut_after(4):
        pretrain(corpus, folder, resume=False)
    assert [path.name for path in all_checkpoints(folder)] == ["checkpoint-2", "checkpoint-4"]
    return folder


@pytest.fixture
def run(cut_run, tmp_path) -> Path:
    """The same in a folder of the test's own."""
    return shutil.copytree(cut_run, tmp_path / "run")


def state(checkpoint: Path) -> dict:
    return json.loads((checkpoint / STATE).read_text())


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


OTHERWISE = [
    (["--learning_rate", "3e-4"], "", "learning_rate: 0.001 -> 0.0003"),
    (["--weight_decay", "0.1"], "", "weight_decay: 0.01 -> 0.1"),
    (["--lr_scheduler_type", "cosine"], "", "lr_scheduler_type: 'linear' -> 'cosine'"),
    (["--num_warmup_steps", "0.5"], "", "num_warmup_steps: 0 -> 0.5"),
    (["--lr_decay_steps", "20"], "", "lr_decay_steps: None -> 20"),
    (["--mlm_probability", "0.3"], "", "mlm_probability: 0.15 -> 0.3"),
    (["--short_seq_length", "8"], "", "short_seq_length: None -> [8]"),
    (["--per_device_train_batch_size", "2"], "", "global_batch_size: 4 -> 2"),
    (["--per_device_eval_batch_size", "2"], "", "per_device_eval_batch_size: 8 -> 2"),
    (["--max_train_steps", "6"], "", "max_train_steps: 8 -> 6"),
    (["--seed", "7"], "", "seed: 42 -> 7"),
    ([], ",num_segments=4", "num_segments: 8 -> 4"),
    ([], ",hidden_act=relu", "hidden_act: 'gelu' -> 'relu'"),
    ([], ",hidden_dropout_prob=0.5", "hidden_dropout_prob: 0.1 -> 0.5"),
]


@pytest.mark.parametrize(("words", "changes", "told"), OTHERWISE, ids=[told.split(":")[0] for *_, told in OTHERWISE])
def test_another_setting_is_refused_with_both_values_and_the_remedy(words, changes, told, run, corpus):
    before = contents(run)
    message = f"checkpoint-4 was trained with other settings than this call's, {told}. Give the same, start afresh"
    with pytest.raises(ValueError, match=f"{re.escape(message)}.*--allow_changed {told.split(':')[0]}$"):
        pretrain(corpus, run, *words, changes=changes)
    assert contents(run) == before, "arguments.yaml too tells of the run that is there"


def test_all_differences_are_told_in_one_line(run, corpus):
    with pytest.raises(ValueError, match=r"learning_rate: .*; num_segments: .*; weight_decay: ") as error:
        pretrain(corpus, run, "--learning_rate", "1e-5", "--weight_decay", "0", changes=",num_segments=4")
    assert str(error.value).endswith("--allow_changed learning_rate num_segments weight_decay")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("words", "changes", "message"),
    [
        ([], ",landmark_seed=3", "landmark_seed: 0 -> 3: landmark_seed can only be chosen when a training begins"),
        ([], ",initializer_range=0.1", "initializer_range can only be chosen when a training begins"),
        ([], ",hidden_size=64", "hidden_size: 32 -> 64: its weights do not fit (size mismatch for "),
        ([], ",num_hidden_layers=2", "num_hidden_layers: 1 -> 2: its weights do not fit (Missing key(s)"),
        (["--max_train_steps", "3"], "", "max_train_steps: 8 -> 3: it has 4 steps, max_train_steps is 3"),
        (["--allow_changed", "learning_rat"], "", "allow_changed = learning_rat: there is no such setting. Did you mean learning_rate"),
    ],
)  # fmt: skip
def test_what_cannot_be_changed_says_so_whatever_is_allowed(words, changes, message, run, corpus):
    allowed = words if "--allow_changed" in words else [*words, "--allow_changed", message.split(":")[0]]
    names = [name.partition("=")[0] for name in changes.split(",")[1:]]
    if names:
        allowed = ["--allow_changed", *names]
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        pretrain(corpus, run, *allowed, changes=changes.replace(SIZE, ""))
    assert "\n" not in str(error.value)


def test_allowed_changes_are_applied_to_optimiser_and_schedule_and_recorded(run, corpus, caplog):
    caplog.set_level(logging.WARNING)
    words = [
        "--learning_rate",
        "1e-2",
        "--weight_decay",
        "0.2",
        "--adam_beta1",
        "0.8",
        "--lr_scheduler_type",
        "constant",
    ]
    names = ["learning_rate", "weight_decay", "adam_beta1", "lr_scheduler_type"]
    result = pretrain(corpus, run, *words, "--allow_changed", *names)
    rates = {record["step"]: record["learning_rate"] for record in result.history if "learning_rate" in record}
    assert rates[4] == pytest.approx(1e-3 * 4 / 8), "the schedule is linear before"
    assert [rates[step] for step in (5, 6, 7, 8)] == [1e-2] * 4
    assert "Step 5 has a learning rate of 0.01, not 0.0005" in caplog.text
    last = state(all_checkpoints(run)[-1])
    decayed, exempt = last["optimizer"]["param_groups"]
    assert (decayed["weight_decay"], exempt["weight_decay"]) == (0.2, 0.0)
    assert decayed["betas"] == [0.8, 0.999]
    told = {
        "adam_beta1": [0.9, 0.8],
        "learning_rate": [0.001, 0.01],
        "lr_scheduler_type": ["linear", "constant"],
        "weight_decay": [0.01, 0.2],
    }
    assert last["changes"] == [{"step": 4, "settings": told}]
    assert last["settings"]["learning_rate"] == 0.01
    card = ModelCard.load(run / "README.md").text
    assert "| changed after step 4 | adam_beta1: 0.9 -> 0.8; learning_rate: 0.001 -> 0.01; " in html.unescape(card)
    assert json.loads((run / "all_results.json").read_text())["changes"] == last["changes"]

    again = pretrain(corpus, run, *words)
    assert again.changes == result.changes, "the checkpoint has the new settings now, and knows of the change"
    with pytest.raises(
        ValueError, match="checkpoint-8 is the end of its run: there is no step left to take with another seed"
    ):
        pretrain(corpus, run, *words, "--seed", "1", "--allow_changed", "seed")


def test_an_allowed_change_of_the_model_and_the_masking_is_computed_with(run, corpus):
    words = ["--mlm_probability", "0.9", "--allow_changed", "mlm_probability", "num_segments"]
    changed = pretrain(corpus, run, *words, changes=",num_segments=4")
    assert json.loads((run / "config.json").read_text())["num_segments"] == 4
    changes = {"mlm_probability": [0.15, 0.9], "num_segments": [8, 4]}
    assert changed.changes == [{"step": 4, "settings": changes}]


def test_more_steps_are_always_allowed_and_the_schedule_is_that_of_the_longer_run(run, corpus, tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    longer = pretrain(corpus, run, "--max_train_steps", "12")
    assert longer.step == 12
    assert longer.changes == [{"step": 4, "settings": {"max_train_steps": [8, 12]}}]
    assert "From step 5 on, other than before: max_train_steps: 8 -> 12." in caplog.text
    whole = pretrain(corpus, tmp_path / "whole", "--max_train_steps", "12")
    rates = [[r["learning_rate"] for r in log.history if r["step"] > 4 and "loss" in r] for log in (longer, whole)]
    assert rates[0] == rates[1]


def test_a_run_that_goes_on_as_it_was_is_the_one_that_never_stopped(run, corpus, tmp_path):
    """What is free changes no number: records, checkpoints, places, what prepares batches, how many a process takes."""
    moved = shutil.copytree(corpus, tmp_path / "moved")
    free = ["--save_steps", "3", "--save_minutes", "0", "--save_total_limit", "0", "--eval_steps", "4"]
    free += ["--dataloader_num_workers", "1", "--ddp_find_unused_parameters", "--overwrite_cache"]
    result = pretrain(moved, run, *free)
    assert result.changes == []
    whole = pretrain(corpus, tmp_path / "whole", resume=False)
    losses = [[r["loss"] for r in log.history if "loss" in r] for log in (result, whole)]
    assert losses[0] == losses[1]
    assert (run / "model.safetensors").read_bytes() == (tmp_path / "whole/model.safetensors").read_bytes()


def test_micro_batches_may_be_smaller_where_the_global_batch_is_the_same(run, corpus):
    result = pretrain(corpus, run, "--per_device_train_batch_size", "2", "--global_batch_size", "4")
    assert (result.step, result.changes) == (8, [])


def test_another_corpus_is_refused_wherever_it_lies(run, tmp_path):
    with pytest.raises(ValueError, match=r"corpus: '[0-9a-f]{16}' -> '[0-9a-f]{16}'"):
        pretrain(prepare(tmp_path / "other", 50), run)


def test_other_weights_to_begin_with_are_refused(corpus, tmp_path):
    tokenizer = BertTokenizer.from_pretrained(corpus)
    for seed in range(2):
        fields = dict(part.split("=") for part in SIZE.split(","))
        config = S3BertConfig(vocab_size=len(tokenizer), **{name: int(value) for name, value in fields.items()})
        S3BertForMaskedLM(config).save_pretrained(tmp_path / f"start-{seed}")
    words = ["--dataset_name", str(corpus), "--output_dir", str(tmp_path / "run"), *SHORT[:-2]]
    start = [*words, "--model_name_or_path", str(tmp_path / "start-0")]
    with cut_after(3):
        pretrain_mlm.main(start)
    other = [*words, "--model_name_or_path", str(tmp_path / "start-1"), "--resume_from_checkpoint", "latest"]
    with pytest.raises(ValueError, match=r"weights: '.* -> '.*: weights can only be chosen when a training begins"):
        pretrain_mlm.main([*other, "--allow_changed", "weights"])
    (tmp_path / "start-0").rename(tmp_path / "moved")
    moved = [*words, "--model_name_or_path", str(tmp_path / "moved"), "--resume_from_checkpoint", "latest"]
    assert pretrain_mlm.main(moved).step == 8


def test_a_checkpoint_of_an_earlier_version_goes_on_with_a_warning(run, corpus, caplog):
    caplog.set_level(logging.WARNING)
    for checkpoint in all_checkpoints(run):
        older = state(checkpoint)
        recorded = older.pop("settings")
        older.pop("changes")
        older["identity"] = {name: recorded[name] for name in ("seed", "global_batch_size")}
        files = {path.name: path.read_bytes() for path in checkpoint.iterdir() if path.name != "manifest.json"}
        with written_aside(checkpoint) as aside:
            for name, content in (files | {STATE: json.dumps(older).encode()}).items():
                (aside / name).write_bytes(content)
    with pytest.raises(ValueError, match="seed: 42 -> 7"):
        pretrain(corpus, run, "--seed", "7")
    with pytest.raises(
        ValueError, match="checkpoint-4 was trained with other settings than this call's: its weights do not fit"
    ):
        pretrain(corpus, run, changes=",hidden_size=64")
    assert pretrain(corpus, run, "--weight_decay", "0.1").step == 8
    assert "checkpoint-4 does not record activation_checkpointing, adam_beta1, " in caplog.text


def copy_task(folder: Path) -> list[str]:
    words = ["--length", "12", "--num_symbols", "4", "--max_train_steps", "6", "--mixer", "linear", "--seed", "1"]
    return [*words, "--num_eval_batches", "2", "--output_dir", str(folder / "run")]


def arena(folder: Path) -> list[str]:
    write_listops(folder / "listops", {"train": 64, "val": 20, "test": 20}, min_length=5, max_length=60)
    words = ["--config", str(ROOT / "configs/lra/smoke.yaml"), "--data_dir", str(folder), "--task_name", "listops"]
    return [*words, "--max_train_steps", "6", "--seed", "1", "--output_dir", str(folder / "run")]


def glue(folder: Path) -> list[str]:
    words = sorted({word for row in synthetic_acceptability("train")["sentence"] for word in row.split()})
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    BertTokenizer(vocab={name: i for i, name in enumerate(names)}).save_pretrained(folder / "start")
    sizes = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 40}
    config = S3BertConfig(vocab_size=len(names), max_position_embeddings=16, num_segments=4, **sizes)
    S3BertForMaskedLM(config).save_pretrained(folder / "start")
    places = ["--model_name_or_path", str(folder / "start"), "--output_dir", str(folder / "run")]
    task = ["--task_name", "synthetic_acceptability", "--max_train_steps", "6", "--seed", "1"]
    return ["--config", str(ROOT / "configs/glue/smoke.yaml"), *places, *task]


def series(folder: Path) -> None:
    turns = 2 * np.pi * np.arange(150) / 12
    frame = pd.DataFrame({"OT": np.sin(turns)}, index=pd.date_range("2024-01-01", periods=150, freq="h", name="date"))
    frame.to_csv(folder / "national_illness.csv")


def forecasting(folder: Path) -> list[str]:
    series(folder)
    words = ["--dataset_name", "ili", "--data_dir", str(folder), "--horizons", "6", "--context_length", "24"]
    model = ["--model", "s3:hidden_size=16,num_hidden_layers=1", "--num_train_epochs", "9"]
    return [*words, *model, "--output_dir", str(folder / "run")]


@pytest.mark.parametrize(
    ("command", "words", "other", "told"),
    [
        (run_copy_task, copy_task, ["--num_eval_batches", "3"], "num_eval_batches: 2 -> 3"),
        (run_lra, arena, ["--pad_to_max_length"], "pad_to_max_length: False -> True"),
        (run_glue, glue, ["--group_by_length", "false"], "group_by_length: True -> False"),
        (run_forecasting, forecasting, ["--max_grad_norm", "0.5"], "max_grad_norm: 1.0 -> 0.5"),
    ],
)
def test_a_trial_goes_on_with_its_settings_or_knowingly_with_others(command, words, other, told, tmp_path):
    words = [*words(tmp_path), "--save_steps", "1", "--weight_decay", "0.01"]
    with cut_after(3):
        command.main(words)
    (name,) = {told.partition(":")[0]}
    others = f"{re.escape(told)}; weight_decay: 0.01 -> 0.1"
    with pytest.raises(ValueError, match=f"checkpoint-3 was trained with other settings than this call's, {others}"):
        command.main([*words, *other, "--weight_decay", "0.1"])
    command.main([*words, *other, "--weight_decay", "0.1", "--allow_changed", name, "weight_decay"])
    (results,) = (tmp_path / "run").rglob("trials/*/results.json")
    (change,) = json.loads(results.read_text())["changes"]
    assert change["step"] == 3
    assert set(change["settings"]) == {name, "weight_decay"}
    with pytest.raises(
        ValueError, match=f"was finished with other settings than this call's, {name}: .*remove that folder"
    ):
        command.main([*words, "--weight_decay", "0.1", "--allow_changed", name])


def test_a_forecaster_of_ones_own_series_goes_on_with_its_settings(tmp_path):
    series(tmp_path)
    places = ["--csv_file", str(tmp_path / "national_illness.csv"), "--output_dir", str(tmp_path / "run")]
    words = [*places, "--prediction_length", "6", "--hidden_size", "8", "--num_train_epochs", "3"]
    with cut_after(5):
        forecast.main(words)
    with pytest.raises(ValueError, match=r"learning_rate: 0\.001 -> 0\.01"):
        forecast.main([*words, "--learning_rate", "1e-2"])
    forecast.main([*words, "--learning_rate", "1e-2", "--allow_changed", "learning_rate"])
    (change, *_) = state(all_checkpoints(tmp_path / "run")[-1])["changes"]
    assert change["settings"] == {"learning_rate": [0.001, 0.01]}
