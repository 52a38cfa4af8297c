"""What this package's configurations check alike, with errors that help."""

from dataclasses import fields
from difflib import get_close_matches

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig


@strict
class CheckedConfig(PreTrainedConfig):
    """A configuration that refuses slips of names and values; subclasses say which counts and divisions theirs has.

    Raises:
        ValueError: a keyword that is nearly a field's name; wrapped by `huggingface_hub`'s strict dataclass errors, a dropout rate
            outside 0..1.
    """

    def __post_init__(self, **kwargs):
        # Transformers keeps unknown keywords silently; one that is nearly a field's name is a slip.
        names = [entry.name for entry in fields(self)]
        for name in kwargs:
            if close := get_close_matches(name, names, n=1, cutoff=0.85):
                raise ValueError(f"{type(self).__name__} has no field {name!r}. Did you mean {close[0]!r}?")
        super().__post_init__(**kwargs)

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
