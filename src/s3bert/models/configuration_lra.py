"""Configuration of the Long Range Arena encoder: two small layers around any mixer."""

from dataclasses import field
from typing import Any

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig


@strict
class LraConfig(PreTrainedConfig):
    """The defaults are the encoder of Nystromformer's LRA code, which the S3Attention paper uses.

    Args:
        mixer: a name in `mixers.MIXERS`. mixer_settings: its own settings by name.
        max_position_embeddings: tokens of the task's longest sequence.
        classifier_size: of the classifier's hidden layer.
        hidden_dropout_prob: after the embeddings, after each mixer and in the feed-forward. attention_probs_dropout_prob:
            given to the mixer.
        initializer_range: standard deviation of the embeddings' first values.
        pair_inputs: two sequences an example, encoded alike and classified together (Retrieval).

    Raises (wrapped by `huggingface_hub`'s strict dataclass errors):
        ValueError: a count under 1, heads that do not divide the hidden size, a rate outside 0..1.
    """

    model_type = "s3bert-lra"

    mixer: str = "s3"
    mixer_settings: dict[str, Any] = field(default_factory=dict)
    vocab_size: int = 257
    hidden_size: int = 64
    num_hidden_layers: int = 2
    num_attention_heads: int = 2
    intermediate_size: int = 128
    classifier_size: int = 128
    max_position_embeddings: int = 4096
    hidden_dropout_prob: float | int = 0.1
    attention_probs_dropout_prob: float | int = 0.1
    initializer_range: float | int = 0.02
    layer_norm_eps: float | int = 1e-5
    pair_inputs: bool = False
    pad_token_id: int | None = 0
    tie_word_embeddings: bool = True

    def validate_sizes(self):
        """Counts are positive, heads divide the hidden size, rates are probabilities."""
        sizes = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
        for name in (*sizes, "classifier_size", "max_position_embeddings"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}: must be at least 1.")
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size = {self.hidden_size} cannot be split into num_attention_heads = {self.num_attention_heads}."
            )
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} = {getattr(self, name)}: a dropout rate lies between 0 and 1.")


__all__ = ["LraConfig"]
