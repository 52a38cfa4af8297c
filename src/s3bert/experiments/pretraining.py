"""Pretraining by masked or causal language modelling: a run, and what it publishes of itself."""

import json
import logging
import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from accelerate.utils import set_seed
from transformers import PreTrainedModel

from s3bert.arguments import Arguments, save_arguments
from s3bert.benchmark.results import machine
from s3bert.data.arguments import CorpusArguments
from s3bert.data.blocks import MANIFEST
from s3bert.data.corpus import Corpus, prepare_corpus
from s3bert.data.sources import parse_sources
from s3bert.data.steps import PackedSteps, Steps, StreamedSteps
from s3bert.data.streaming import StreamingCorpus
from s3bert.data.wordpiece import load_tokenizer
from s3bert.files import as_markdown, write_text
from s3bert.reports.losses import plot_losses
from s3bert.reports.model_card import Metric, write_model_card
from s3bert.reports.repository import push_folder
from s3bert.tasks.clm import ClmEvaluation
from s3bert.tasks.mlm import MlmEvaluation
from s3bert.training.arguments import TrainingConfig
from s3bert.training.checkpoints import all_checkpoints, check_own_folder
from s3bert.training.finetuning import weights_digest
from s3bert.training.flops import training_flops
from s3bert.training.loop import TrainingResult, train
from s3bert.training.micro_batches import Batches
from s3bert.training.pretrained import check_vocabulary, own_tokenizer
from s3bert.training.processes import main_process_first, process_state
from s3bert.training.settings import changes_in_words, settings_of

from .arguments import HubArguments, ModelArguments
from .distillation import Distillation
from .objectives import MASKED, Objective
from .starting_model import build_model, read_config


logger = logging.getLogger(__name__)

_DISPLAYED = {
    "s3bert": "An S3BERT",
    "bert": "A BERT",
    "fnet": "An FNet",
    "ponet": "A PoNet",
    "fmmformer": "An FMMformer",
    "gpt2": "A GPT-2",
}


class PretrainingArguments(NamedTuple):
    """What a command was told, by kind; `objective` holds what is the objective's own."""

    model: ModelArguments
    data: CorpusArguments
    objective: Arguments
    hub: HubArguments
    training: TrainingConfig


def pretrain(
    objective: Objective,
    arguments: PretrainingArguments,
    batches_of: Callable[[Corpus, Steps], Batches],
    evaluation_of: Callable[[Corpus], MlmEvaluation | ClmEvaluation],
    next_steps: str,
    words: list[str],
    distillation_of: Callable[[Corpus, PreTrainedModel], Distillation | None] = lambda corpus, model: None,
) -> TrainingResult:
    """Prepares the corpus, trains, and publishes into the output folder, which the caller has locked; as the commands' docstrings say.

    Args:
        batches_of: the batches of a corpus, of the blocks that each step reads. evaluation_of: of its held-out blocks.
        next_steps: what to print of a finished run, with its {folder} and the {length} of its sequences. words: of the command line.
        distillation_of: from which teacher the model is to learn too, if from one.

    Raises:
        ValueError: an argument that cannot be; a corpus that was prepared for another objective; a checkpoint or a teacher of another
            vocabulary than the corpus.
    """
    data, training = arguments.data, arguments.training
    folder, processes = Path(training.output_dir), process_state()
    # Mistakes must not wait for a corpus of hours.
    start = arguments.model.model_name_or_path
    if start and folder.resolve() == Path(start).resolve():
        raise ValueError(
            f"output_dir = {folder} is the checkpoint to start from, which would be replaced: name another."
        )
    check_own_folder(folder, "log.jsonl", "checkpoint-*")
    config = read_config(objective, arguments.model)
    if data.streaming and training.max_train_steps is None:
        raise ValueError("A streamed corpus has no known length: give --max_train_steps.")
    data = _with_own_tokenizer(objective, arguments.model, data)
    with main_process_first():
        corpus = (StreamingCorpus if data.streaming else Corpus).open(prepare_corpus(data, folder / "corpus"))
    _check_frame(corpus, objective)
    set_seed(training.seed)
    model = build_model(objective, config, corpus.tokenizer, corpus.block_size, arguments.model)
    steps: Steps
    if isinstance(corpus, StreamingCorpus):
        order = (training.sequences_per_step, training.seed, training.max_train_steps)
        steps = StreamedSteps(corpus, "train", *order)
    else:
        steps = PackedSteps(corpus.split("train"), training.sequences_per_step, training.seed)
    batches, held_out = batches_of(corpus, steps), evaluation_of(corpus)
    distillation = distillation_of(corpus, model)
    settings = settings_of(arguments.model, data, arguments.objective) | {
        "corpus": corpus.fingerprint,
        "per_device_eval_batch_size": training.per_device_eval_batch_size,  # of which held-out masks are drawn
        "weights": weights_digest(start, model.config) if start else None,
    }
    if objective is MASKED:
        teacher = distillation and distillation.teacher
        settings["teacher"] = teacher and weights_digest(teacher.name_or_path, teacher.config)
    file = folder / "arguments.yaml"
    if processes.is_main_process and not all_checkpoints(folder):  # it tells of those, until they have proved to fit
        save_arguments(file, *arguments)

    flops = None
    # At a block's length, before several processes share the model. The loop's own count, of MFU, is at its first steps' length, which
    # short sequences make another.
    if processes.is_main_process:
        size = training.per_device_train_batch_size
        sample = {name: held_out.batches[0][name][:size] for name in ("input_ids", "labels")}
        flops = training_flops(model, sample)
        flops = flops and round(flops / sample["input_ids"].numel())
    around = {"around_step": distillation} if distillation else {}
    result = train(model, batches, training, held_out, corpus.tokenizer, settings=settings, **around)
    if processes.is_main_process:
        save_arguments(file, *arguments)
        launcher = ["s3bert", objective.command]
        if processes.num_processes > 1:
            launcher = ["accelerate", "launch", "-m", f"s3bert.commands.{objective.module}"]
        origin = {"continued from": start, "teacher": getattr(arguments.objective, "teacher_name_or_path", None)}
        command = shlex.join([*launcher, *words])
        publish(objective, result, model, corpus, training, flops, str(processes.device), command, origin)
        if arguments.hub.push_to_hub:
            push_folder(folder, arguments.hub.hub_model_id)
        print(next_steps.format(folder=folder, length=min(128, corpus.block_size)))
    processes.wait_for_everyone()
    return result


