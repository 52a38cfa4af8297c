"""What this package's configurations check alike, with errors that help."""

from dataclasses import fields
from difflib import get_close_matches
from math import inf
from numbers import Integral
from typing import Literal

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig


@strict
class CheckedConfig(PreTrainedConfig):
    """A configuration that refuses slips of names and values; subclasses say which counts and divisions theirs has.

    Raises:
        ValueError: a keyword that is nearly a field's name, less than one label; wrapped by `huggingface_hub`'s strict dataclass
            errors, a dropout rate outside 0..1, an epsilon or initial range that is none, a padding token outside the vocabulary.
    """

    # Transformers declares the same, but what its annotation says is not checked.
    problem_type: Literal["regression", "single_label_classification", "multi_label_classification"] | None = None

    def __post_init__(self, **kwargs):
        # Transformers keeps unknown keywords silently; one that is nearly a field's name is a slip.
        names = [entry.name for entry in fields(self)]
        for name in kwargs:
            if close := get_close_matches(name, names, n=1, cutoff=0.85):
                raise ValueError(f"{type(self).__name__} has no field {name!r}. Did you mean {close[0]!r}?")
        super().__post_init__(**kwargs)

    @PreTrainedConfig.num_labels.setter  # type: ignore[attr-defined]
    def num_labels(self, number: int) -> None:
        """Transformers keeps as many names, `id2label`."""
        if not isinstance(number, Integral) or number < 1:
            raise ValueError(f"num_labels = {number!r}: give a number from 1 on; 1 is a regression.")
        PreTrainedConfig.num_labels.fset(self, number)

    def validate_labels(self):
        """One label at least has a name."""
        if not self.id2label:
            raise ValueError(f"id2label = {self.id2label}: name one label at least, or give num_labels.")

    def validate_scales(self):
        """LayerNorm's epsilon keeps a root from 0, and a deviation is not negative; neither is NaN or infinite."""
        epsilon, deviation = getattr(self, "layer_norm_eps", None), getattr(self, "initializer_range", None)
        if epsilon is not None and not 0 < epsilon < inf:
            raise ValueError(f"layer_norm_eps = {epsilon}: must be above 0, as 1e-12 is.")
        if deviation is not None and not 0 <= deviation < inf:
            raise ValueError(f"initializer_range = {deviation}: a standard deviation is 0 or more, as 0.02 is.")

    def validate_padding(self):
        """The padding token is one of the vocabulary."""
        token = getattr(self, "pad_token_id", None)
        if token is not None and not 0 <= token < self.vocab_size:
            raise ValueError(f"pad_token_id = {token}: give None or one of the vocabulary, 0..{self.vocab_size - 1}.")

    def validate_rates(self):
        """Dropout rates are probabilities."""
        for name in (entry.name for entry in fields(self)):
            if name.endswith(("dropout_prob", "_dropout")):
                rate = getattr(self, name)
                if rate is not None and not 0 <= rate <= 1:
                    raise ValueError(f"{name} = {rate}: a dropout rate lies between 0 and 1.")

    def check_counts(self, *names: str) -> None:
        for name in names:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}: must be at least 1.")

    def check_division(self, name: str, what: str) -> None:
        number = getattr(self, name)
        if self.hidden_size % number:
            divisors = [d for d in range(1, self.hidden_size + 1) if self.hidden_size % d == 0]
            nearest = sorted(sorted(divisors, key=lambda d: abs(d - number))[:4])
            raise ValueError(
                f"hidden_size = {self.hidden_size} cannot be split into {name} = {number} equal {what}: choose a "
                f"divisor of {self.hidden_size}, for example one of {nearest}, or another hidden_size."
            )
