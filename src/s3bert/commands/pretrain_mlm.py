"""Pretrains a masked language model on a corpus.

    s3bert pretrain --config pretrain/small --output_dir runs/small
    s3bert pretrain --config pretrain/small --output_dir runs/small --resume_from_checkpoint latest
    accelerate launch -m s3bert.commands.pretrain_mlm --config pretrain/small --output_dir runs/small

The model is S3BERT, PoNet, BERT, FNet, or any other that Transformers has, from scratch or continued; a checkpoint with fewer
positions than the corpus's blocks have is lengthened. The output folder is a complete Hub repository: weights, config, tokenizer, modelling
code, and a model card with the run's own metrics; beside them `log.jsonl`, `losses.png`, TensorBoard logs, `arguments.yaml` to repeat the
run and `all_results.json`. Several processes, FSDP and mixed precision come from accelerate's configuration.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from s3bert.arguments import Arguments, option, parse_arguments
from s3bert.commands import run
from s3bert.data.arguments import CorpusArguments
from s3bert.experiments.arguments import HubArguments, ModelArguments
from s3bert.training.arguments import TrainingConfig


if TYPE_CHECKING:
    from transformers import PreTrainedModel

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
class MlmArguments(Arguments):
    """Objective and evaluation."""

    mlm_probability: float = option(above=0, below=1, help="share of the tokens to predict", default=0.15)
    short_seq_length: list[int] | None = option(
        least=2,
        help="cut the blocks of the first steps into sequences of so many tokens: small models learn far sooner from them; several lengths "
        "follow one another, each for as many steps",
        default=None,
    )
    short_seq_share: float = option(above=0, most=1, help="share of the steps that do so", default=0.3)
    max_eval_blocks: int | None = option(
        least=1, help="held-out blocks to evaluate on; all of them by default", default=None
    )
    teacher_name_or_path: str | None = option(
        free=True,
        help="masked LM of the same vocabulary to learn from too, by its distribution at masked positions: a folder or a Hub id",
        default=None,
    )
    distillation_weight: float = option(
        least=0, most=1, help="share of the teacher's loss; the rest is the masked tokens'", default=0.5
    )
    distillation_temperature: float = option(
        above=0, help="what both models' logits are divided by for the teacher's loss", default=2.0
    )


def main(argv: list[str] | None = None) -> "TrainingResult":
    """Runs the command; returns how the training ended."""
    model_arguments, data, mlm, hub, training = parse_arguments(
        (ModelArguments, CorpusArguments, MlmArguments, HubArguments, TrainingConfig), argv, __doc__
    )
    from s3bert.data.corpus import Corpus
    from s3bert.data.steps import Steps
    from s3bert.experiments.distillation import Distillation
    from s3bert.experiments.objectives import MASKED
    from s3bert.experiments.pretraining import PretrainingArguments, pretrain
    from s3bert.experiments.starting_model import load_teacher, read_config
    from s3bert.tasks.mlm import Masking, MlmBatches, MlmEvaluation, ShortSequences
    from s3bert.training.processes import locked_for_run

    def masking(corpus: Corpus) -> Masking:
        return Masking.for_tokenizer(corpus.tokenizer, mlm.mlm_probability)

    def batches(corpus: Corpus, steps: Steps) -> MlmBatches:
        short = None
        if mlm.short_seq_length is not None:
            cut_steps = round(mlm.short_seq_share * training.max_train_steps)
            short = ShortSequences(mlm.short_seq_length, cut_steps, corpus.block_size)
        return MlmBatches(steps, masking(corpus), short)

    def held_out(corpus: Corpus) -> MlmEvaluation:
        blocks, size = corpus.split("validation"), training.per_device_eval_batch_size
        return MlmEvaluation(blocks, masking(corpus), size, mlm.max_eval_blocks)

    def distillation(corpus: Corpus, model: "PreTrainedModel") -> Distillation | None:
        if teacher is None:
            return None
        loaded = load_teacher(teacher, teacher_config, corpus, model.config.vocab_size)
        return Distillation(loaded, mlm.distillation_weight, mlm.distillation_temperature)

    name, remote = mlm.teacher_name_or_path, model_arguments.trust_remote_code
    teacher = None if name is None else ModelArguments(model_name_or_path=name, trust_remote_code=remote)
    arguments = PretrainingArguments(model_arguments, data, mlm, hub, training)
    words = sys.argv[1:] if argv is None else argv
    with locked_for_run(Path(training.output_dir)):
        # Mistakes must not wait for a corpus of hours.
        if mlm.short_seq_length is not None and training.max_train_steps is None:
            raise ValueError("short_seq_share is a share of the optimiser steps: give --max_train_steps.")
        softness = ("distillation_weight", "distillation_temperature")
        if told := [way for way in softness if teacher is None and getattr(mlm, way) != getattr(MlmArguments, way)]:
            raise ValueError(f"{' and '.join(told)}: of a teacher; give --teacher_name_or_path too.")
        teacher_config = None if teacher is None else read_config(MASKED, teacher)
        return pretrain(MASKED, arguments, batches, held_out, _NEXT, words, distillation)


if __name__ == "__main__":
    run("pretrain")
