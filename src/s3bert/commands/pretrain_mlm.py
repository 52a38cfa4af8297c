"""Pretrains a masked language model: S3BERT, PoNet, BERT, FNet, or any other that Transformers has, from scratch or continued.

    accelerate launch scripts/pretrain_mlm.py --config configs/pretrain/small.yaml --output_dir runs/small
    accelerate launch scripts/pretrain_mlm.py --config configs/pretrain/small.yaml --output_dir runs/small \\
        --resume_from_checkpoint latest

The output folder is a complete Hub repository: weights, config, tokenizer, modelling code, and a model card with the
run's own figures; beside them `log.jsonl`, `losses.png`, TensorBoard logs, `arguments.yaml` to repeat the run and
`all_results.json`. Several processes, FSDP and mixed precision come from accelerate's configuration.
"""

import json
import logging
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from accelerate.utils import set_seed
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForMaskedLM, PreTrainedModel, PreTrainedTokenizerBase
from transformers.hf_argparser import HfArg

import s3bert  # noqa: F401  (registers S3BERT and PoNet with the auto classes)
from s3bert.arguments import close_match, override_config, parse_arguments, run_as_script, save_arguments
from s3bert.benchmark.results import machine
from s3bert.data.corpus import Corpus, CorpusArguments, prepare_corpus
from s3bert.data.sources import parse_sources
from s3bert.data.streaming import StreamingCorpus
from s3bert.files import write_text
from s3bert.models.sparse_peers import SPARSE_PEERS
from s3bert.reports.losses import plot_losses
from s3bert.reports.model_card import Metric, write_model_card
from s3bert.reports.repository import push_folder
from s3bert.tasks.mlm import Masking, MlmBatches, MlmEvaluation, ShortSequences, StreamedMlmBatches
from s3bert.training.flops import training_flops
from s3bert.training.loop import TrainingConfig, TrainingResult, process_state, train


logger = logging.getLogger(__name__)


@dataclass
class ModelArguments:
    """Which model to train; exactly one of the first three."""

    model_name_or_path: str | None = HfArg(help="checkpoint to continue from: a folder or a Hub id", default=None)
    config_name: str | None = HfArg(
        help="configuration to start from scratch: a JSON file, a folder or a Hub id", default=None
    )
    model_type: str | None = HfArg(
        help="model type with its default configuration, from scratch: s3bert, bert, ...", default=None
    )
    config_overrides: str | None = HfArg(
        help="changes to the configuration, as `hidden_size=128,num_segments=4`", default=None
    )
    trust_remote_code: bool = HfArg(help="run modelling code that comes with a checkpoint", default=False)


@dataclass
class MlmArguments:
    """The objective, its evaluation, and publishing."""

    mlm_probability: float = HfArg(help="share of the tokens to predict", default=0.15)
    short_seq_length: int | None = HfArg(
        help="cut the blocks of the first steps into sequences of so many tokens: small models learn far sooner from them",
        default=None,
    )
    short_seq_share: float = HfArg(help="share of the steps that do so", default=0.3)
    max_eval_blocks: int | None = HfArg(help="held-out blocks to evaluate on; all of them by default", default=None)
    push_to_hub: bool = HfArg(help="upload the finished folder", default=False)
    hub_model_id: str | None = HfArg(help="repository to upload to; the output folder's name by default", default=None)


def build_model(arguments: ModelArguments, tokenizer: PreTrainedTokenizerBase, block_size: int) -> PreTrainedModel:
    """The model to train, checked against the corpus it will read.

    Raises:
        ValueError: not exactly one source of a model; an override that the configuration does not have; a checkpoint
            whose vocabulary or length does not fit the corpus.
    """
    sources = ("model_name_or_path", "config_name", "model_type")
    given = [f"{name} = {getattr(arguments, name)}" for name in sources if getattr(arguments, name) is not None]
    if len(given) != 1:
        raise ValueError(
            f"Give exactly one of {', '.join('--' + name for name in sources)}; there is {' and '.join(given) or 'none'}. "
            "What a --config file names is overridden by the same argument only."
        )
    remote = {"trust_remote_code": arguments.trust_remote_code}
    if arguments.model_type is not None:
        try:
            config = AutoConfig.for_model(arguments.model_type)
        except ValueError as error:
            known = close_match(arguments.model_type, CONFIG_MAPPING.keys())
            raise ValueError(f"Unknown --model_type {arguments.model_type}.{known}") from error
    else:
        config = AutoConfig.from_pretrained(arguments.model_name_or_path or arguments.config_name, **remote)
    if arguments.config_overrides:
        override_config(config, arguments.config_overrides)

    vocab_size = len(tokenizer)
    if arguments.model_name_or_path is None:
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
        if config.model_type in SPARSE_PEERS:
            return SPARSE_PEERS[config.model_type](config)
        return AutoModelForMaskedLM.from_config(config, **remote)
    auto_class = SPARSE_PEERS.get(config.model_type, AutoModelForMaskedLM)
    model = auto_class.from_pretrained(arguments.model_name_or_path, config=config, dtype="float32", **remote)
    if config.vocab_size < vocab_size:
        raise ValueError(
            f"The corpus's tokenizer has {vocab_size} entries, {arguments.model_name_or_path} knows {config.vocab_size}: "
            f"prepare the corpus with --tokenizer_name {arguments.model_name_or_path}."
        )
    if block_size > config.max_position_embeddings:
        raise ValueError(
            f"The corpus has blocks of {block_size} tokens, {arguments.model_name_or_path} takes up to "
            f"{config.max_position_embeddings}: lengthen it with resize_position_embeddings({block_size}) and save it, or "
            "prepare the corpus with a shorter --max_seq_length."
        )
    return model


