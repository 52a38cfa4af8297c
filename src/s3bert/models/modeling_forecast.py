"""The S3 forecaster: blocks of S3BERT's smoother and skeleton attention, and Fourier extrapolation.

    past values -> standardisation per window and variable -> blocks (value embedding, S3 with a residual)
    -> Fourier extrapolation from the context over the horizon -> variables -> undone standardisation

Wang et al., Section IV-B, Algorithms 3 and 4. B batch, L context, H horizon, C variables, D hidden size.
"""

import math
from dataclasses import dataclass

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils.generic import ModelOutput

from .configuration_forecast import S3ForecastConfig
from .mixer_s3 import S3Mixer
from .numerics import at_least_float32
from .smoother import FLOAT32_PARTS


@dataclass
class S3ForecastOutput(ModelOutput):
    """
    Args:
        loss: mean squared error over observed future values, on the scale of the values; where `future_values` is given.
        prediction_outputs: (B, H, C), on the scale of the values.
        loc, scale: (B, 1, C), what each window's variables were standardised with.
    """

    loss: torch.Tensor | None = None
    prediction_outputs: torch.Tensor | None = None
    loc: torch.Tensor | None = None
    scale: torch.Tensor | None = None


def standardise(
    values: torch.Tensor, observed: torch.Tensor, variance_offset: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Values (B, L, C) less their mean, divided by sqrt(variance + offset), over observed steps; zero where not observed.

    The variance is the unbiased one, as in Algorithm 3.

    Returns:
        The standardised values, the means and the divisors, (B, 1, C). A variable that was observed once or never has variance 0,
        one that never was mean 0, too.
    """
    count = observed.sum(1, keepdim=True)
    values = torch.where(observed, values, 0.0)
    loc = values.sum(1, keepdim=True) / count.clamp(min=1)
    centred = torch.where(observed, values - loc, 0.0)
    scale = (centred.square().sum(1, keepdim=True) / (count - 1).clamp(min=1) + variance_offset).sqrt()
    return centred / scale, loc, scale


def fourier_extrapolation(states: torch.Tensor, num_harmonics: int, horizon: int) -> torch.Tensor:
    """States (B, L, D) cut to their mean and lowest frequencies, continued to (B, L + horizon, D) (Algorithm 4).

    sum_k |X_k| cos(2 pi k t / L + arg X_k) for t = 0 .. L + horizon - 1, X the discrete Fourier transform over the context.
    It is linear in the states, a product with two small matrices, and so takes any dtype and device.

    Args:
        num_harmonics: frequencies 1/L .. num_harmonics/L, at most L/2 of them.
    """
    length, exact = states.shape[1], at_least_float32(states)
    harmonics = torch.arange(num_harmonics + 1, device=states.device)
    steps = torch.arange(length + horizon, device=states.device)
    # Whole turns are taken off before the angle is rounded: far steps are as exact as near ones.
    angles = (steps[:, None] * harmonics % length).to(exact) * (2 * math.pi / length)  # (L + horizon, K)
    basis = torch.cat([angles.cos(), angles.sin()], 1)
    # Of two conjugate frequencies one stands for both; 0 and L/2 have no other.
    weights = torch.where((harmonics == 0) | (2 * harmonics == length), 1, 2).to(exact) / length
    transform = (basis[:length] * weights.repeat(2)).T  # (2 K, L)
    with torch.autocast(states.device.type, enabled=False):
        return (basis @ (transform @ exact)).to(states.dtype)


class S3ForecastBlock(GradientCheckpointingLayer):
    """An embedding of three neighbouring steps, then S3 with a residual; (B, L, inputs) -> (B, L, D)."""

    def __init__(self, config: S3ForecastConfig, inputs: int, layer_index: int):
        super().__init__()
        self.embedding = nn.Conv1d(inputs, config.hidden_size, 3, padding=1, bias=False)
        self.mixer = S3Mixer(
            config.hidden_size,
            config.num_attention_heads,
            config.context_length,
            config.attention_probs_dropout_prob,
            num_segments=config.num_segments,
            num_row_samples=config.num_row_samples,
            num_column_samples=config.num_column_samples,
            smoother_norm=config.smoother_norm,
            smoother_dropout_prob=config.smoother_dropout_prob,
            landmark_seed=config.landmark_seed,
            layer_index=layer_index,
        )
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, values: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        states = self.dropout(self.embedding(values.mT).mT)
        return states + self.dropout(self.mixer(states, mask))


class S3ForecastPreTrainedModel(PreTrainedModel):
    """Linear and convolution layers start normal(0, initializer_range), biases at 0; the smoothers' filters keep the values they draw."""

    config_class = S3ForecastConfig
    config: S3ForecastConfig
    base_model_prefix = "model"
    main_input_name = "past_values"
    supports_gradient_checkpointing = True
    accepts_loss_kwargs = False
    _no_split_modules = ["S3ForecastBlock"]
    _keep_in_fp32_modules_strict = list(FLOAT32_PARTS)


class S3ForecastModel(S3ForecastPreTrainedModel):
    """Forecasts the next H steps of C variables from the last L; missing values and other series in a batch have no influence.

    Examples:
        >>> import torch
        >>> from s3bert import S3ForecastConfig, S3ForecastModel
        >>> config = S3ForecastConfig(context_length=48, prediction_length=24, num_input_channels=2)
        >>> model = S3ForecastModel(config)
        >>> model(past_values=torch.randn(4, 48, 2)).prediction_outputs.shape
        torch.Size([4, 24, 2])
    """

    def __init__(self, config: S3ForecastConfig):
        super().__init__(config)
        channels = 1 if config.channel_independent else config.num_input_channels
        widths = [channels] + [config.hidden_size] * (config.num_hidden_layers - 1)
        self.blocks = nn.ModuleList(S3ForecastBlock(config, width, i) for i, width in enumerate(widths))
        self.projection = nn.Linear(config.hidden_size, channels)
        self.post_init()

    def forward(
        self,
        past_values: torch.Tensor,
        past_observed_mask: torch.Tensor | None = None,
        future_values: torch.Tensor | None = None,
        future_observed_mask: torch.Tensor | None = None,
    ) -> S3ForecastOutput:
        """
        Args:
            past_values: (B, L, C). past_observed_mask: the same shape, true or 1 where a value was observed; what stands at
                the others has no influence, NaN included. By default all were.
            future_values: (B, H, C), for the loss. future_observed_mask: which of them count; by default all that are not NaN.

        Raises:
            ValueError: another number of steps or variables than the configuration's, of past or of future values; a mask of another shape
                than its values.
        """
        config = self.config
        expected = (config.context_length, config.num_input_channels)
        if past_values.dim() != 3 or tuple(past_values.shape[1:]) != expected:
            raise ValueError(
                f"past_values has shape {tuple(past_values.shape)}; the model takes (batch, {expected[0]} steps, "
                f"{expected[1]} variables)."
            )
        _check_mask("past_observed_mask", past_observed_mask, past_values)
        observed = ~past_values.isnan() if past_observed_mask is None else past_observed_mask.bool()
        values, loc, scale = standardise(past_values, observed, config.variance_offset)
        if config.channel_independent:
            values, observed = (part.mT.flatten(0, 1).unsqueeze(-1) for part in (values, observed))  # (B C, L, 1)
        seen = observed.any(-1)  # (B, L): steps with anything to say
        # A mask of all ones changes nothing, but where it can be read for free, none is faster.
        on_host = seen.device.type == "cpu" and not torch.compiler.is_compiling()
        mask = None if on_host and bool(seen.all()) else seen
        states = values.to(self.projection.weight.dtype)
        for block in self.blocks:
            states = block(states, mask)
        forecast = fourier_extrapolation(states, config.num_harmonics, config.prediction_length)
        forecast = self.projection(forecast[:, config.context_length :])  # (B, H, C) or (B C, H, 1)
        if config.channel_independent:
            forecast = forecast.squeeze(-1).unflatten(0, (-1, config.num_input_channels)).mT
        forecast = forecast * scale + loc
        loss = None
        if future_values is not None:
            if future_values.shape != forecast.shape:
                raise ValueError(
                    f"future_values has shape {tuple(future_values.shape)}; the forecast has {tuple(forecast.shape)}: "
                    "(batch, steps ahead, variables)."
                )
            _check_mask("future_observed_mask", future_observed_mask, future_values)
            counts = ~future_values.isnan() if future_observed_mask is None else future_observed_mask.bool()
            errors = torch.where(counts, future_values - forecast, 0.0)
            loss = errors.square().sum() / counts.sum().clamp(min=1)
        return S3ForecastOutput(loss=loss, prediction_outputs=forecast, loc=loc, scale=scale)


def _check_mask(name: str, mask: torch.Tensor | None, values: torch.Tensor) -> None:
    if mask is not None and mask.shape != values.shape:
        raise ValueError(f"{name} has shape {tuple(mask.shape)}: give it that of the values, {tuple(values.shape)}.")


__all__ = ["S3ForecastModel", "S3ForecastOutput", "S3ForecastPreTrainedModel"]
