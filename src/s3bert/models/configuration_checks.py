"""What this package's configurations check alike, with errors that help."""

from dataclasses import fields
from difflib import get_close_matches
from math import inf
from numbers import Integral
from typing import Literal

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig


# What other models call our fields.
_NAMES_ELSEWHERE = {
    "hidden_size": "d_model dim embed_dim embedding_dim hidden_dim model_dim n_embd",
    "num_hidden_layers": "depth encoder_layers n_layer n_layers num_encoder_layers num_layers",
    "num_attention_heads": "encoder_attention_heads n_head n_heads nhead num_heads",
    "intermediate_size": "d_ff dim_feedforward encoder_ffn_dim ffn_dim ffn_hidden_size hidden_dim n_inner",
    "hidden_act": "activation activation_function hidden_activation",
    "hidden_dropout_prob": "dropout dropout_rate dropout_prob embd_pdrop resid_pdrop",
    "attention_probs_dropout_prob": "attention_dropout attention_probs_dropout attn_dropout attn_pdrop",
    "max_position_embeddings": "max_seq_len max_seq_length max_sequence_length n_ctx n_positions",
    "type_vocab_size": "num_token_types",
    "layer_norm_eps": "layer_norm_epsilon norm_eps norm_epsilon",
    "initializer_range": "init_std",
    "num_segments": "segments",
    "num_row_samples": "num_landmarks row_samples",
    "num_column_samples": "column_samples",
}


@strict
class CheckedConfig(PreTrainedConfig):
    """A configuration that refuses slips of names and values; subclasses say which counts and divisions theirs has.

    Raises:
        ValueError: a keyword that is nearly a field's name, or what other models call that field; less than one label; wrapped by `huggingface_hub`'s strict dataclass
            errors, a dropout rate outside 0..1, an epsilon or initial range that is none, a padding token outside the vocabulary.
    """

    # Transformers declares the same, but what its annotation says is not checked.
    problem_type: Literal["regression", "single_label_classification", "multi_label_classification"] | None = None

    def __post_init__(self, **kwargs):
        # Transformers keeps unknown keywords as attributes, silently; one that means a field would change nothing.
        names = [entry.name for entry in fields(self)]
        for name in kwargs:
            meant = [own for own, others in _NAMES_ELSEWHERE.items() if own in names and name in others.split()]
            if meant := meant or get_close_matches(name, names, n=1, cutoff=0.85):
                known = " or ".join(map(repr, meant))
                raise ValueError(f"{type(self).__name__} has no field {name!r}. Did you mean {known}?")
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
