"""What a comparison under one budget is asked for: arguments of a command, which import neither torch nor transformers."""

import itertools
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from s3bert.arguments import RECIPES, Arguments, find_recipe, option, override_config, read_entries
from s3bert.files import file_name


Setting = tuple[float, float]  # peak learning rate, share of the steps that warm up


class Variant(NamedTuple):
    """One of configs/model, with changes to it as `override_config` reads them."""

    name: str
    changes: str


@dataclass
class Budget(Arguments):
    """Budget: what the comparison may cost, and where its data is; one of tokens and minutes bounds each model's pretraining."""

    output_dir: str = option(free=True, help="folder of the comparison")
    models: list[str] = option(
        free=True,
        help="models, each a name, with changes to its configuration after a colon, and what to call it before a =: "
        "best=s3bert:smoother_norm=layer",
        default_factory=lambda: ["bert", "fnet", "ponet", "s3bert"],
    )
    untrained: bool = option(
        free=True,
        help="also finetune each model as it is before pretraining, in a row of its own: what pretraining is worth",
        default=False,
    )
    size: str = option(help="which of configs/model/NAME-SIZE.json: base, small, mini, tiny", default="mini")
    dataset_name: str = option(help="corpus: a data source, or a folder that is prepared", default="synthetic")
    tokenizer_name: str | None = option(help="tokenizer of the corpus; trained on it by default", default=None)
    vocab_size: int = option(
        least=1, most=1_000_000, help="word pieces of a tokenizer trained on the corpus", default=8192
    )
    max_seq_length: int = option(least=8, help="tokens of a block of the corpus", default=128)
    max_train_samples: int | None = option(
        least=1, help="use only the first so many rows of each source of text", default=None
    )
    pretrain_config: str = option(help="arguments of `s3bert pretrain` that all models share", default="")
    tokens: int | None = option(least=1, help="tokens each model is pretrained on", default=None)
    minutes: float | None = option(
        above=0, help="minutes each model is pretrained for, at the speed it shows", default=None
    )
    seed: int = option(least=0, below=2**32, help="of initial weights, data order and masks in pretraining", default=42)
    learning_rates: list[float] = option(
        above=0,
        help="peak learning rates to try on each model, with each of warmup_shares; the lowest held-out loss decides",
        default_factory=lambda: [1e-3],
    )
    warmup_shares: list[float] = option(
        least=0, most=1, help="shares of a pretraining's steps to try as its warm-up", default_factory=lambda: [0.1]
    )
    search_share: float = option(
        above=0, most=1, help="share of the pretraining that each of several settings is tried for", default=0.1
    )
    glue_config: str = option(help="arguments of `s3bert glue` that all models share", default="")
    glue_dataset_name: str = option(help="a Hub dataset, or a folder with one subfolder a task", default="nyu-mll/glue")
    task_name: list[str] = option(
        help="GLUE tasks; `all` for those of Table 3 whose data is there, `none` for pretraining alone",
        default_factory=lambda: ["all"],
    )
    jobs: int = option(
        free=True, least=1, help="jobs side by side; they share the CPU's cores, or each has OMP_NUM_THREADS", default=1
    )
    num_processes: int = option(
        least=1,
        help="processes of each pretraining, by accelerate launch: one for each GPU; 1 for none of it",
        default=1,
    )
    pack: bool = option(
        free=True,
        help="train nothing, but put the packed corpus and the GLUE rows into output_dir, for a machine without a network: "
        "carry the folder there, and give the same command without --pack",
        default=False,
    )
    max_pack_megabytes: float = option(free=True, above=0, help="what the folder may take for that", default=60.0)

    def __post_init__(self):
        super().__post_init__()
        if (self.tokens is None) == (self.minutes is None):
            raise ValueError("Give one of --tokens and --minutes: what the pretraining of a model may cost.")
        if len(self.variants) < len(self.models):
            raise ValueError(f"models = {' '.join(self.models)}: one is named twice.")
        self._check_names()
        from transformers import AutoConfig  # not at the top: `--help` has no need of it

        for model, variant in self.variants.items():
            if not self.model_file(model).exists():
                files = (RECIPES / "model").glob(f"*-{self.size}.json")
                there = ", ".join(sorted(file.stem.removesuffix(f"-{self.size}") for file in files))
                raise ValueError(
                    f"models: no {self.model_file(model)}. Of size {self.size} there is: {there or 'nothing'}."
                )
            if variant.changes:
                override_config(AutoConfig.from_pretrained(self.model_file(model)), variant.changes)
        if "none" in self.task_name and len(self.task_name) > 1:
            raise ValueError(f"task_name = {' '.join(self.task_name)}: give none, or tasks.")
        for name in ("pretrain_config", "glue_config")[: 1 + self.finetunes]:
            try:
                setattr(self, name, str(find_recipe(getattr(self, name))))
            except FileNotFoundError as error:
                raise ValueError(f"{name}: {error}") from error
        self.steps(1)  # a recipe that cannot be read is to be known now

    def _check_names(self) -> None:
        """A name tells its model from all others, in tables and as a folder's."""
        rows = [*self.variants, *(f"untrained {model}" for model in self.variants)]
        for model, variant in self.variants.items():
            own = model not in (variant.name, f"{variant.name}:{variant.changes}")
            if own and (not variant.changes or (RECIPES / "model" / f"{model}-{self.size}.json").exists()):
                raise ValueError(
                    f"models: {model}= is a name for a model with changed settings that no other model has, as "
                    f"best={variant.name}:{variant.changes or 'hidden_act=relu'}."
                )
            if not file_name(model).strip("."):
                raise ValueError(f"models: {model!r} is no name of a folder; call it otherwise, as best=.")
            if same := [row for row in rows if row != model and file_name(row) == file_name(model)]:
                raise ValueError(
                    f"models: {model} and {same[0]} would share the folder {file_name(model)}; call one of them otherwise, as "
                    f"best={variant.name}:{variant.changes}."
                )

    @property
    def finetunes(self) -> bool:
        """Whether there is more to do than to pretrain."""
        return self.task_name != ["none"]

    @property
    def settings(self) -> list[Setting]:
        """Those to choose from for each model."""
        return list(itertools.product(self.learning_rates, self.warmup_shares))

    @property
    def variants(self) -> dict[str, Variant]:
        """What each model is, by what it is called."""
        found = {}
        for model in self.models:
            called, colon, changes = model.partition(":")
            called, _, name = called.rpartition("=")
            found[called or name + colon + changes] = Variant(name, changes)
        return found

    @property
    def untrained_models(self) -> dict[str, str]:
        """The models' rows without pretraining, and the model of each."""
        return {f"untrained {model}": model for model in self.variants} if self.untrained else {}

    def model_file(self, model: str) -> Path:
        return RECIPES / "model" / f"{self.variants[model].name}-{self.size}.json"

    def files(self) -> dict[str, Path]:
        """The files that say what is done, by their names in the comparison's folder."""
        files = [self.model_file(model) for model in self.variants]
        recipes = {"pretrain.yaml": self.pretrain_config} | ({"glue.yaml": self.glue_config} if self.finetunes else {})
        return {file.name: file for file in files} | {name: Path(file) for name, file in recipes.items()}

    def steps(self, tokens: float) -> int:
        """Optimiser steps that read so many tokens; packed blocks have no padding."""
        sequences = self._shared("per_device_train_batch_size", 8) * self._shared("gradient_accumulation_steps", 1)
        sequences = self._shared("global_batch_size", sequences * self.num_processes)
        return max(1, round(tokens / (sequences * self.max_seq_length)))

    @property
    def short_lengths(self) -> list[int]:
        """Of the sequences that a pretraining's first steps read, one after the other."""
        lengths = read_entries(Path(self.pretrain_config)).get("short_seq_length") or []
        return lengths if isinstance(lengths, list) else [lengths]

    @property
    def short_share(self) -> float:
        """Share of a pretraining's steps that read short sequences."""
        return self._shared("short_seq_share", 0.3) if self.short_lengths else 0.0

    def _shared(self, name: str, default: float) -> Any:
        """A number of the pretraining's recipe.

        Raises:
            ValueError: it is none.
        """
        value = read_entries(Path(self.pretrain_config)).get(name)
        if value is not None and not isinstance(value, int | float):
            raise ValueError(f"{self.pretrain_config}: {name} = {value!r} must be a number.")
        return default if value is None else value

    def command(self, name: str, *words: object) -> tuple[str, ...]:
        """A command of this project with arguments; pretraining by accelerate where there are several processes."""
        launcher = ["-m", "accelerate.commands.launch", "--num_processes", self.num_processes]
        several = self.num_processes > 1 and name == "pretrain_mlm"
        return tuple(
            map(str, (sys.executable, *(launcher if several else []), "-m", f"s3bert.commands.{name}", *words))
        )

    def in_words(self, corpus: str) -> str:
        cost = f"{self.tokens:,} tokens" if self.minutes is None else f"{self.minutes:g} minutes"
        short = ""
        if self.short_lengths:
            lengths = ", then ".join(map(str, self.short_lengths))
            short = f", the first {self.short_share:.0%} of the steps on sequences of {lengths}"
        times = f" Times are those of {self.jobs} jobs side by side." if self.jobs > 1 else ""
        blocks = f"blocks of {self.max_seq_length} tokens{short}, seed {self.seed}"
        return f"Size {self.size}; each model pretrained for {cost} on {corpus}, {blocks}.{times}"
