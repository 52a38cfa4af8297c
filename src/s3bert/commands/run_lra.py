"""Trains any token mixer on a task of the Long Range Arena: S3, softmax, FMMformer, Skyformer, PoNet, ...

    python scripts/run_lra.py --config configs/lra/image.yaml --data_dir path/to/lra --output_dir runs/lra-image
    python scripts/run_lra.py --config configs/lra/image.yaml --data_dir path/to/lra --output_dir runs/lra-image-others \\
        --mixer softmax fourier fmm ponet:num_segments=32 fmm:bandwidth=5,kernels=[elu,tanh]
    python scripts/run_lra.py --config configs/lra/skyformer.yaml --task_name image --per_device_train_batch_size 256 \\
        --num_warmup_steps 175 --data_dir path/to/lra --output_dir runs/lra-image-skyformer
    python scripts/run_lra.py --config configs/lra/image.yaml --data_dir path/to/lra --ablate --output_dir runs/lra-ablation

A folder of the task's name lies in the data folder; scripts/prepare_lra.py makes those of ListOps and Pathfinder. Validation
accuracy is measured once an epoch, test accuracy once, by the finished model. Examples lie on the accelerator, unless
--dataloader_num_workers prepare the batches. Seeds and learning rates may be several, and the same command goes on after a kill. The
output folder gets `all_results.json`, `results.md` and the learning curves, `curves.png`. A paper's figure stands in the table beside
the settings it is for.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from accelerate.utils import set_seed
from transformers.hf_argparser import HfArg

from s3bert.analysis.incoherence import token_incoherence
from s3bert.analysis.instability import instability
from s3bert.arguments import close_match, named_settings, parse_arguments, run_as_script, save_arguments
from s3bert.data.shuffled import ShuffledBatches
from s3bert.files import file_name
from s3bert.models.configuration_lra import LraConfig
from s3bert.models.mixers import setting_names
from s3bert.models.modeling_lra import LraForMaskedLM, LraForSequenceClassification
from s3bert.reports.lra import write_report
from s3bert.reports.published import published_accuracy, published_change, published_incoherence, published_under_noise
from s3bert.tasks.lra import LRA_TASKS, Examples, LraEvaluation, MaskedLraBatches
from s3bert.training.grid import GridConfig, Setting, grid_results, read_report, run_grid, with_test_metrics
from s3bert.training.loop import TrainingConfig, TrainingResult, process_state, train


logger = logging.getLogger(__name__)

# Table 7: what is taken away.
ABLATIONS = {
    "whole": {},
    "without Fourier convolution": {"use_fourier_convolution": False},
    "without convolution stem": {"use_convolution_stem": False},
    "without column attention": {"use_column_attention": False},
    "without row attention": {"use_row_attention": False},
}
VARIED = {"r": "num_segments", "s1": "num_row_samples", "s2": "num_column_samples"}  # Table 6


class Variant(NamedTuple):
    """One of the things compared: its label, a mixer and its settings, and the amplitude of noise on its inputs."""

    label: str
    mixer: str
    settings: dict[str, Any]
    noise: float = 0.0


@dataclass
class LraArguments:
    """The task, the encoder, and what to compare."""

    task_name: str = HfArg(help="listops, text, retrieval, image or pathfinder")
    data_dir: str = HfArg(help="folder that holds a folder of the task's name", default="data/lra")
    mixer: list[str] = HfArg(
        help="token mixers (a wrong name lists them), each with settings of its own after a colon: "
        "fmm:bandwidth=5,kernels=[elu,tanh]",
        default_factory=lambda: ["s3"],
    )
    hidden_size: int = HfArg(help="width", default=64)
    num_hidden_layers: int = HfArg(help="layers", default=2)
    num_attention_heads: int = HfArg(help="heads", default=2)
    intermediate_size: int = HfArg(help="width of the feed-forward", default=128)
    hidden_dropout_prob: float = HfArg(help="dropout of mixers' outputs and feed-forward", default=0.1)
    embedding_dropout_prob: float | None = HfArg(
        help="dropout of embeddings; hidden_dropout_prob by default", default=None
    )
    attention_probs_dropout_prob: float = HfArg(help="dropout that the mixer is given", default=0.1)
    max_seq_length: int | None = HfArg(
        help="cut sequences to so many tokens; the task's length by default", default=None
    )
    pad_to_max_length: bool = HfArg(
        help="pad all batches to that length: one shape, for --torch_compile", default=False
    )
    zero_is_padding: bool = HfArg(help="black pixels count as padding, as in the released programs", default=True)
    group_by_length: bool = HfArg(
        help="batches of sequences of similar length, so that little is padded", default=False
    )
    max_train_samples: int | None = HfArg(help="train on the first examples only", default=None)
    max_eval_samples: int | None = HfArg(help="evaluate on the first examples only", default=None)
    ablate: bool = HfArg(help="S3 whole and without each of its four parts (Table 7)", default=False)
    vary: str | None = HfArg(help="r, s1 or s2: S3 with each of --values for it (Table 6)", default=None)
    values: list[int] = HfArg(help="what --vary tries", default_factory=lambda: [1, 4, 8, 16, 32])
    self_pretrain_epochs: float = HfArg(
        help="also train after so many epochs of masked-token prediction on the task's own training inputs (15%% of the "
        "tokens, as BERT's), with the same rate and a warm-up of a tenth of its steps at most; reported in a column of "
        "its own",
        default=0.0,
    )
    incoherence: bool = HfArg(
        help="measure how evenly the tokens of trained S3 models spread, before and after the Fourier convolution "
        "(Table 14, after 100 steps: configs/lra/incoherence.yaml)",
        default=False,
    )
    instability: bool = HfArg(
        help="measure how far small noise on the weights moves the logits, before training and after it (Skyformer's "
        "Table 3)",
        default=False,
    )
    noise: list[float] = HfArg(
        help="amplitudes of uniform noise on grey values, each a run (Table 5, after 5,000 steps: configs/lra/noise.yaml)",
        default_factory=list,
    )

    def __post_init__(self):
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
        for name in ("max_seq_length", "max_train_samples", "max_eval_samples"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}: give at least 1, or leave it out for all there is.")
        if any(amplitude < 0 for amplitude in self.noise):
            raise ValueError(f"noise = {self.noise}: an amplitude is 0 for none, or more.")
        if self.noise and not LRA_TASKS[self.task_name].pixels:
            raise ValueError(f"noise: {self.task_name} has no grey values; take image or pathfinder.")
        if self.incoherence and {name for name, _ in mixers} != {"s3"}:
            raise ValueError(f"mixer = {' '.join(self.mixer)}: --incoherence looks into S3 alone; leave --mixer out.")
        if self.self_pretrain_epochs < 0:
            raise ValueError(f"self_pretrain_epochs = {self.self_pretrain_epochs}: give 0 for none, or more.")
        if sum((self.ablate, self.vary is not None, bool(self.noise))) > 1:
            raise ValueError("Give one of --ablate, --vary and --noise at a time.")

    @property
    def comparison(self) -> str:
        """Of what: parts, one of VARIED, noise, incoherence, or mixers."""
        if self.ablate:
            return "parts"
        return self.vary or ("noise" if self.noise else "incoherence" if self.incoherence else "mixers")

    def published(self, variant: Variant) -> str:
        """What the papers give for a variant; nothing where none of them does."""
        if self.comparison == "parts":
            return published_change(self.task_name, variant.label, named_settings(self.mixer[0])[1])
        if self.comparison == "noise":
            return published_under_noise(self.task_name, variant.mixer, variant.settings, variant.noise)
        return (
            published_accuracy(self.task_name, variant.mixer, variant.settings) if self.comparison == "mixers" else ""
        )

    def variants(self) -> Iterator[Variant]:
        """What is compared."""
        for text in self.mixer:
            name, own = named_settings(text)
            if self.ablate:
                yield from (Variant(label, name, own | changes) for label, changes in ABLATIONS.items())
            elif self.vary is not None:
                yield from (
                    Variant(f"{self.vary} = {value}", name, own | {VARIED[self.vary]: value}) for value in self.values
                )
            elif self.noise:
                several = f"{text}, " if len(self.mixer) > 1 else ""
                yield from (Variant(f"{several}noise {amplitude:g}", name, own, amplitude) for amplitude in self.noise)
            else:
                yield Variant(text, name, own)


def build_config(arguments: LraArguments, length: int, variant: Variant) -> LraConfig:
    """The encoder's configuration for a task, its longest sequence and a variant."""
    task = LRA_TASKS[arguments.task_name]
    return LraConfig(
        mixer=variant.mixer,
        mixer_settings=variant.settings,
        vocab_size=task.vocab_size + (not arguments.zero_is_padding) + bool(arguments.self_pretrain_epochs),
        num_labels=task.num_labels,
        max_position_embeddings=length,
        pair_inputs=task.pair,
        hidden_size=arguments.hidden_size,
        num_hidden_layers=arguments.num_hidden_layers,
        num_attention_heads=arguments.num_attention_heads,
        intermediate_size=arguments.intermediate_size,
        hidden_dropout_prob=arguments.hidden_dropout_prob,
        embedding_dropout_prob=arguments.embedding_dropout_prob,
        attention_probs_dropout_prob=arguments.attention_probs_dropout_prob,
    )