def short_sequences(mlm: MlmArguments, steps: int | None, block_size: int) -> ShortSequences | None:
    """The phase on short sequences, if one is asked for.

    Raises:
        ValueError: the length does not divide a block's; a share of an unknown number of steps, or no share.
    """
    if mlm.short_seq_length is None:
        return None
    if not 0 < mlm.short_seq_share <= 1:
        raise ValueError(f"short_seq_share = {mlm.short_seq_share}: a share lies between 0 and 1.")
    if steps is None:
        raise ValueError("short_seq_share is a share of the optimiser steps: give --max_train_steps.")
    return ShortSequences(mlm.short_seq_length, round(mlm.short_seq_share * steps), block_size)


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
):
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
        "train_tokens": next(record["tokens"] for record in reversed(result.history) if "tokens" in record),
        "corpus": corpus_name(corpus),
        "unigram_entropy": unigram,
        "parameters": parameters,
        "train_flops_per_token": round(flops),
        "machine": machine(device),
    }
    results["train_tokens_per_second"] = round(results["train_tokens"] / max(result.seconds, 1e-9), 1)
    plot_losses(folder / "losses.png", {model.config.model_type: result.history}, unigram, title=folder.name)
    figures = [
        Metric("fill-mask", "validation", name, result.metrics[name], corpus_name(corpus))
        for name in ("loss", "perplexity", "accuracy")
        if name in result.metrics
    ]
    facts = {
        "parameters": f"{parameters:,}",
        "tokens seen": f"{results['train_tokens']:,}",
        "optimiser steps": f"{result.step:,} of {training.global_batch_size()} sequences of {corpus.block_size} tokens",
        "training time": f"{result.seconds / 3600:.2f} hours",
        "tokens per second": f"{results['train_tokens_per_second']:,.0f}",
        "peak learning rate": training.learning_rate,
        "seed": training.seed,
        "unigram entropy of the held-out tokens": f"{unigram:.4f} nats",
        **results["machine"],
    }
    summary = (
        f"A {model.config.model_type} encoder of {parameters:,} parameters, pretrained by masked language modelling on "
        f"{corpus_name(corpus)}. Losses are in nats, over masked tokens of held-out text."
    )
    write_model_card(
        folder / "README.md",
        folder.name,
        model.config.model_type,
        summary,
        figures,
        facts,
        command,
        plot="losses.png",
    )
    # Last, for who waits for it: all the rest is there when it is.
    write_text(folder / "all_results.json", json.dumps(results, indent=2) + "\n")


def main(argv: list[str] | None = None) -> TrainingResult:
    """Runs the script; returns how the training ended."""
    model_arguments, data, mlm, training = parse_arguments(
        (ModelArguments, CorpusArguments, MlmArguments, TrainingConfig), argv, __doc__
    )
    folder = Path(training.output_dir)
    processes = process_state()
    with processes.local_main_process_first():
        corpus = (StreamingCorpus if data.streaming else Corpus).open(prepare_corpus(data, folder / "corpus"))
    masking = Masking.for_tokenizer(corpus.tokenizer, mlm.mlm_probability)
    set_seed(training.seed)
    model = build_model(model_arguments, corpus.tokenizer, corpus.block_size)
    batch_size = training.global_batch_size()
    short = short_sequences(mlm, training.max_train_steps, corpus.block_size)
    if data.streaming:
        steps = training.max_train_steps
        if steps is None:
            raise ValueError("A streamed corpus has no known length: give --max_train_steps.")
        batches = StreamedMlmBatches(corpus, "train", masking, batch_size, training.seed, steps, short)
    else:
        batches = MlmBatches(corpus.split("train"), masking, batch_size, training.seed, short)
    held_out = MlmEvaluation(
        corpus.split("validation"), masking, training.per_device_eval_batch_size, mlm.max_eval_blocks
    )
    if processes.is_main_process:
        save_arguments(folder / "arguments.yaml", model_arguments, data, mlm, training)

    # At a block's length and a micro-batch's size, before several processes share the model.
    sample = {name: rows[: training.per_device_train_batch_size] for name, rows in held_out.batches[0].items()}
    flops = training_flops(model, sample) / sample["input_ids"].numel()
    result = train(model, batches, training, evaluate=held_out, tokenizer=corpus.tokenizer)
    if processes.is_main_process:
        words = argv if argv is not None else sys.argv[1:]
        command = shlex.join(["accelerate", "launch", "scripts/pretrain_mlm.py", *words])
        publish(result, model, corpus, training, flops, str(processes.device), command)
        if mlm.push_to_hub:
            push_folder(folder, mlm.hub_model_id)
    processes.wait_for_everyone()
    return result


if __name__ == "__main__":
    run_as_script(main)
