"""What the configurations of this package's encoders share: BERT's fields and auto classes.

Files of this folder are merged into the code of every saved model folder, so they import nothing of s3bert but each other.
"""

from typing import Literal

from huggingface_hub.dataclasses import strict

from .configuration_checks import CheckedConfig


# What stands after a model's name in its classes, for each auto class.
CLASS_SUFFIXES = {
    "AutoModel": "Model",
    "AutoModelForPreTraining": "ForMaskedLM",
    "AutoModelForMaskedLM": "ForMaskedLM",
    "AutoModelForSequenceClassification": "ForSequenceClassification",
    "AutoModelForTokenClassification": "ForTokenClassification",
    "AutoModelForQuestionAnswering": "ForQuestionAnswering",
    "AutoModelForMultipleChoice": "ForMultipleChoice",
}
# The counts that an encoder's weights are of.
ENCODER_SIZES = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "type_vocab_size",
)


def auto_map(model_type: str, name: str) -> dict[str, str]:
    """Every auto class, so that a folder saved from one head opens as any other with `trust_remote_code=True`."""
    classes = {auto: f"modeling_{model_type}.{name}{suffix}" for auto, suffix in CLASS_SUFFIXES.items()}
    return {"AutoConfig": f"configuration_{model_type}.{name}Config", **classes}


@strict
class EncoderConfig(CheckedConfig):
    """The fields that BERT has, meaning what they mean there; the defaults are the base size.

    Args:
        sparse_prediction: in training, the masked-LM decoder runs on labelled positions only and `logits` has a row
            for each of them.
        classifier_pooling: what `pooler_output`, which classifiers read, is projected from: "cls", BERT's, the first real token; "mean",
            the mean over the real tokens, where masked-LM pretraining has left more (as ModernBERT's field of this name).

    Raises (wrapped by `huggingface_hub`'s strict dataclass errors):
        ValueError: a size that does not divide, a rate outside 0..1, a count under 1, what else `CheckedConfig` refuses; a
            keyword that is nearly a field's name, or what other models call it, less than one label (raised as they are).
    """

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float | int = 0.1
    attention_probs_dropout_prob: float | int = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    initializer_range: float | int = 0.02
    layer_norm_eps: float | int = 1e-12
    pad_token_id: int | None = 0
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    classifier_dropout: float | int | None = None
    classifier_pooling: Literal["cls", "mean"] = "cls"
    tie_word_embeddings: bool = True
    sparse_prediction: bool = False

    def validate_sizes(self):
        """Counts are positive, and heads divide the hidden size."""
        self.check_counts(*ENCODER_SIZES)
        self.check_division("num_attention_heads", "heads")
