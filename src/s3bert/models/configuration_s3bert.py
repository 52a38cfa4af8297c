"""Configuration of S3BERT: BERT's fields and those of the smoother and of skeleton attention.

The names are the checkpoint format.
"""

from dataclasses import field
from typing import Literal

from huggingface_hub.dataclasses import strict

from .configuration_encoder import EncoderConfig, auto_map


@strict
class S3BertConfig(EncoderConfig):
    """Configuration of an S3BERT model; the defaults are the base size, and r = s1 = s2 = 8, which the paper has in Table 1.

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
        row_norm_init: first gain of row attention's LayerNorm: 1 in the paper; from 0 it grows as row attention learns.
        stem: "dense", the paper's, mixes all channels of three tokens; "pointwise" those of one; "depthwise" reads of three tokens each
            channel's own, which is faster.
        stem_activation, filter_init: "relu" and "normal" in the paper; "elu" and "uniform" in the authors' released program, where the
            stem is pointwise and `num_segments` is the hidden size.
        implementation: how S3Attention is computed; up to rounding the outputs are the same. "auto" picks an exact fast form by shapes
            and mode (fast_smoother.py, fast_attention.py); "direct" is the paper's order of operations; "export" has real matrix
            products in place of the FFT, for `torch.export` and ONNX: no complex numbers.

    A folder saved before `implementation` existed loads: `fourier_impl="matmul"` becomes "export", direct forms of both smoother and
    attention become "direct", every other choice of forms "auto".

    Raises (wrapped by `huggingface_hub`'s strict dataclass errors):
        ValueError: a size that does not divide, a rate outside 0..1, a count under 1, both attentions switched off; a
            keyword that is nearly a field's name, or what other models call it (raised as it is).

    Examples:
        >>> from s3bert import S3BertConfig
        >>> config = S3BertConfig(hidden_size=256, num_attention_heads=4, max_position_embeddings=4096)
        >>> config.num_segments, config.landmark_length
        (8, 4096)
    """

    model_type = "s3bert"

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
    row_norm_init: float | int = 1.0
    stem: Literal["dense", "pointwise", "depthwise"] = "dense"
    stem_activation: Literal["relu", "elu"] = "relu"
    filter_init: Literal["normal", "uniform"] = "normal"
    implementation: Literal["auto", "direct", "export"] = "auto"
    auto_map: dict[str, str] = field(default_factory=lambda: auto_map("s3bert", "S3Bert"))

    def __post_init__(self, **kwargs):
        if self.landmark_length is None:
            self.landmark_length = self.max_position_embeddings
        forms = {kwargs.pop("attention_form", "auto"), kwargs.pop("smoother_form", "auto")}
        if kwargs.pop("fourier_impl", "fft") == "matmul":
            self.implementation = "export"
        elif forms == {"direct"}:
            self.implementation = "direct"
        super().__post_init__(**kwargs)

    def validate_segments_and_landmarks(self):
        """Counts are positive, and segments divide the hidden size."""
        self.check_counts("num_segments", "num_row_samples", "num_column_samples", "landmark_length")
        self.check_division("num_segments", "segments (r)")

    def validate_row_norm_init(self):
        """A first gain is a number from 0 to 1."""
        if not 0 <= self.row_norm_init <= 1:
            raise ValueError(f"row_norm_init = {self.row_norm_init}: a first gain lies between 0 and 1, the paper's.")

    def validate_attention_switches(self):
        """Row or column attention must stay: without both nothing mixes the tokens by content."""
        if not (self.use_row_attention or self.use_column_attention):
            raise ValueError(
                "use_row_attention and use_column_attention are both False: the layer would have no attention; "
                "switch off one at most."
            )


__all__ = ["S3BertConfig"]
