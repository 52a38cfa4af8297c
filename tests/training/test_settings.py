"""What a run keeps when it goes on: every field of every command that is not free, and what a changed one does to a run."""

import importlib
import json
import shutil
from dataclasses import fields, replace
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
import torch
from accelerate.state import AcceleratorState
from tiny_pretraining import SIZES, exact, pretrain
from transformers import BertConfig, set_seed

from s3bert import S3BertConfig, S3BertForMaskedLM
from s3bert.training.arguments import TrainingConfig
from s3bert.training.checkpoints import all_checkpoints
from s3bert.training.settings import (
    agreed_changes,
    differences,
    in_words,
    model_settings,
    settings_of,
    training_settings,
)


# What may be given otherwise to a run that goes on. A field that is not here is a setting, a new one too.
FREE = {
    "training.arguments.TrainingConfig": "output_dir per_device_train_batch_size per_device_eval_batch_size "
    "gradient_accumulation_steps global_batch_size max_train_steps num_train_epochs logging_steps eval_steps save_steps "
    "save_minutes save_total_limit resume_from_checkpoint allow_changed dataloader_num_workers ddp_find_unused_parameters report_to",
    "data.arguments.CorpusArguments": "dataset_name dataset_config_name train_file validation_file validation_split_percentage "
    "tokenizer_name vocab_size vocabulary max_seq_length add_special_tokens max_train_samples max_eval_samples "
    "preprocessing_num_workers overwrite_cache",
    "experiments.arguments.ModelArguments": "model_name_or_path config_name model_type config_overrides",
    "experiments.arguments.HubArguments": "push_to_hub hub_model_id",
    "commands.pretrain_mlm.MlmArguments": "teacher_name_or_path",
    "commands.pretrain_clm.ClmArguments": "",
    "commands.run_glue.ModelArguments": "model_name_or_path",
    "commands.run_glue.GlueArguments": "task_name dataset_name max_train_samples max_eval_samples do_predict push_to_hub "
    "hub_model_id",
    "commands.run_finetuning.DocumentArguments": "train_file validation_file test_file dataset_name text_column text_pair_column label_column "
    "validation_split_percentage max_train_samples max_eval_samples",
    "commands.run_lra.LraArguments": "data_dir mixer max_seq_length image_size max_train_samples max_eval_samples ablate vary values",
    "commands.run_copy_task.CopyArguments": "mixer",
    "commands.run_forecasting.ForecastArguments": "data_dir model horizons context_length max_train_samples",
    "commands.forecast.ForecastArguments": "csv_file output_dir model_name_or_path date_column date_format columns num_train_epochs "
    "allow_changed",
    "experiments.budget.Budget": "output_dir models untrained jobs pack max_pack_megabytes",
}
FREE["data.arguments.CausalCorpusArguments"] = FREE["data.arguments.CorpusArguments"]
FREE["training.arguments.GridConfig"] = FREE["training.arguments.TrainingConfig"]


@pytest.mark.parametrize("name", FREE)
def test_a_field_is_a_setting_unless_it_is_known_to_be_free(name):
    module, _, kind = name.rpartition(".")
    argument_class = getattr(importlib.import_module(f"s3bert.{module}"), kind)
    assert [entry.name for entry in fields(argument_class) if entry.metadata["free"]] == FREE[name].split()


OTHER_WORDS = {"lr_scheduler_type": "cosine", "mixed_precision": "bf16", "metric_for_best_model": "accuracy"}


def another_value(config: TrainingConfig, name: str):
    """One that the field may have, beside the value that it has."""
    value, kinds = getattr(config, name), get_type_hints(TrainingConfig)[name]
    if kinds is bool:
        return not value
    if name in OTHER_WORDS:
        return OTHER_WORDS[name]
    allowed = next(entry.metadata["range"] for entry in fields(config) if entry.name == name)
    tried = (value or 0) / 2, (value or 0) + 1, 0.5, 40
    kind = int if int in (kinds, *get_args(kinds)) else float
    return next(kind(number) for number in tried if number in allowed and kind(number) not in (value, 0))


@pytest.mark.parametrize("name", [entry.name for entry in fields(TrainingConfig) if not entry.metadata["free"]])
def test_every_setting_of_a_training_is_compared_and_told(name):
    config = TrainingConfig("x")
    other = replace(config, **{name: another_value(config, name)})
    before, now = (training_settings(each) | {"max_train_steps": 9} for each in (config, other))
    told = differences("x", before, now)
    assert told == {name: [getattr(config, name), getattr(other, name)]}
    with pytest.raises(ValueError, match=f"x was trained with other settings.*{name}: .* -> .*--allow_changed {name}$"):
        agreed_changes("x", 3, before, now)
    assert agreed_changes("x", 3, before, now, [name]) == told
    assert agreed_changes("x", 3, now, now) == {}