def _with_own_tokenizer(objective: Objective, model: ModelArguments, data: CorpusArguments) -> CorpusArguments:
    """The corpus's arguments, with the tokenizer of the checkpoint to go on from where they name none and no corpus that is prepared.

    Raises:
        ValueError: they name one of another vocabulary.
    """
    start = model.model_name_or_path
    prepared = data.dataset_name and (Path(data.dataset_name) / MANIFEST).is_file()
    own = own_tokenizer(start, model.trust_remote_code) if start and not prepared else None
    if start is None or own is None:
        return data
    if data.tokenizer_name is None:
        logger.info("The text is read by the tokenizer of %s.", start)
        return replace(data, tokenizer_name=start)
    given = load_tokenizer(data.tokenizer_name, causal=not objective.special_tokens)
    remedy = "leave --tokenizer_name out, or name another checkpoint."
    check_vocabulary(start, own, given, f"the tokenizer {data.tokenizer_name}", remedy)
    return data


def _check_frame(corpus: Corpus, objective: Objective) -> None:
    """
    Raises:
        ValueError: the corpus's blocks are not the objective's.
    """
    if corpus.special_tokens != objective.special_tokens:
        blocks = "begin with [CLS] and end with [SEP]" if corpus.special_tokens else "have no [CLS] and [SEP]"
        raise ValueError(
            f"The blocks of {corpus.folder} {blocks}, which {objective.name} does not read: prepare the corpus with "
            f"--add_special_tokens {str(objective.special_tokens).lower()}, in another folder."
        )


def corpus_name(corpus: Corpus | StreamingCorpus) -> str:
    """The sources, for people."""
    sources = dict.fromkeys(record["source"] for record in corpus.manifest["files"])
    return " + ".join(part.title for source in sources for part in parse_sources(source))


def publish(
    objective: Objective,
    result: TrainingResult,
    model: PreTrainedModel,
    corpus: Corpus,
    training: TrainingConfig,
    flops: int | None,
    device: str,
    command: str,
    origin: Mapping[str, str | None],
) -> None:
    """Writes what the run measured: `all_results.json`, the loss curve, and the model card.

    Args:
        flops: of training on a token, as `training_flops` counts; None where it cannot. device: what trained, "cuda:0".
        origin: checkpoints that it learnt from, by what they were; None for none.
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
        "train_flops_per_token": flops,
        "machine": machine(device),
        "changes": result.changes,
    }
    results["train_tokens_per_second"] = round(results["train_tokens"] / max(result.seconds, 1e-9), 1)
    plot_losses(folder / "losses.png", {model.config.model_type: result.history}, unigram, title=folder.name)
    metrics = [
        Metric(objective.task, "validation", name, result.metrics[name], corpus_name(corpus))
        for name in objective.metrics
        if name in result.metrics
    ]
    learnt_from = {what: name for what, name in origin.items() if name}
    facts = learnt_from | {
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
    start = origin.get("continued from")
    from_others = "".join(f", {what} {as_markdown(Path(name).name)}" for what, name in learnt_from.items())
    summary = (
        f"{_DISPLAYED.get(model.config.model_type, f'A {model.config.model_type}')} {objective.noun} of {parameters:,} parameters, pretrained by "
        f"{objective.name} on {as_markdown(corpus_name(corpus))}{from_others}. Losses are in nats, over {objective.predicted} of held-out text."
    )
    write_model_card(
        folder / "README.md",
        folder.name,
        model.config.model_type,
        summary,
        metrics,
        facts,
        command,
        start if start and not Path(start).exists() else None,
        plot="losses.png",
    )
    # Last, for who waits for it: all the rest is there when it is.
    write_text(folder / "all_results.json", json.dumps(results, indent=2) + "\n")
