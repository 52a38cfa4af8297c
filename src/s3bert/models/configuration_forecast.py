"""Configuration of the S3 forecaster."""

from dataclasses import field
from math import inf

from huggingface_hub.dataclasses import strict

from .configuration_checks import CheckedConfig


@strict
class S3ForecastConfig(CheckedConfig):
    """Long-term forecasting with S3Attention (Wang et al., Section IV-B, Algorithms 3 and 4).

    Args:
        context_length: L, time steps the model reads. prediction_length: H, time steps it forecasts.
        num_input_channels: C, variables of a series.
        num_harmonics: lowest frequencies, beside the mean, that are continued beyond the context.
        channel_independent: each variable is a sequence of its own, all with the same weights; not in the paper.
        num_segments, num_row_samples, num_column_samples: r, s1, s2.
        variance_offset: added to a window's variance before its root divides the window. With the paper's 1, windows quieter than
            the series as a whole stay quiet; with 1e-5 all become alike, as in most later models.
        smoother_norm: "batch" (the paper's) or "layer". landmark_seed: of the sampled rows and columns.
        channel_names, channel_means, channel_deviations: of the series a model was trained on; values come to it less the means,
            divided by the deviations, and so do forecasts. frequency: the step between its dates, as pandas calls it,
            or "3 months".
        hidden_dropout_prob: after the embedding and after each block. attention_probs_dropout_prob: on attention weights.
            smoother_dropout_prob: after the convolution stem.

    Raises (wrapped by `huggingface_hub`'s strict dataclass errors):
        ValueError: a count under 1; more harmonics than the context holds; heads or segments that do not divide the hidden
            size; a rate outside 0..1; an offset that is not positive; a keyword that is nearly a field's name (raised as it is).

    Examples:
        >>> from s3bert import S3ForecastConfig
        >>> config = S3ForecastConfig(context_length=48, prediction_length=24, num_input_channels=2)
        >>> config.num_harmonics, config.hidden_size
        (8, 64)
    """

    model_type = "s3-forecast"
    context_length: int = 96
    prediction_length: int = 96
    num_input_channels: int = 7
    hidden_size: int = 64
    num_hidden_layers: int = 2
    num_attention_heads: int = 4
    num_segments: int = 8
    num_row_samples: int = 8
    num_column_samples: int = 8
    num_harmonics: int = 8
    variance_offset: float | int = 1.0
    smoother_norm: str = "batch"
    channel_independent: bool = False
    hidden_dropout_prob: float | int = 0.05
    attention_probs_dropout_prob: float | int = 0.05
    smoother_dropout_prob: float | int = 0.05
    landmark_seed: int = 0
    channel_names: list[str] | None = None
    channel_means: list[float] | None = None
    channel_deviations: list[float] | None = None
    frequency: str | None = None
    initializer_range: float | int = 0.02
    auto_map: dict[str, str] = field(
        default_factory=lambda: {
            "AutoConfig": "configuration_forecast.S3ForecastConfig",
            "AutoModel": "modeling_forecast.S3ForecastModel",
        }
    )

    def validate_sizes(self):
        """Counts are positive, divisors divide, and windows hold the harmonics."""
        counts = ("context_length", "prediction_length", "num_input_channels", "hidden_size", "num_hidden_layers")
        self.check_counts(*counts, "num_attention_heads", "num_segments", "num_row_samples", "num_column_samples")
        self.check_division("num_attention_heads", "heads")
        self.check_division("num_segments", "segments")
        if not 0 <= self.num_harmonics <= self.context_length // 2:
            raise ValueError(
                f"num_harmonics = {self.num_harmonics}: a context of {self.context_length} steps has 0 to "
                f"{self.context_length // 2}."
            )
        if not 0 < self.variance_offset < inf:
            raise ValueError(
                f"variance_offset = {self.variance_offset}: must be positive and finite, or a constant window divides by zero."
            )


__all__ = ["S3ForecastConfig"]