@pytest.fixture(scope="module")
def half(tmp_path_factory) -> Path:
    """The first half of a run of twelve steps."""
    folder = tmp_path_factory.mktemp("half")
    pretrain(folder, max_train_steps=6, lr_decay_steps=12)
    return folder


LONGER = {"max_train_steps": 12, "lr_decay_steps": 12, "resume_from_checkpoint": "latest"}
VALUES = {"eval_steps": 4, "save_steps": 5, "save_minutes": 0.0, "save_total_limit": 0, "dataloader_num_workers": 1}
VALUES |= {"num_train_epochs": 9.0, "per_device_eval_batch_size": 3, "ddp_find_unused_parameters": True}
VALUES |= {"logging_steps": 6, "allow_changed": ["seed"], "gradient_accumulation_steps": 1}


def test_what_is_free_changes_no_number(half, tmp_path):
    whole = pretrain(tmp_path / "whole", max_train_steps=12)
    given = {"output_dir", "max_train_steps", "resume_from_checkpoint", "report_to"}  # below, or by `pretrain`
    batch = {"per_device_train_batch_size", "global_batch_size"}  # of which dropout and batch norm are drawn
    assert set(FREE["training.arguments.TrainingConfig"].split()) == given | batch | VALUES.keys()
    for name, value in VALUES.items():
        folder = shutil.copytree(half, tmp_path / name)
        result = pretrain(folder, **LONGER | {name: value})
        assert result.changes == [{"step": 6, "settings": {"max_train_steps": [6, 12]}}]
        assert result.metrics == whole.metrics, name
        assert (folder / "model.safetensors").read_bytes() == (tmp_path / "whole/model.safetensors").read_bytes(), name


def test_a_run_within_a_longer_schedule_is_its_beginning_to_the_last_digit(half, tmp_path, caplog):
    folder = shutil.copytree(half, tmp_path / "run")
    result = pretrain(folder, **LONGER)
    assert exact(result.history)[-1] == exact(pretrain(tmp_path / "whole", max_train_steps=12).history)[-1]
    assert "has a learning rate of" not in caplog.text


def test_a_metric_that_is_changed_judges_the_evaluations_to_come(tmp_path):
    judged = {"load_best_model_at_end": True, "eval_steps": 2, "greater_is_better": True}
    first = pretrain(tmp_path, max_train_steps=4, lr_decay_steps=8, **judged)
    allowed = {"resume_from_checkpoint": "latest", "lr_decay_steps": 8, "allow_changed": ["greater_is_better"]}
    with pytest.raises(ValueError, match="no step left to take with another greater_is_better"):
        pretrain(tmp_path, max_train_steps=4, **judged | allowed | {"greater_is_better": False})
    second = pretrain(tmp_path, max_train_steps=8, **judged | allowed | {"greater_is_better": False})
    losses = {record["step"]: record["eval_loss"] for record in second.history if "eval_loss" in record}
    assert first.best_metrics["loss"] == max(losses[2], losses[4])
    assert second.metrics["loss"] == min(losses[6], losses[8])


def test_the_end_with_the_best_weights_can_be_left_out_when_all_is_trained(tmp_path):
    worst = {"load_best_model_at_end": True, "eval_steps": 2, "greater_is_better": True, "max_train_steps": 8}
    assert (
        pretrain(tmp_path, **worst).metrics["loss"]
        > (
            pretrain(
                tmp_path,
                **worst | {"load_best_model_at_end": False, "allow_changed": ["load_best_model_at_end"]},
                resume_from_checkpoint="latest",
            ).metrics["loss"]
        )
    )


def test_a_precision_that_accelerate_decides_is_a_setting(half, tmp_path, monkeypatch):
    folder = shutil.copytree(half, tmp_path / "run")
    assert (
        json.loads((all_checkpoints(folder)[-1] / "training_state.json").read_text())["settings"]["mixed_precision"]
        == "no"
    )
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    AcceleratorState._reset_state(reset_partial_state=True)
    try:
        with pytest.raises(ValueError, match="mixed_precision: 'no' -> 'bf16'"):
            pretrain(folder, **LONGER)
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)


