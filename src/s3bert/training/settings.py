"""The settings of a run, which decide its numbers: its checkpoints hold them, and a run that goes on keeps them.

Settings are a dictionary of JSON values by name: each field of a command's arguments that is not `free`, what no field tells (the
checksum of a corpus, the steps in all), and under "model" the model's configuration, whose fields are settings by their own names.
"""

import json
import logging
from collections.abc import Collection, Mapping
from dataclasses import fields
from reprlib import Repr
from typing import Any

from transformers import PreTrainedConfig

from s3bert.arguments import Arguments, close_match

from .arguments import TrainingConfig


logger = logging.getLogger(__name__)

# Written into a configuration for the files of a checkpoint; saving changes them in memory.
_OF_FILES = {"transformers_version", "architectures", "auto_map", "dtype", "_name_or_path"}
# What decides how a training begins: first weights, and landmarks, which are drawn once for the channels of a head.
_OF_THE_START = {
    "weights",
    "from_finetuned",
    "self_pretrain_epochs",
    "initializer_range",
    "filter_init",
    "row_norm_init",
}
_OF_THE_START |= {"landmark_seed", "landmark_length", "num_attention_heads"}
_STEPS = "max_train_steps"
_shortened = Repr()
_shortened.maxstring = _shortened.maxother = 60

Changes = dict[str, list[Any]]  # by name: the checkpoint's value, the new one


def settings_of(*arguments: Arguments) -> dict[str, Any]:
    """The fields of a command's arguments that are settings."""
    return {
        entry.name: getattr(instance, entry.name)
        for instance in arguments
        for entry in fields(instance)  # type: ignore[arg-type]  # of subclasses, which are dataclasses
        if not entry.metadata.get("free")
    }


def training_settings(config: TrainingConfig) -> dict[str, Any]:
    """Those of a training: its arguments, and the batch that follows from several of them."""
    settings = settings_of(config) | {"global_batch_size": config.sequences_per_step}
    # Evaluations do not change what is learnt, but they may decide where it stops and which weights are kept.
    if config.load_best_model_at_end or config.early_stopping_patience:
        settings["eval_steps"] = config.eval_steps
    return settings


def model_settings(config: PreTrainedConfig) -> dict[str, Any]:
    """Those of a model: what differs from the defaults of all models, whatever Transformers' version."""
    return {name: value for name, value in config.to_diff_dict().items() if name not in _OF_FILES}


def differences(of: object, before: Mapping[str, Any], now: Mapping[str, Any]) -> Changes:
    """The settings that two calls have otherwise; a warning says what the record of the first, `of` a folder, does not hold, as those
    of earlier versions do not hold all."""
    old, new = _by_name(before), _by_name(now)
    if unknown := sorted(new.keys() - old.keys()):
        logger.warning(
            "%s does not record %s: whether they are the same as this call's is not known.",
            of,
            ", ".join(unknown[:8]) + f" and {len(unknown) - 8} more" * (len(unknown) > 8),
        )
    return {name: [old[name], new[name]] for name in sorted(new.keys() & old.keys()) if old[name] != new[name]}


def _by_name(settings: Mapping[str, Any]) -> dict[str, Any]:
    """With the model's fields beside the others, values as JSON gives them back."""
    model = settings.get("model")
    defaults = {} if model is None else PreTrainedConfig().to_dict()
    others = {name: value for name, value in settings.items() if name != "model"}
    flat = others | {name: value for name, value in (defaults | (model or {})).items() if name not in _OF_FILES}
    return json.loads(json.dumps(flat))


def in_words(changes: Changes) -> str:
    """`name: checkpoint's value -> new value`, one after the other."""
    return "; ".join(
        f"{name}: {_shortened.repr(old)} -> {_shortened.repr(new)}" for name, (old, new) in changes.items()
    )


def changes_in_words(changes: list[dict[str, Any]]) -> dict[str, str]:
    """Of a training's result, as facts of a model card: after which step what was changed."""
    return {f"changed after step {change['step']}": in_words(change["settings"]) for change in changes}


def agreed_changes(
    checkpoint: object,
    step: int,
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    allowed: Collection[str] = (),
    misfit: str | None = None,
) -> Changes:
    """What a run does otherwise from a checkpoint on: what is `allowed`, and more steps.

    Args:
        step: the checkpoint's. before, now: settings of the checkpoint and of this call. misfit: why the checkpoint's weights do not
            fit this call's model, where they do not.

    Raises:
        ValueError: a setting is otherwise and not allowed, or cannot be changed in a run; fewer steps than are trained; weights
            that do not fit; there is no setting of an allowed name.
    """
    known = _by_name(now)
    if unknown := [name for name in allowed if name not in known]:
        raise ValueError(f"allow_changed = {unknown[0]}: there is no such setting.{close_match(unknown[0], known)}")
    changed = differences(checkpoint, before, now)
    afresh = "start afresh in another --output_dir"
    told = ", ".join(
        filter(None, [f"{checkpoint} was trained with other settings than this call's", in_words(changed)])
    )
    if misfit:
        raise ValueError(f"{told}: its weights do not fit ({misfit}). Give the same model, or {afresh}.")
    if now[_STEPS] < step:
        raise ValueError(f"{told}: it has {step} steps, {_STEPS} is {now[_STEPS]}. Give as many at least, or {afresh}.")
    if fixed := [name for name in changed if name in _OF_THE_START]:
        raise ValueError(
            f"{told}: {', '.join(fixed)} can only be chosen when a training begins. Give the same, or {afresh}."
        )
    longer = now[_STEPS] > changed.get(_STEPS, [now[_STEPS]])[0]
    if refused := [name for name in changed if name not in allowed and not (name == _STEPS and longer)]:
        raise ValueError(
            f"{told}. Give the same, {afresh}, or go on with the new ones: --allow_changed {' '.join(refused)}"
        )
    return changed
