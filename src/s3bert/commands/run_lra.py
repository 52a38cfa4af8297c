"""Trains token mixers on a task of the Long Range Arena.

    s3bert lra --config lra/image --data_dir path/to/lra --output_dir runs/lra-image
    s3bert lra --config lra/image --data_dir path/to/lra --output_dir runs/lra-image-others \\
        --mixer softmax fourier fmm ponet:num_segments=32 fmm:bandwidth=5,kernels=[elu,tanh]
    s3bert lra --config lra/skyformer --task_name image --per_device_train_batch_size 256 --num_warmup_steps 175 \\
        --data_dir path/to/lra --output_dir runs/lra-image-skyformer
    s3bert lra --config lra/image --data_dir path/to/lra --ablate --output_dir runs/lra-ablation

A mixer is S3, softmax, FMMformer, Skyformer, PoNet, ... A folder of the task's name lies in the data folder; `s3bert prepare-lra`
makes those of ListOps and Pathfinder. Validation accuracy is measured once an epoch, test accuracy once, by the finished model.
Examples lie on the accelerator, unless --dataloader_num_workers prepare the batches. Seeds and learning rates may be several, and
the same command goes on after a kill. The output folder gets `all_results.json`, `results.md` and the learning curves,
`curves.png`. A paper's number stands in the table beside the settings and the schedule it is for.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from s3bert.arguments import Arguments, close_match, named_settings, option, parse_arguments
from s3bert.commands import run
from s3bert.files import file_name
from s3bert.training.arguments import GridConfig


logger = logging.getLogger(__name__)

# Table 7: what is taken away.
ABLATIONS = {
    "whole": {},
    "without Fourier convolution": {"use_fourier_convolution": False},
    "without convolution stem": {"use_convolution_stem": False},
    "without column attention": {"use_column_attention": False},
    "without row attention": {"use_row_attention": False},
}
_ENCODER = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_dropout_prob")
_ENCODER += ("embedding_dropout_prob", "attention_probs_dropout_prob")
VARIED = {"r": "num_segments", "s1": "num_row_samples", "s2": "num_column_samples"}
_VALUES = {"r": [1, 8, 16, 32, 64], "s1": [8, 32, 64, 128, 256], "s2": [1, 4, 8, 16, 32]}  # of Table 6, but for s2


class Variant(NamedTuple):
    """One of the things compared: its label, a mixer and its settings, and the amplitude of noise on its inputs."""

    label: str
    mixer: str
    settings: dict[str, Any]
    noise: float = 0.0


@dataclass
class LraArguments(Arguments):
    """Task, encoder, and what to compare."""

    task_name: str = option(help="listops, text, retrieval, image or pathfinder")
    data_dir: str = option(free=True, help="folder that holds a folder of the task's name", default="data/lra")
    mixer: list[str] = option(
        free=True,
        help="token mixers (a wrong name lists them), each with settings of its own after a colon: "
        "fmm:bandwidth=5,kernels=[elu,tanh]",
        default_factory=lambda: ["s3"],
    )
    hidden_size: int = option(least=1, help="width", default=64)
    num_hidden_layers: int = option(least=1, help="layers", default=2)
    num_attention_heads: int = option(least=1, help="heads", default=2)
    intermediate_size: int = option(least=1, help="width of the feed-forward", default=128)
    hidden_dropout_prob: float = option(
        least=0, below=1, help="dropout of mixers' outputs and feed-forward", default=0.1
    )
    embedding_dropout_prob: float | None = option(
        least=0, below=1, help="dropout of embeddings; hidden_dropout_prob by default", default=None
    )
    attention_probs_dropout_prob: float = option(least=0, below=1, help="dropout that the mixer is given", default=0.1)
    max_seq_length: int | None = option(
        free=True, least=1, help="cut sequences to so many tokens; the task's length by default", default=None
    )
    image_size: int | None = option(
        free=True,
        least=1,
        help="average images to so many pixels a side, a divisor of their 32, for a cheaper task",
        default=None,
    )
    pad_to_max_length: bool = option(
        help="pad all batches to that length: one shape, for --torch_compile", default=False
    )
    zero_is_padding: bool = option(help="black pixels count as padding, as in the released programs", default=True)
    group_by_length: bool = option(
        help="batches of sequences of similar length, so that little is padded", default=False
    )
    max_train_samples: int | None = option(free=True, least=1, help="train on the first examples only", default=None)
    max_eval_samples: int | None = option(free=True, least=1, help="evaluate on the first examples only", default=None)
    ablate: bool = option(free=True, help="S3 whole and without each of its four parts (Table 7)", default=False)
    vary: str | None = option(free=True, help="r, s1 or s2: S3 with each of --values for it (Table 6)", default=None)
    values: list[int] = option(
        free=True,
        least=1,
        help="what --vary tries; by default Table 6's 1 to 64 for r and 8 to 256 for s1, and 1 to 32 for s2",
        default_factory=list,
    )
    self_pretrain_epochs: float = option(
        least=0,
        help="also train after so many epochs of masked-token prediction on the task's own training inputs (15%% of the "
        "tokens, as BERT's), with the same rate and a warm-up of a tenth of its steps at most; reported in a column of "
        "its own",
        default=0.0,
    )
    incoherence: bool = option(
        help="measure how evenly the tokens of trained S3 models spread, before and after the Fourier convolution, over all "
        "validation examples (Table 14, after 100 steps: configs/lra/incoherence.yaml)",
        default=False,
    )
    instability_steps: int = option(
        least=0,
        help="measure, over so many of the first steps, how far a step's change of the weights moves the encoder's states "
        "(Skyformer's Table 3: configs/lra/instability.yaml)",
        default=0,
    )
    noise: list[float] = option(
        least=0,
        help="amplitudes of uniform noise on grey values, each a run (Table 5, after 5,000 steps: configs/lra/noise.yaml)",
        default_factory=list,
    )

    def __post_init__(self):
        super().__post_init__()
        from s3bert.models.mixers import setting_names  # not at the top: `--help` has no need of torch
        from s3bert.tasks.lra import LRA_TASKS

        if self.task_name not in LRA_TASKS:
            known = ", ".join(LRA_TASKS)
            raise ValueError(
                f"Unknown task {self.task_name!r}: there is {known}.{close_match(self.task_name, LRA_TASKS)}"
            )
        mixers = [named_settings(text) for text in self.mixer]
        for name, _ in mixers:
            setting_names(name)
        if (self.ablate or self.vary) and [name for name, _ in mixers] != ["s3"]:
            raise ValueError(f"mixer = {' '.join(self.mixer)}: --ablate and --vary take S3 apart; leave --mixer out.")
        if len(set(self.mixer)) < len(self.mixer):
            raise ValueError(f"mixer = {' '.join(self.mixer)}: one is named twice.")
        if self.vary is not None and self.vary not in VARIED:
            raise ValueError(f"vary = {self.vary!r}: there is {', '.join(VARIED)}.")
        task = LRA_TASKS[self.task_name]
        if self.image_size is not None and not (task.pixels and self.max_seq_length in (None, task.max_length)):
            raise ValueError(
                f"image_size = {self.image_size}: whole images, of Image or Pathfinder, are averaged; leave it out, or --max_seq_length."
            )
        if self.noise and not task.pixels:
            raise ValueError(f"noise: {self.task_name} has no grey values; take image or pathfinder.")
        if self.incoherence and {name for name, _ in mixers} != {"s3"}:
            raise ValueError(f"mixer = {' '.join(self.mixer)}: --incoherence looks into S3 alone; leave --mixer out.")
        if sum((self.ablate, self.vary is not None, bool(self.noise))) > 1:
            raise ValueError("Give one of --ablate, --vary and --noise at a time.")

    @property
    def comparison(self) -> str:
        """Of what: parts, one of VARIED, noise, incoherence, or mixers."""
        if self.ablate:
            return "parts"
        return self.vary or ("noise" if self.noise else "incoherence" if self.incoherence else "mixers")

    @property
    def encoder(self) -> dict[str, Any]:
        """Sizes and dropout of the encoder, by the names of its configuration."""
        return {name: getattr(self, name) for name in _ENCODER}

    def variants(self) -> Iterator[Variant]:
        """What is compared."""
        for text in self.mixer:
            name, own = named_settings(text)
            if self.ablate:
                yield from (Variant(label, name, own | changes) for label, changes in ABLATIONS.items())
            elif self.vary is not None:
                yield from (
                    Variant(f"{self.vary} = {value}", name, own | {VARIED[self.vary]: value})
                    for value in self.values or _VALUES[self.vary]
                )
            elif self.noise:
                several = f"{text}, " if len(self.mixer) > 1 else ""
                yield from (Variant(f"{several}noise {amplitude:g}", name, own, amplitude) for amplitude in self.noise)
            else:
                yield Variant(text, name, own)


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Runs the command; returns the content of `all_results.json`."""
    arguments, grid = parse_arguments((LraArguments, GridConfig), argv, __doc__)
    from s3bert.training.processes import locked_for_run

    with locked_for_run(Path(grid.output_dir)):
        return _compare(arguments, grid)