def test_fewer_steps_than_planned_are_a_change_and_fewer_than_trained_an_error():
    before = {"max_train_steps": 12}
    with pytest.raises(ValueError, match=r"max_train_steps: 12 -> 8\. Give the same.*--allow_changed max_train_steps$"):
        agreed_changes("x", 6, before, {"max_train_steps": 8})
    assert agreed_changes("x", 6, before, {"max_train_steps": 8}, ["max_train_steps"]) == {"max_train_steps": [12, 8]}
    with pytest.raises(ValueError, match="max_train_steps: 12 -> 5: it has 6 steps, max_train_steps is 5"):
        agreed_changes("x", 6, before, {"max_train_steps": 5}, ["max_train_steps"])
    with pytest.raises(ValueError, match="x was trained with other settings than this call's: it has 6 steps"):
        agreed_changes("x", 6, {}, {"max_train_steps": 5})
    assert agreed_changes("x", 6, before, {"max_train_steps": 20}) == {"max_train_steps": [12, 20]}


def test_a_models_fields_are_settings_whatever_the_files_of_a_checkpoint_say_of_it(tmp_path):
    config = S3BertConfig(**SIZES)
    before = {"model": model_settings(config)}
    S3BertForMaskedLM(config).save_pretrained(tmp_path)  # which writes into the configuration
    loaded = S3BertConfig.from_pretrained(tmp_path)
    assert loaded.architectures
    assert differences("x", before, {"model": model_settings(loaded)}) == {}
    assert differences("x", before, {"model": model_settings(S3BertConfig(**SIZES | {"num_segments": 2}))}) == {
        "num_segments": [4, 2]
    }
    labels = [{"model": model_settings(BertConfig(num_labels=number))} for number in (2, 3)]
    assert set(differences("x", *labels)) == {"id2label", "label2id"}, "also what is a default of all models"


def test_what_a_record_lacks_is_told_and_taken_for_the_same(caplog):
    assert differences("some/trial", {"seed": 1, "batch_size": 8}, {"seed": 1, "crc32": 5}) == {}
    assert "some/trial does not record crc32: whether they are the same" in caplog.text


def test_long_values_are_shortened():
    assert len(in_words({"channel_means": [[0.5] * 1000, None], "corpus": ["a" * 1000, "b" * 1000]})) < 300


OWN_FIELDS = {
    "num_segments": 2, "smoother_dropout_prob": 0.5, "smoother_norm": "layer", "landmark_sampling": "resample", "landmark_seed": 1,
    "landmark_length": 12, "use_fourier_convolution": False, "use_convolution_stem": False, "use_row_attention": False,
    "use_column_attention": False, "row_norm_init": 0.0, "stem": "depthwise", "stem_activation": "elu", "filter_init": "uniform",
    "num_row_samples": 4, "num_column_samples": 4, "hidden_dropout_prob": 0.5, "attention_probs_dropout_prob": 0.5,
    "hidden_act": "relu", "layer_norm_eps": 1e-2, "initializer_range": 0.5, "hidden_size": 32, "num_hidden_layers": 2,
    "intermediate_size": 16, "num_attention_heads": 4,
}  # fmt: skip


OF_THE_START = {
    "landmark_seed",
    "landmark_length",
    "row_norm_init",
    "filter_init",
    "initializer_range",
    "num_attention_heads",
}


@pytest.mark.parametrize("name", OWN_FIELDS)
def test_every_field_of_the_model_is_computed_with_once_changed_or_cannot_be_changed(name):
    def shapes(model: S3BertForMaskedLM) -> dict[str, torch.Size]:
        return {key: tensor.shape for key, tensor in model.state_dict().items()}

    def loss(model: S3BertForMaskedLM) -> float:
        set_seed(0)
        ids = torch.arange(4 * 24).reshape(4, 24) % 90 + 5
        return model.train()(input_ids=ids, labels=ids).loss.item()

    configs = [S3BertConfig(**SIZES | changes) for changes in ({}, {name: OWN_FIELDS[name]})]
    records = [{"model": model_settings(config), "max_train_steps": 9} for config in configs]
    model, changed = map(S3BertForMaskedLM, configs)
    if shapes(model) != shapes(changed):
        return  # the loop finds that the weights do not fit
    if name in OF_THE_START:
        with pytest.raises(ValueError, match=f"{name} can only be chosen when a training begins"):
            agreed_changes("x", 3, *records, [name])
    else:
        assert agreed_changes("x", 3, *records, [name]) == {name: [getattr(config, name) for config in configs]}
        changed.load_state_dict(model.state_dict())
        assert loss(changed) != loss(model)


def test_a_setting_is_no_fact_of_this_machine():
    config = TrainingConfig("x")
    assert "x" not in training_settings(config).values()
    assert settings_of(config) == settings_of(replace(config, output_dir="y", save_steps=3))
