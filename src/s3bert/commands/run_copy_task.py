"""Teaches causal mixers to copy a word (FMMformer's Figures 4 and 5).

    s3bert copy-task --config lra/copy-cpu --length 128 --output_dir runs/copy-128
    s3bert copy-task --config lra/copy-cpu --length 256 --mixer linear fmm:bandwidth=40,kernels=[elu] --output_dir runs/copy-256

Mixers are softmax, linear attention, and FMMformer with any band and kernels. Figure 4 has bands beside one kernel, Figure 5 one, two and
three kernels without a band (`fmm:bandwidth=0,...`); one is linear attention. They have lengths 128, 256 and 512, each a run here. The recipes'
mixers are theirs, `lra/copy` has the sizes of FMMformer's program. Each mixer is trained alike, in its causal
form, on `| word | word`, words of random length; the loss, training's too, and the accuracy are of the second word, on words never
seen. The same command goes on after a kill. The output folder gets `all_results.json`, `results.md` and the learning curves,
`curves.png`.
"""

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from s3bert.arguments import Arguments, named_settings, option, parse_arguments
from s3bert.commands import run
from s3bert.files import file_name
from s3bert.training.arguments import GridConfig


logger = logging.getLogger(__name__)


@dataclass
class CopyArguments(Arguments):
    """Words, and what learns to copy them."""

    length: int = option(least=1, help="tokens of a sequence: two separators, a word twice, padding", default=128)
    num_symbols: int = option(least=1, help="symbols a word is drawn from", default=10)
    mixer: list[str] = option(
        free=True,
        help="causal mixers, each with settings of its own after a colon",
        default_factory=lambda: ["softmax", "linear", "fmm:bandwidth=10,kernels=[elu]", "fmm:bandwidth=0"],
    )
    hidden_size: int = option(least=1, help="width", default=64)
    num_hidden_layers: int = option(least=1, help="layers", default=2)
    num_attention_heads: int = option(least=1, help="heads", default=2)
    intermediate_size: int = option(least=1, help="width of the feed-forward", default=128)
    num_eval_batches: int = option(least=1, help="batches of unseen words to measure on", default=8)

    def __post_init__(self):
        super().__post_init__()
        from s3bert.models.mixers import setting_names  # not at the top: `--help` has no need of torch
        from s3bert.tasks.copying import CopyBatches

        for text in self.mixer:
            name, _ = named_settings(text)
            if "causal" not in setting_names(name):
                raise ValueError(f"mixer {name} has no causal form; softmax, linear, performer and fmm have.")
        if len(set(self.mixer)) < len(self.mixer):
            raise ValueError(f"mixer = {' '.join(self.mixer)}: one is named twice.")
        CopyBatches(self.length, self.num_symbols, 1, 0, 1)


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Runs the command; returns the content of `all_results.json`."""
    arguments, grid = parse_arguments((CopyArguments, GridConfig), argv, __doc__)
    from s3bert.training.processes import locked_for_run

    with locked_for_run(Path(grid.output_dir)):
        return _compare(arguments, grid)


def _compare(arguments: CopyArguments, grid: GridConfig) -> dict[str, Any]:
    from s3bert.experiments.copying import build_config, run_mixer
    from s3bert.models.modeling_lra import LraForMaskedLM
    from s3bert.reports.lra import write_report
    from s3bert.training.grid import grid_results, read_report
    from s3bert.training.settings import settings_of

    if grid.max_train_steps is None:
        raise ValueError("Words are drawn without end: give --max_train_steps.")
    words = (arguments.length, arguments.num_symbols)
    sizes = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    sizes = {name: getattr(arguments, name) for name in sizes}
    configs = {mixer: build_config(mixer, *words, **sizes) for mixer in arguments.mixer}
    for config in configs.values():  # a wrong setting is known before anything is written
        LraForMaskedLM(config)
    top, results = Path(grid.output_dir), {}
    what = {
        "title": f"copying words of {arguments.length // 4} to {arguments.length // 2 - 1} symbols",
        "description": f"Sequences of up to {arguments.length} tokens, {arguments.num_symbols} symbols, causal mixers; "
        f"{arguments.num_hidden_layers} layers, width {arguments.hidden_size}. Accuracies are those of a word's symbols.",
        "length": arguments.length,
        "num_symbols": arguments.num_symbols,
    }
    for mixer, config in configs.items():
        logger.info("%s on words of up to %d symbols", mixer, arguments.length // 2 - 1)
        own_grid = replace(grid, output_dir=str(top / file_name(mixer)))
        how = (*words, arguments.num_eval_batches, own_grid, settings_of(arguments))
        results[mixer] = grid_results(run_mixer(mixer, config, *how))
        write_report(top, what, results, len(configs), arguments, grid)
    return read_report(top)


if __name__ == "__main__":
    run("copy-task")
