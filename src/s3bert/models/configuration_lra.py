"""Configuration of the Long Range Arena encoder: two small layers around any mixer."""

from dataclasses import field
from typing import Any

from huggingface_hub.dataclasses import strict

from .configuration_checks import CheckedConfig


@strict
class LraConfig(CheckedConfig):
    """The defaults are the encoder of Nystromformer's LRA code, which the S3Attention paper uses.

    Args:
        mixer: a name in `mixers.MIXERS`. mixer_settings: its own settings by name. (S3's `smoother_dropout` of folders saved before it
            had S3BERT's name becomes `smoother_dropout_prob`.)
        max_position_embeddings: tokens of the task's longest sequence.
        classifier_size: of the classifier's hidden layer.
        hidden_dropout_prob: after each mixer and in the feed-forward. embedding_dropout_prob: after the embeddings; None for the
            same rate. attention_probs_dropout_prob: given to the mixer.
        initializer_range: standard deviation of the embeddings' first values.
        pair_inputs: two sequences an example, encoded alike and classified together (Retrieval).

    Raises (wrapped by `huggingface_hub`'s strict dataclass errors):
        ValueError: a count under 1, heads that do not divide the hidden size, a rate outside 0..1; a keyword that is nearly a
            field's name (raised as it is).

    Examples:
        >>> from s3bert import LraConfig
        >>> config = LraConfig(mixer="nystrom", mixer_settings={"num_landmarks": 32}, max_position_embeddings=1024)
        >>> config.mixer, config.hidden_size
        ('nystrom', 64)
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
    embedding_dropout_prob: float | int | None = None
    attention_probs_dropout_prob: float | int = 0.1
    initializer_range: float | int = 0.02
    layer_norm_eps: float | int = 1e-5
    pair_inputs: bool = False
    pad_token_id: int | None = 0
    tie_word_embeddings: bool = True
    auto_map: dict[str, str] = field(
        default_factory=lambda: {
            "AutoConfig": "configuration_lra.LraConfig",
            "AutoModel": "modeling_lra.LraModel",
            "AutoModelForMaskedLM": "modeling_lra.LraForMaskedLM",
            "AutoModelForSequenceClassification": "modeling_lra.LraForSequenceClassification",
        }
    )

    def __post_init__(self, **kwargs):
        if self.mixer == "s3" and "smoother_dropout" in self.mixer_settings:
            settings = dict(self.mixer_settings)
            self.mixer_settings = {"smoother_dropout_prob": settings.pop("smoother_dropout"), **settings}
        super().__post_init__(**kwargs)

    def validate_sizes(self):
        """Counts are positive, and heads divide the hidden size."""
        sizes = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
        self.check_counts(*sizes, "classifier_size", "max_position_embeddings")
        self.check_division("num_attention_heads", "heads")


__all__ = ["LraConfig"]
