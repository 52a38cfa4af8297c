"""Configuration of FMMformer's language model: softmax, linear attention, a band, fast weights, and what FMMformer makes of them."""

from dataclasses import field
from itertools import pairwise
from typing import Literal

from huggingface_hub.dataclasses import strict

from .configuration_checks import CheckedConfig


@strict
class FmmConfig(CheckedConfig):
    """The defaults are the paper's WikiText-103 model with one linear kernel and a band of 20, but for its adaptive softmax.

    | attention | bandwidth | kernels |
    |---|---|---|
    | softmax | None | [] |
    | linear | 0 | ["elu"] |
    | fast weights | 0 | ["delta_elu"] |
    | band | 20 | [] |
    | FMMformer | 20 | ["elu"], ["elu", "elu_flip"], ["delta_elu"], ["delta_elu", "elu"] |

    Args:
        bandwidth: a token reads itself and the k - 1 before it by softmax; 0 for no band, None for all before it, softmax attention.
        kernels: of the far field, as `FmmAttention` names them.
        blend: of band and kernels: "sigmoid" is the paper's equation, "per_channel" its authors' program.
        attention_bias: the projections of attention have one.
        position_embeddings: "sinusoidal" ones do not end; "learned" ones are a table of `max_position_embeddings`.
        max_position_embeddings: tokens of a training sequence, which bound the length where positions are learned.
        adaptive_cutoffs: where the clusters of an adaptive softmax begin (Grave et al., 2017; torch's), in a vocabulary sorted from frequent to
            rare; none for a decoder that is the table of word embeddings. An adaptive softmax has weights of its own.
        adaptive_div_value: each cluster's width is the one before it divided by this.
        use_cache: `FmmModel` returns its state unless told otherwise.

    Raises (wrapped by `huggingface_hub`'s strict dataclass errors):
        ValueError: a count under 1, heads that do not divide the hidden size, an odd hidden size with sinusoidal positions, cutoffs that do
            not ascend within the vocabulary, kernels beside softmax; a rate outside 0..1; a keyword that is nearly a field's name (raised as it is).

    Examples:
        >>> from s3bert import FmmConfig
        >>> config = FmmConfig(bandwidth=0, kernels=["delta_elu"], vocab_size=33278)
        >>> config.num_hidden_layers, config.hidden_size
        (16, 128)
    """

    model_type = "fmmformer"
    keys_to_ignore_at_inference = ["past_key_values"]

    bandwidth: int | None = 20
    kernels: list[str] = field(default_factory=lambda: ["elu"])
    blend: Literal["sigmoid", "per_channel"] = "sigmoid"
    attention_bias: bool = False
    vocab_size: int = 267735
    hidden_size: int = 128
    num_hidden_layers: int = 16
    num_attention_heads: int = 8
    intermediate_size: int = 2048
    hidden_act: str = "relu"
    hidden_dropout_prob: float | int = 0.1
    attention_probs_dropout_prob: float | int = 0.0
    position_embeddings: Literal["sinusoidal", "learned"] = "sinusoidal"
    max_position_embeddings: int = 256
    adaptive_cutoffs: list[int] = field(default_factory=list)
    adaptive_div_value: float | int = 4.0
    initializer_range: float | int = 0.02
    layer_norm_eps: float | int = 1e-5
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    tie_word_embeddings: bool = True
    use_cache: bool = True
    auto_map: dict[str, str] = field(
        default_factory=lambda: {
            "AutoConfig": "configuration_fmm.FmmConfig",
            "AutoModel": "modeling_fmm.FmmModel",
            "AutoModelForCausalLM": "modeling_fmm.FmmForCausalLM",
        }
    )

    def validate_sizes(self):
        """Counts are positive, heads divide the hidden size, and sinusoids come in pairs."""
        sizes = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
        self.check_counts(*sizes, "max_position_embeddings")
        self.check_division("num_attention_heads", "heads")
        if self.position_embeddings == "sinusoidal" and self.hidden_size % 2:
            raise ValueError(
                f"hidden_size = {self.hidden_size}: sinusoidal positions are pairs of channels; give an even one."
            )

    def validate_attention(self):
        """Softmax attention has no kernels."""
        if self.bandwidth is None and self.kernels:
            raise ValueError(
                f"bandwidth = None and kernels = {self.kernels}: softmax attention to all tokens has no kernels; give kernels = [], "
                "or a bandwidth."
            )

    def validate_adaptive_softmax(self):
        """Clusters begin one after the other within the vocabulary."""
        ends = [0, *self.adaptive_cutoffs, self.vocab_size]
        if any(left >= right for left, right in pairwise(ends)):
            raise ValueError(
                f"adaptive_cutoffs = {self.adaptive_cutoffs}: give ascending places within 1..{self.vocab_size - 1}, the vocabulary's."
            )
        if not 1 <= self.adaptive_div_value ** len(self.adaptive_cutoffs) <= self.hidden_size:
            raise ValueError(
                f"adaptive_div_value = {self.adaptive_div_value}: give 1 for clusters of equal width, or more, but so that each of "
                f"{len(self.adaptive_cutoffs)} has a channel of {self.hidden_size}."
            )


__all__ = ["FmmConfig"]
