"""DLinear (Zeng et al., "Are Transformers Effective for Time Series Forecasting?", AAAI 2023): two linear maps from past to future."""

import torch
from huggingface_hub.dataclasses import strict
from torch import nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from .configuration_checks import CheckedConfig
from .modeling_forecast import S3ForecastOutput


@strict
class DLinearConfig(CheckedConfig):
    """
    Args:
        context_length: L. prediction_length: H. kernel_size: steps of the moving average.

    Raises (wrapped by `huggingface_hub`'s strict dataclass errors):
        ValueError: the kernel is even.
    """

    model_type = "dlinear"

    context_length: int = 96
    prediction_length: int = 96
    kernel_size: int = 25

    def validate_kernel(self):
        """The moving average has a middle."""
        if self.kernel_size < 1 or self.kernel_size % 2 == 0:
            raise ValueError(f"kernel_size = {self.kernel_size}: give an odd number of steps.")


class DLinearModel(PreTrainedModel):
    """Trend, a moving average, and remainder of each variable, each through a linear map of its own; the sum is the forecast.

    All variables share the maps. They start as means over the context, as in the authors' program.
    """

    config_class = DLinearConfig
    config: DLinearConfig
    main_input_name = "past_values"
    accepts_loss_kwargs = False

    def __init__(self, config: DLinearConfig):
        super().__init__(config)
        self.trend = nn.Linear(config.context_length, config.prediction_length)
        self.remainder = nn.Linear(config.context_length, config.prediction_length)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.constant_(module.weight, 1 / self.config.context_length)
            nn.init.zeros_(module.bias)

    def forward(self, past_values: torch.Tensor, future_values: torch.Tensor | None = None) -> S3ForecastOutput:
        """Forecasts (B, H, C) of values (B, L, C); the loss is the mean squared error."""
        values, side = past_values.mT, self.config.kernel_size // 2
        trend = F.avg_pool1d(F.pad(values, (side, side), mode="replicate"), self.config.kernel_size, 1)
        forecast = (self.trend(trend) + self.remainder(values - trend)).mT
        loss = None if future_values is None else F.mse_loss(forecast, future_values)
        return S3ForecastOutput(loss=loss, prediction_outputs=forecast)


__all__ = ["DLinearConfig", "DLinearModel"]