def self_pretrained(config: LraConfig, examples: Examples, epochs: float, trial: TrainingConfig) -> Path:
    """The folder, in the trial's own, of a model that has predicted masked tokens of a task's training inputs; a cut-off one goes on.

    The vocabulary's last id stands for masked tokens.
    """
    folder = Path(trial.output_dir) / "self-pretrained"
    batches = MaskedLraBatches(examples, trial.global_batch_size(), trial.seed, config.vocab_size - 1)
    trial = replace(
        trial, output_dir=str(folder), num_train_epochs=epochs, max_train_steps=None, save_steps=len(batches)
    )
    # The task's own warm-up may be longer than all this.
    warmup = min(trial.num_warmup_steps, trial.total_steps(len(batches)) // 10)
    train(LraForMaskedLM(config), batches, replace(trial, num_warmup_steps=warmup))
    return folder


def run_variant(
    arguments: LraArguments,
    splits: dict[str, Examples],
    variant: Variant,
    grid: GridConfig,
    pretrain_epochs: float = 0.0,
) -> list[Setting]:
    """Trains the grid's trials of one variant; their metrics include `test_accuracy` and `test_loss`."""
    config = build_config(arguments, splits["train"].max_length, variant)
    checksums = {name: examples.checksum() for name, examples in splits.items()}
    if variant.noise:
        splits = {name: examples.noisy(variant.noise, number) for number, (name, examples) in enumerate(splits.items())}
    if not arguments.zero_is_padding:
        splits = {name: examples.shifted() for name, examples in splits.items()}
    device = process_state().device
    # Worker processes cannot read an accelerator's memory.
    resident = device.type != "cpu" and not grid.dataloader_num_workers
    at_hand = {name: examples.to(device) if resident else examples for name, examples in splits.items()}

    def train_trial(trial: TrainingConfig) -> TrainingResult:
        set_seed(trial.seed)
        if pretrain_epochs:
            start = self_pretrained(config, splits["train"], pretrain_epochs, trial)
            set_seed(trial.seed)  # of the new classifier
            model = LraForSequenceClassification.from_pretrained(start, config=config)
        else:
            model = LraForSequenceClassification(config)
        sample = splits["validation"].batch(np.arange(min(16, len(splits["validation"]))))["input_ids"]
        probes = {"instability_before": instability(model.eval(), sample)} if arguments.instability else {}
        batches = ShuffledBatches(at_hand["train"], trial.global_batch_size(), trial.seed, arguments.group_by_length)
        validation = LraEvaluation(at_hand["validation"], trial.per_device_eval_batch_size)
        trial = replace(trial, save_steps=trial.save_steps or len(batches))
        result = train(model, batches, trial, validation)
        result = with_test_metrics(result, model, LraEvaluation(at_hand["test"], trial.per_device_eval_batch_size))
        sample = sample.to(model.device)
        if arguments.instability:
            probes["instability_after"] = instability(model, sample)
        if arguments.incoherence:
            probes |= token_incoherence(model, sample)
        return replace(result, metrics=result.metrics | probes)

    rows = {name: len(examples) for name, examples in splits.items()}
    model = {name: value for name, value in config.to_diff_dict().items() if name != "transformers_version"}
    identity = {"task": arguments.task_name, "rows": rows, "noise": variant.noise, "model": model}
    identity |= {"self_pretrain_epochs": pretrain_epochs, "zero_is_padding": arguments.zero_is_padding}
    identity |= {"crc32": checksums, "incoherence": arguments.incoherence, "instability": arguments.instability}
    if arguments.group_by_length:
        identity["group_by_length"] = True
    return run_grid(grid, identity, train_trial)


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Runs the script; returns the content of `all_results.json`."""
    arguments, grid = parse_arguments((LraArguments, GridConfig), argv, __doc__)
    task = LRA_TASKS[arguments.task_name]
    length = arguments.max_seq_length or task.max_length
    for variant in arguments.variants():  # a wrong setting is known before anything is read
        LraForSequenceClassification(build_config(arguments, length, variant))
    with process_state().local_main_process_first():
        splits = task.read(Path(arguments.data_dir) / arguments.task_name, length)
    limits = dict.fromkeys(splits, arguments.max_eval_samples) | {"train": arguments.max_train_samples}
    splits = {name: examples.take(limits[name]) for name, examples in splits.items()}
    for examples in splits.values():
        examples.pad_to_max_length = arguments.pad_to_max_length
    top, results = Path(grid.output_dir), {}
    for variant in arguments.variants():
        logger.info("%s on %s", variant.label, arguments.task_name)
        folder = top / file_name(variant.label)
        results[variant.label] = grid_results(
            run_variant(arguments, splits, variant, replace(grid, output_dir=str(folder)))
        )
        if epochs := arguments.self_pretrain_epochs:
            again = replace(grid, output_dir=str(folder / "after-self-pretraining"))
            results[variant.label]["self_pretrained"] = grid_results(
                run_variant(arguments, splits, variant, again, epochs)
            )
        if process_state().is_main_process:
            facts = {"task": arguments.task_name, "comparison": arguments.comparison}
            facts["complete"] = len(results) == len(list(arguments.variants()))
            facts |= {"length": length, "rows": {name: len(examples) for name, examples in splits.items()}}
            write_report(
                top,
                f"{arguments.task_name}: {arguments.comparison}",
                f"Sequences of up to {length:,} tokens; {', '.join(f'{n:,} for {s}' for s, n in facts['rows'].items())}. "
                f"{arguments.num_hidden_layers} layers, width {arguments.hidden_size}.",
                results,
                facts,
                against="whole" if arguments.ablate else None,
                published={
                    variant.label: text for variant in arguments.variants() if (text := arguments.published(variant))
                },
                published_measures={
                    variant.label: published_incoherence(arguments.task_name, variant.settings)
                    for variant in arguments.variants()
                    if variant.mixer == "s3" and not variant.noise
                },
            )
            save_arguments(top / "arguments.yaml", arguments, grid)
    return read_report(top)


if __name__ == "__main__":
    run_as_script(main)
