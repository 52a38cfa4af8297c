"""Pretrains a causal language model on a corpus.

    s3bert pretrain-clm --config clm/wikitext-2-cpu --output_dir runs/fmm
    s3bert pretrain-clm --config clm/wikitext-2-cpu --output_dir runs/fmm --resume_from_checkpoint latest
    accelerate launch -m s3bert.commands.pretrain_clm --config clm/wikitext-103 --output_dir runs/wikitext-103

The model is FMMformer's with any band and kernels, softmax attention, linear attention and fast weights among them, or any causal
model of Transformers, from scratch or continued. The text is cut into blocks, each read alone; its vocabulary is of words between spaces
or of pieces. All else is as in `s3bert pretrain`. Perplexity as papers measure it, with a sliding window: `s3bert eval-perplexity`.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from s3bert.arguments import Arguments, option, parse_arguments
from s3bert.commands import run
from s3bert.data.arguments import CausalCorpusArguments
from s3bert.experiments.arguments import HubArguments, ModelArguments
from s3bert.training.arguments import TrainingConfig


if TYPE_CHECKING:
    from s3bert.training.loop import TrainingResult


_NEXT = """
The model, its card (README.md) and losses.png are in {folder}. Next:
  let it write     python -c "import s3bert, transformers; \\
                     print(transformers.pipeline('text-generation', '{folder}')('the history of', max_new_tokens=40))"
  score it         s3bert eval-perplexity --model_name_or_path {folder} --dataset_name TEXT --output_dir {folder}-perplexity
  publish it       s3bert push --folder {folder} --dry_run\
"""


@dataclass
class ClmArguments(Arguments):
    """Evaluation."""

    max_eval_blocks: int | None = option(
        least=1, help="held-out blocks to evaluate on; all of them by default", default=None
    )


def main(argv: list[str] | None = None) -> "TrainingResult":
    """Runs the command; returns how the training ended."""
    model, data, clm, hub, training = parse_arguments(
        (ModelArguments, CausalCorpusArguments, ClmArguments, HubArguments, TrainingConfig), argv, __doc__
    )
    from s3bert.data.corpus import Corpus
    from s3bert.data.steps import Steps
    from s3bert.experiments.objectives import CAUSAL
    from s3bert.experiments.pretraining import PretrainingArguments, pretrain
    from s3bert.tasks.clm import ClmBatches, ClmEvaluation
    from s3bert.training.processes import locked_for_run

    def batches(corpus: Corpus, steps: Steps) -> ClmBatches:
        return ClmBatches(steps)

    def held_out(corpus: Corpus) -> ClmEvaluation:
        return ClmEvaluation(corpus.split("validation"), training.per_device_eval_batch_size, clm.max_eval_blocks)

    arguments = PretrainingArguments(model, data, clm, hub, training)
    with locked_for_run(Path(training.output_dir)):
        return pretrain(CAUSAL, arguments, batches, held_out, _NEXT, sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    run("pretrain-clm")
