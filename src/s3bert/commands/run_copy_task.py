"""Teaches causal mixers to copy a word: softmax, linear attention, FMMformer with any band and kernels (its Figures 4 and 5).

    python scripts/run_copy_task.py --config configs/lra/copy-cpu.yaml --length 128 --output_dir runs/copy-128
    python scripts/run_copy_task.py --config configs/lra/copy-cpu.yaml --length 256 --mixer linear fmm:bandwidth=40,kernels=[elu] \\
        --output_dir runs/copy-256-mine

The figures have lengths 128, 256 and 512, each a run; the recipes' mixers are after theirs, `copy.yaml` has the sizes of FMMformer's program.
Each mixer is trained alike, in its causal form, on `| word | word`, words of random length; the loss, training's too, and the accuracy
are of the second word, on words never seen. The same command goes on after a kill. The output folder gets `all_results.json`,
`results.md` and the learning curves, `curves.png`.
"""

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from accelerate.utils import set_seed
from transformers.hf_argparser import HfArg

from s3bert.arguments import named_settings, parse_arguments, run_as_script, save_arguments
from s3bert.files import file_name
from s3bert.models.configuration_lra import LraConfig
from s3bert.models.mixers import setting_names
from s3bert.models.modeling_lra import LraForMaskedLM
from s3bert.reports.lra import write_report
from s3bert.tasks.copying import CopyBatches, CopyEvaluation
from s3bert.training.grid import GridConfig, grid_results, read_report, run_grid, with_test_metrics
from s3bert.training.loop import TrainingConfig, TrainingResult, process_state, train


logger = logging.getLogger(__name__)


@dataclass
class CopyArguments:
    """The words, and what learns to copy them."""

    length: int = HfArg(help="tokens of a sequence: two separators, a word twice, padding", default=128)
    num_symbols: int = HfArg(help="symbols a word is drawn from", default=10)
    mixer: list[str] = HfArg(
        help="causal mixers, each with settings of its own after a colon",
        default_factory=lambda: ["softmax", "linear", "fmm:bandwidth=10,kernels=[elu]", "fmm:bandwidth=10"],
    )
    hidden_size: int = HfArg(help="width", default=64)
    num_hidden_layers: int = HfArg(help="layers", default=2)
    num_attention_heads: int = HfArg(help="heads", default=2)
    intermediate_size: int = HfArg(help="width of the feed-forward", default=128)
    num_eval_batches: int = HfArg(help="batches of unseen words to measure on", default=8)

    def __post_init__(self):
        for text in self.mixer:
            name, _ = named_settings(text)
            if "causal" not in setting_names(name):
                raise ValueError(f"mixer {name} has no causal form; softmax, linear, performer and fmm have.")
        if len(set(self.mixer)) < len(self.mixer):
            raise ValueError(f"mixer = {' '.join(self.mixer)}: one is named twice.")
        CopyBatches(self.length, self.num_symbols, 1, 0, 1)

    def config(self, mixer: str) -> LraConfig:
        """The encoder around a mixer's causal form."""
        name, own = named_settings(mixer)
        return LraConfig(
            mixer=name,
            mixer_settings=own | {"causal": True},
            vocab_size=self.num_symbols + 2,
            max_position_embeddings=self.length,
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_hidden_layers=self.num_hidden_layers,
            num_attention_heads=self.num_attention_heads,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Runs the script; returns the content of `all_results.json`."""
    arguments, grid = parse_arguments((CopyArguments, GridConfig), argv, __doc__)
    if grid.max_train_steps is None:
        raise ValueError("Words are drawn without end: give --max_train_steps.")
    for text in arguments.mixer:  # a wrong setting is known before anything is written
        LraForMaskedLM(arguments.config(text))
    top, results = Path(grid.output_dir), {}
    for text in arguments.mixer:
        config = arguments.config(text)

        def train_trial(trial: TrainingConfig, config: LraConfig = config) -> TrainingResult:
            set_seed(trial.seed)
            words = (arguments.length, arguments.num_symbols, trial.global_batch_size())
            batches = CopyBatches(*words, trial.seed, trial.max_train_steps)
            unseen = CopyEvaluation(CopyBatches(*words, 2**31 + trial.seed, 1), arguments.num_eval_batches)
            steps = max(1, trial.max_train_steps // 20)
            trial = replace(trial, eval_steps=trial.eval_steps or steps, save_steps=trial.save_steps or steps)
            model = LraForMaskedLM(config)
            test = CopyEvaluation(CopyBatches(*words, 2**32 + trial.seed, 1), arguments.num_eval_batches)
            return with_test_metrics(train(model, batches, trial, unseen), model, test)

        logger.info("%s on words of up to %d symbols", text, arguments.length // 2 - 1)
        folder = top / file_name(text)
        identity = {"task": "copy words of random length", "length": arguments.length}
        identity |= {"symbols": arguments.num_symbols, "mixer": text}
        identity["num_eval_batches"] = arguments.num_eval_batches
        identity["model"] = {
            key: value for key, value in config.to_diff_dict().items() if key != "transformers_version"
        }
        results[text] = grid_results(run_grid(replace(grid, output_dir=str(folder)), identity, train_trial))
        if process_state().is_main_process:
            write_report(
                top,
                f"copying words of {arguments.length // 4} to {arguments.length // 2 - 1} symbols",
                f"Sequences of up to {arguments.length} tokens, {arguments.num_symbols} symbols, causal mixers; "
                f"{arguments.num_hidden_layers} layers, width {arguments.hidden_size}. Accuracies are those of a word's symbols.",
                results,
                {
                    "length": arguments.length,
                    "num_symbols": arguments.num_symbols,
                    "complete": len(results) == len(arguments.mixer),
                },
            )
            save_arguments(top / "arguments.yaml", arguments, grid)
    return read_report(top)


if __name__ == "__main__":
    run_as_script(main)
