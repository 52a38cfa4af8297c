"""Masked-LM pretraining: the model that a corpus asks for, and what a finished run publishes of itself."""

import json
import logging
from pathlib import Path

from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForMaskedLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.activations import ACT2FN

import s3bert  # noqa: F401  (registers S3BERT and PoNet with the auto classes)
from s3bert.arguments import close_match, find_recipe, override_config
from s3bert.benchmark.results import machine
from s3bert.data.corpus import Corpus
from s3bert.data.sources import parse_sources
from s3bert.data.streaming import StreamingCorpus
from s3bert.files import as_markdown, reading, write_text
from s3bert.models.configuration_checks import CheckedConfig
from s3bert.models.sparse_baselines import SPARSE_BASELINES
from s3bert.reports.losses import plot_losses
from s3bert.reports.model_card import Metric, write_model_card
from s3bert.tasks.mlm import ShortSequences
from s3bert.training.arguments import TrainingConfig
from s3bert.training.checkpoints import check_finite
from s3bert.training.loop import TrainingResult
from s3bert.training.settings import changes_in_words


logger = logging.getLogger(__name__)

_DISPLAYED = {"s3bert": "An S3BERT", "bert": "A BERT", "fnet": "An FNet", "ponet": "A PoNet"}


def _file_or_name(config_name: str) -> Path | str:
    """The recipe of that name where no such file or folder is there; else the name, of a folder or on the Hub."""
    try:
        return config_name if Path(config_name).exists() else find_recipe(config_name, ".json")
    except FileNotFoundError:
        return config_name


def build_model(
    tokenizer: PreTrainedTokenizerBase,
    block_size: int,
    model_name_or_path: str | None = None,
    config_name: str | None = None,
    model_type: str | None = None,
    config_overrides: str | None = None,
    trust_remote_code: bool = False,
) -> PreTrainedModel:
    """The model to train, from one of three sources, checked against the corpus it will read.

    Args:
        tokenizer, block_size: the corpus's. model_name_or_path: a checkpoint. config_name: a configuration's file, recipe,
            folder or Hub id. model_type: a type with its default configuration. config_overrides: `name=value,...`.

    Raises:
        ValueError: not exactly one source of a model; an override that the configuration does not have, or a value that cannot be;
            a checkpoint that is damaged, or whose vocabulary or length does not fit the corpus.
    """
    sources = {"model_name_or_path": model_name_or_path, "config_name": config_name, "model_type": model_type}
    given = [f"{name} = {source}" for name, source in sources.items() if source is not None]
    if len(given) != 1:
        raise ValueError(
            f"Give exactly one of {', '.join('--' + name for name in sources)}; there is {' and '.join(given) or 'none'}. "
            "What a --config file names is overridden by the same argument only."
        )
    remote = {"trust_remote_code": trust_remote_code}
    if model_type is not None:
        try:
            config = AutoConfig.for_model(model_type)
        except ValueError as error:
            known = close_match(model_type, CONFIG_MAPPING.keys())
            raise ValueError(f"Unknown --model_type {model_type}.{known}") from error
    else:
        source = model_name_or_path or _file_or_name(config_name)
        with reading(f"The configuration {source}"):
            config = AutoConfig.from_pretrained(source, **remote)
    if config_overrides:
        override_config(config, config_overrides)

    vocab_size = len(tokenizer)
    if model_name_or_path is None:
        for name in ("cls_token_id", "sep_token_id"):  # PoNet's segments, for one, lie between them
            if hasattr(config, name):
                setattr(config, name, getattr(tokenizer, name))
        if config.vocab_size != vocab_size:
            logger.info("The model gets the tokenizer's vocabulary: %d entries, not %d.", vocab_size, config.vocab_size)
            config.vocab_size = vocab_size
        if block_size > config.max_position_embeddings:
            raise ValueError(
                f"The corpus has blocks of {block_size} tokens, the model takes up to {config.max_position_embeddings}: "
                f"set --config_overrides max_position_embeddings={block_size}, or prepare the corpus with a shorter "
                "--max_seq_length."
            )
        _check_values(config)
        if config.model_type in SPARSE_BASELINES:
            return SPARSE_BASELINES[config.model_type](config)
        return AutoModelForMaskedLM.from_config(config, **remote)
    auto_class = SPARSE_BASELINES.get(config.model_type, AutoModelForMaskedLM)
    with reading(f"The checkpoint {model_name_or_path}"):
        model = auto_class.from_pretrained(model_name_or_path, config=config, dtype="float32", **remote)
    check_finite(model, model_name_or_path)
    if config.vocab_size < vocab_size:
        raise ValueError(
            f"The corpus's tokenizer has {vocab_size} entries, {model_name_or_path} knows {config.vocab_size}: "
            f"prepare the corpus with --tokenizer_name {model_name_or_path}."
        )
    if block_size > config.max_position_embeddings:
        raise ValueError(
            f"The corpus has blocks of {block_size} tokens, {model_name_or_path} takes up to "
            f"{config.max_position_embeddings}: lengthen it with resize_position_embeddings({block_size}) and save it, or "
            "prepare the corpus with a shorter --max_seq_length."
        )
    return model


