"""Pretrains a masked language model on a corpus.

    s3bert pretrain --config pretrain/small --output_dir runs/small
    s3bert pretrain --config pretrain/small --output_dir runs/small --resume_from_checkpoint latest
    accelerate launch -m s3bert.commands.pretrain_mlm --config pretrain/small --output_dir runs/small

The model is S3BERT, PoNet, BERT, FNet, or any other that Transformers has, from scratch or continued. The output folder is a
complete Hub repository: weights, config, tokenizer, modelling code, and a model card with the run's own metrics; beside them
`log.jsonl`, `losses.png`, TensorBoard logs, `arguments.yaml` to repeat the run and `all_results.json`. Several processes,
FSDP and mixed precision come from accelerate's configuration.
"""

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from s3bert.arguments import Arguments, option, parse_arguments, save_arguments
from s3bert.commands import run
from s3bert.data.arguments import CorpusArguments
from s3bert.training.arguments import TrainingConfig


if TYPE_CHECKING:
    from s3bert.training.loop import TrainingResult


_NEXT = """
The model, its card (README.md) and losses.png are in {folder}. Next:
  fill a mask      python -c "import s3bert, transformers; \\
                     print(transformers.pipeline('fill-mask', '{folder}')('the [MASK] was there .'))"
  finetune it      s3bert glue --config glue/small --model_name_or_path {folder} --task_name sst2 \\
                     --max_seq_length {length} --output_dir {folder}-sst2
  publish it       s3bert push --folder {folder} --dry_run\
"""


@dataclass
class ModelArguments(Arguments):
    """Model: give exactly one of the first three."""

    model_name_or_path: str | None = option(
        free=True, help="checkpoint to continue from: a folder or a Hub id", default=None
    )
    config_name: str | None = option(
        free=True,
        help="configuration to start from scratch: a JSON file or recipe (model/s3bert-mini), a folder or a Hub id",
        default=None,
    )
    model_type: str | None = option(
        free=True, help="model type with its default configuration, from scratch: s3bert, bert, ...", default=None
    )
    config_overrides: str | None = option(
        free=True, help="changes to the configuration, as `hidden_size=128,num_segments=4`", default=None
    )
    trust_remote_code: bool = option(help="run modelling code that comes with a checkpoint", default=False)


@dataclass
class MlmArguments(Arguments):
    """Objective, evaluation and publishing."""

    mlm_probability: float = option(above=0, below=1, help="share of the tokens to predict", default=0.15)
    short_seq_length: int | None = option(
        least=2,
        help="cut the blocks of the first steps into sequences of so many tokens: small models learn far sooner from them",
        default=None,
    )
    short_seq_share: float = option(above=0, most=1, help="share of the steps that do so", default=0.3)
    max_eval_blocks: int | None = option(
        least=1, help="held-out blocks to evaluate on; all of them by default", default=None
    )
    push_to_hub: bool = option(free=True, help="upload the finished folder", default=False)
    hub_model_id: str | None = option(
        free=True, help="repository to upload to; the output folder's name by default", default=None
    )


def main(argv: list[str] | None = None) -> "TrainingResult":
    """Runs the command; returns how the training ended."""
    model_arguments, data, mlm, training = parse_arguments(
        (ModelArguments, CorpusArguments, MlmArguments, TrainingConfig), argv, __doc__
    )
    from s3bert.training.processes import locked_for_run

    with locked_for_run(Path(training.output_dir)):
        return _pretrain(model_arguments, data, mlm, training, sys.argv[1:] if argv is None else argv)


def _pretrain(
    model_arguments: ModelArguments,
    data: CorpusArguments,
    mlm: MlmArguments,
    training: TrainingConfig,
    words: list[str],
) -> "TrainingResult":
    from accelerate.utils import set_seed

    from s3bert.data.corpus import Corpus, prepare_corpus
    from s3bert.data.streaming import StreamingCorpus
    from s3bert.experiments.pretraining import build_model, publish, short_sequences
    from s3bert.reports.repository import push_folder
    from s3bert.tasks.mlm import Masking, MlmBatches, MlmEvaluation, StreamedMlmBatches
    from s3bert.training.checkpoints import all_checkpoints
    from s3bert.training.finetuning import weights_digest
    from s3bert.training.flops import training_flops
    from s3bert.training.loop import train
    from s3bert.training.processes import process_state
    from s3bert.training.settings import settings_of

    folder = Path(training.output_dir)
    processes = process_state()
    with processes.local_main_process_first():
        corpus = (StreamingCorpus if data.streaming else Corpus).open(prepare_corpus(data, folder / "corpus"))
    masking = Masking.for_tokenizer(corpus.tokenizer, mlm.mlm_probability)
    set_seed(training.seed)
    model = build_model(corpus.tokenizer, corpus.block_size, **vars(model_arguments))
    batch_size = training.sequences_per_step
    short = short_sequences(mlm.short_seq_length, mlm.short_seq_share, training.max_train_steps, corpus.block_size)
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
    start = model_arguments.model_name_or_path
    settings = settings_of(model_arguments, data, mlm) | {
        "corpus": corpus.fingerprint,
        "per_device_eval_batch_size": training.per_device_eval_batch_size,  # of which the held-out masks are drawn
        "weights": weights_digest(start, model.config) if start else None,
    }
    arguments = (folder / "arguments.yaml", model_arguments, data, mlm, training)
    if processes.is_main_process and not all_checkpoints(folder):  # it tells of those, until they have proved to fit
        save_arguments(*arguments)

    flops = 0.0
    if processes.is_main_process:  # at a block's length, before several processes share the model
        size = training.per_device_train_batch_size
        sample = {name: held_out.batches[0][name][:size] for name in ("input_ids", "labels")}
        flops = training_flops(model, sample) / sample["input_ids"].numel()
    result = train(model, batches, training, evaluate=held_out, tokenizer=corpus.tokenizer, settings=settings)
    if processes.is_main_process:
        save_arguments(*arguments)
        launcher = ["s3bert", "pretrain"]
        if processes.num_processes > 1:
            launcher = ["accelerate", "launch", "-m", "s3bert.commands.pretrain_mlm"]
        command = shlex.join([*launcher, *words])
        publish(result, model, corpus, training, flops, str(processes.device), command)
        if mlm.push_to_hub:
            push_folder(folder, mlm.hub_model_id)
        print(_NEXT.format(folder=folder, length=min(128, corpus.block_size)))
    processes.wait_for_everyone()
    return result


if __name__ == "__main__":
    run("pretrain")
