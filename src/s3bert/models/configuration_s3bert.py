"""Configuration of S3BERT: BERT's fields and those of the smoother and of skeleton attention.

The names are the checkpoint format. This file travels inside every saved model folder, so it imports nothing of s3bert.
"""

from dataclasses import field, fields
from difflib import get_close_matches
from typing import Literal

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig


def _auto_map() -> dict[str, str]:
    """Every auto class, so that a folder saved from one head opens as any other with `trust_remote_code=True`."""
    return {
        "AutoConfig": "configuration_s3bert.S3BertConfig",
        "AutoModel": "modeling_s3bert.S3BertModel",
        "AutoModelForPreTraining": "modeling_s3bert.S3BertForMaskedLM",
        "AutoModelForMaskedLM": "modeling_s3bert.S3BertForMaskedLM",
        "AutoModelForSequenceClassification": "modeling_s3bert.S3BertForSequenceClassification",
        "AutoModelForTokenClassification": "modeling_s3bert.S3BertForTokenClassification",
        "AutoModelForQuestionAnswering": "modeling_s3bert.S3BertForQuestionAnswering",
        "AutoModelForMultipleChoice": "modeling_s3bert.S3BertForMultipleChoice",
    }


@strict
class S3BertConfig(PreTrainedConfig):
    """Configuration of an S3BERT model; the defaults are the base size with the paper's r = s1 = s2 = 8.

    Fields that BERT has mean what they mean there. Of S3BERT's own:

    Args:
        num_segments: r, contiguous groups of channels averaged before the Fourier convolution; divides `hidden_size`.
        num_row_samples: s1, landmark tokens that row attention reads. Sequences of up to s1 tokens use all of theirs.
        num_column_samples: s2, channels of each head that column attention reads; all of them from the head size on.
        smoother_dropout_prob: dropout after the smoother's convolution stem.
        smoother_norm: "batch", the paper's BatchNorm per position over batch and channels, or "layer", LayerNorm over the
            channels, which knows neither batch nor position.
        landmark_sampling: "fixed" keeps the landmarks drawn at construction; "resample" draws fresh ones in every
            training forward and the fixed ones in evaluation.
        landmark_seed: seed of the private generator, together with the layer's number, that draws the landmarks.
        landmark_length: tokens of the sequences the landmarks were drawn for; `max_position_embeddings` at construction,
            and kept when a model is lengthened.
        use_fourier_convolution, use_convolution_stem, use_row_attention, use_column_attention: the paper's ablation
            (Table 7).
        sparse_prediction: in training, the masked-LM decoder runs on labelled positions only and `logits` has a row
            for each of them.
        fourier_impl: "fft", or "matmul" for real matrix products in its place: no complex numbers, for exporting; quadratic.
        attention_form, smoother_form: how the same numbers are computed. "auto" picks by shapes and mode; "direct" is the
            paper's order of operations; "skip_kv" and "low_rank", "short" and "folded" are exact faster ones (fast_s3.py).
            One that does not cover a call (adapters, hooks, holes in a mask) steps aside to one that does.

    Raises (wrapped by `huggingface_hub`'s strict dataclass errors):
        ValueError: a size that does not divide, a rate outside 0..1, a count under 1, both attentions switched off; a
            keyword that is nearly a field's name (raised as it is).
    """

    model_type = "s3bert"
    _auto_class = "AutoConfig"

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
    tie_word_embeddings: bool = True

    num_segments: int = 8
    num_row_samples: int = 8
    num_column_samples: int = 8
    smoother_dropout_prob: float | int = 0.1
    smoother_norm: Literal["batch", "layer"] = "batch"
    landmark_sampling: Literal["fixed", "resample"] = "fixed"
    landmark_seed: int = 0
    landmark_length: int | None = None
    use_fourier_convolution: bool = True
    use_convolution_stem: bool = True
    use_row_attention: bool = True
    use_column_attention: bool = True
    sparse_prediction: bool = False
    fourier_impl: Literal["fft", "matmul"] = "fft"
    attention_form: Literal["auto", "direct", "skip_kv", "low_rank"] = "auto"
    smoother_form: Literal["auto", "direct", "short", "folded"] = "auto"
    auto_map: dict[str, str] = field(default_factory=_auto_map)

    def __post_init__(self, **kwargs):
        # Transformers keeps unknown keywords in silence; one that is nearly a field's name is a slip.
        names = [entry.name for entry in fields(self)]
        for name in kwargs:
            if close := get_close_matches(name, names, n=1, cutoff=0.85):
                raise ValueError(f"S3BertConfig has no field {name!r}. Did you mean {close[0]!r}?")
        if self.landmark_length is None:
            self.landmark_length = self.max_position_embeddings
        super().__post_init__(**kwargs)

    def validate_sizes(self):
        """Counts are positive, and heads and segments divide the hidden size."""
        counts = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
        counts += (
            "max_position_embeddings",
            "type_vocab_size",
            "num_segments",
            "num_row_samples",
            "num_column_samples",
        )
        for name in (*counts, "landmark_length"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}: must be at least 1.")
        for name, what in (("num_attention_heads", "heads"), ("num_segments", "segments (r)")):
            number = getattr(self, name)
            if self.hidden_size % number:
                divisors = [d for d in range(1, self.hidden_size + 1) if self.hidden_size % d == 0]
                nearest = sorted(sorted(divisors, key=lambda d: abs(d - number))[:4])
                raise ValueError(
                    f"hidden_size = {self.hidden_size} cannot be split into {name} = {number} equal {what}: choose a "
                    f"divisor of {self.hidden_size}, for example one of {nearest}, or another hidden_size."
                )

    def validate_rates(self):
        """Dropout rates are probabilities."""
        for name in (
            "hidden_dropout_prob",
            "attention_probs_dropout_prob",
            "smoother_dropout_prob",
            "classifier_dropout",
        ):
            rate = getattr(self, name)
            if rate is not None and not 0 <= rate <= 1:
                raise ValueError(f"{name} = {rate}: a dropout rate lies between 0 and 1.")

    def validate_attention_switches(self):
        """Row or column attention must stay: without both nothing mixes the tokens by content."""
        if not (self.use_row_attention or self.use_column_attention):
            raise ValueError(
                "use_row_attention and use_column_attention are both False: the layer would have no attention; "
                "switch off one at most."
            )


__all__ = ["S3BertConfig"]