def _check_values(config: PreTrainedConfig) -> None:
    """What our own configurations check themselves, of one of Transformers' own too.

    Raises:
        ValueError: a count below 1, a padding token outside the vocabulary, a scale or an activation that is none.
    """
    counts = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "type_vocab_size")
    CheckedConfig.check_counts(config, *(name for name in counts if isinstance(getattr(config, name, None), int)))
    CheckedConfig.validate_padding(config)
    CheckedConfig.validate_scales(config)
    activation = getattr(config, "hidden_act", None)
    if isinstance(activation, str) and activation not in ACT2FN:
        raise ValueError(f"hidden_act = {activation!r}: give one of {', '.join(sorted(ACT2FN))}.")


def short_sequences(length: int | None, share: float, steps: int | None, block_size: int) -> ShortSequences | None:
    """The phase on short sequences, a share of the steps; None without a length.

    Raises:
        ValueError: the length does not divide a block's; a share of an unknown number of steps.
    """
    if length is None:
        return None
    if steps is None:
        raise ValueError("short_seq_share is a share of the optimiser steps: give --max_train_steps.")
    return ShortSequences(length, round(share * steps), block_size)


def corpus_name(corpus: Corpus | StreamingCorpus) -> str:
    """The sources, for people."""
    sources = dict.fromkeys(record["source"] for record in corpus.manifest["files"])
    return " + ".join(part.title for source in sources for part in parse_sources(source))


def publish(
    result: TrainingResult,
    model: PreTrainedModel,
    corpus: Corpus,
    training: TrainingConfig,
    flops: float,
    device: str,
    command: str,
) -> None:
    """Writes what the run measured: `all_results.json`, the loss curve, and the model card.

    Args:
        flops: of training on a token, as `measure.training_flops` counts. device: what trained, "cuda:0".
    """
    folder = Path(training.output_dir)
    parameters = model.num_parameters()
    unigram = corpus.manifest["unigram_entropy"]["validation"]
    results = {f"eval_{name}": value for name, value in result.metrics.items() if name != "perplexity"}
    results |= {
        "perplexity": result.metrics.get("perplexity"),
        "train_loss": result.train_loss,
        "train_runtime": round(result.seconds, 1),
        "train_steps": result.step,
        "train_tokens": result.tokens,
        "corpus": corpus_name(corpus),
        "unigram_entropy": unigram,
        "parameters": parameters,
        "train_flops_per_token": round(flops),
        "machine": machine(device),
        "changes": result.changes,
    }
    results["train_tokens_per_second"] = round(results["train_tokens"] / max(result.seconds, 1e-9), 1)
    plot_losses(folder / "losses.png", {model.config.model_type: result.history}, unigram, title=folder.name)
    metrics = [
        Metric("fill-mask", "validation", name, result.metrics[name], corpus_name(corpus))
        for name in ("loss", "perplexity", "accuracy")
        if name in result.metrics
    ]
    facts = {
        "parameters": f"{parameters:,}",
        "tokens seen": f"{results['train_tokens']:,}",
        "optimiser steps": f"{result.step:,} of {training.sequences_per_step} sequences of {corpus.block_size} tokens",
        "training time": f"{result.seconds / 3600:.2f} hours",
        "tokens per second": f"{results['train_tokens_per_second']:,.0f}",
        "peak learning rate": training.learning_rate,
        "seed": training.seed,
        "unigram entropy of the held-out tokens": f"{unigram:.4f} nats",
        **changes_in_words(result.changes),
        **results["machine"],
    }
    summary = (
        f"{_DISPLAYED.get(model.config.model_type, f'A {model.config.model_type}')} encoder of {parameters:,} parameters, pretrained by masked language modelling on "
        f"{as_markdown(corpus_name(corpus))}. Losses are in nats, over masked tokens of held-out text."
    )
    write_model_card(
        folder / "README.md",
        folder.name,
        model.config.model_type,
        summary,
        metrics,
        facts,
        command,
        plot="losses.png",
    )
    # Last, for who waits for it: all the rest is there when it is.
    write_text(folder / "all_results.json", json.dumps(results, indent=2) + "\n")