def _compare(arguments: LraArguments, grid: GridConfig) -> dict[str, Any]:
    from s3bert.experiments.lra import build_config, run_variant
    from s3bert.models.modeling_lra import LraForSequenceClassification
    from s3bert.reports.lra import write_report
    from s3bert.tasks.lra import LRA_TASKS
    from s3bert.training.grid import grid_results, read_report
    from s3bert.training.processes import main_process_first
    from s3bert.training.settings import settings_of

    task = LRA_TASKS[arguments.task_name]
    length = arguments.image_size**2 if arguments.image_size else arguments.max_seq_length or task.max_length
    variants = list(arguments.variants())
    rest = (arguments.zero_is_padding, arguments.self_pretrain_epochs > 0, arguments.encoder)
    configs = [build_config(arguments.task_name, length, each.mixer, each.settings, *rest) for each in variants]
    for config in configs:  # a wrong setting is known before anything is read
        LraForSequenceClassification(config)
    with main_process_first():
        folder = Path(arguments.data_dir) / arguments.task_name
        splits = task.read(folder, task.max_length if arguments.image_size else length)
    if arguments.image_size:
        splits = {name: examples.averaged(arguments.image_size) for name, examples in splits.items()}
    limits = dict.fromkeys(splits, arguments.max_eval_samples) | {"train": arguments.max_train_samples}
    splits = {name: examples.take(limits[name]) for name, examples in splits.items()}
    for examples in splits.values():
        examples.pad_to_max_length = arguments.pad_to_max_length
    top, results = Path(grid.output_dir), {}
    options = {
        "zero_is_padding": arguments.zero_is_padding,
        "group_by_length": arguments.group_by_length,
        "measure_incoherence": arguments.incoherence,
        "instability_steps": arguments.instability_steps,
    }
    rows = {name: len(examples) for name, examples in splits.items()}
    comparison = arguments.comparison
    if 0 < (grid.max_train_steps or 0) <= arguments.instability_steps:
        comparison = "instability"  # trained no longer than that takes: there is nothing else to see
    what = {
        "title": f"{arguments.task_name}: {comparison}",
        "description": f"Sequences of up to {length:,} tokens; {', '.join(f'{n:,} for {s}' for s, n in rows.items())}. "
        f"{arguments.num_hidden_layers} layers, width {arguments.hidden_size}.",
        "task": arguments.task_name,
        "comparison": comparison,
        "length": length,
        "rows": rows,
        "num_hidden_layers": arguments.num_hidden_layers,
        "hidden_size": arguments.hidden_size,
    }
    for variant, config in zip(variants, configs):
        logger.info("%s on %s", variant.label, arguments.task_name)

        folder = top / file_name(variant.label)
        how = options | {"noise": variant.noise, "settings": settings_of(arguments)}
        trials = run_variant(arguments.task_name, config, splits, replace(grid, output_dir=str(folder)), **how)
        mixer = {"mixer": variant.mixer, "mixer_settings": variant.settings, "noise": variant.noise}
        results[variant.label] = mixer | grid_results(trials)
        if epochs := arguments.self_pretrain_epochs:
            own_grid = replace(grid, output_dir=str(folder / "after-self-pretraining"))
            trials = run_variant(arguments.task_name, config, splits, own_grid, pretrain_epochs=epochs, **how)
            results[variant.label]["self_pretrained"] = grid_results(trials)
        write_report(top, what, results, len(variants), arguments, grid)
    return read_report(top)


if __name__ == "__main__":
    run("lra")
