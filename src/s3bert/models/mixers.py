"""Token mixers by name, behind one contract, for encoders that exchange nothing else.

    Mixer(hidden_size, num_heads, max_length, dropout, **its own settings)
    forward(hidden states (B, S, H), mask (B, S) or None) -> mixed states (B, S, H), zero at padding

The mask is True at real tokens. What lies under it never matters, nor how much padding there is; a sequence may have any
length up to `max_length`. A new mixer is one file and one entry of `MIXERS`.
"""

import difflib
import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from .mixer_fmm import FmmAttention
from .mixer_fourier import FourierMixer
from .mixer_kernelized import KernelizedAttention, SkyformerAttention
from .mixer_linear import LinearAttention
from .mixer_linformer import LinformerAttention
from .mixer_nystrom import NystromAttention
from .mixer_performer import PerformerAttention
from .mixer_ponet import PoolingMixer
from .mixer_s3 import SkeletonAttention, Smoother
from .mixer_softmax import SoftmaxAttention
from .numerics import zero_padding


class S3Mixer(nn.Module):
    """S3Attention: S3BERT's smoother and skeleton attention, and the output projection.

    Args:
        hidden_size, num_heads, max_length, dropout: the contract's; dropout acts on both attentions' weights.
        num_segments, num_row_samples, num_column_samples: r, s1, s2. smoother_dropout: after the convolution stem.
        smoother_norm: "batch" or "layer". use_...: Table 7's switches. landmark_seed: of the sampled tokens and channels.
        layer_index: the layer's number.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        max_length: int,
        dropout: float = 0.0,
        num_segments: int = 8,
        num_row_samples: int = 8,
        num_column_samples: int = 8,
        smoother_dropout: float = 0.0,
        smoother_norm: str = "batch",
        use_fourier_convolution: bool = True,
        use_convolution_stem: bool = True,
        use_row_attention: bool = True,
        use_column_attention: bool = True,
        landmark_seed: int = 0,
        layer_index: int = 0,
    ):
        super().__init__()
        self.smoother = Smoother(
            hidden_size,
            num_segments,
            max_length,
            norm=smoother_norm,
            dropout=smoother_dropout,
            use_fourier_convolution=use_fourier_convolution,
            use_convolution_stem=use_convolution_stem,
        )
        self.attention = SkeletonAttention(
            hidden_size,
            num_heads,
            num_row_samples,
            num_column_samples,
            max_length,
            use_row_attention=use_row_attention,
            use_column_attention=use_column_attention,
            landmark_seed=landmark_seed,
            layer_index=layer_index,
            dropout=dropout,
        )
        self.output = nn.Linear(hidden_size, hidden_size)

    def forward(self, hidden_states: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """(B, S, H) -> (B, S, H), zero at padding."""
        projected, _ = self.attention(self.smoother(hidden_states, mask), mask, lambda: self.output)
        return zero_padding(projected, mask)


class PoNetMixer(nn.Module):
    """PoNet's pooling over equal segments of the longest sequence, and the output projection.

    Args:
        hidden_size, num_heads, max_length, dropout: the contract's; the authors have no dropout here.
        num_segments: m; a segment has floor(N / m) + 1 tokens, N = max_length, as in the authors' program.

    Raises:
        ValueError: m is not between 1 and N.
    """

    def __init__(self, hidden_size: int, num_heads: int, max_length: int, dropout: float = 0.0, num_segments: int = 64):
        super().__init__()
        if not 1 <= num_segments <= max_length:
            raise ValueError(f"num_segments = {num_segments}: give between 1 and max_length = {max_length}.")
        self.segment_length = max_length // num_segments + 1
        self.pooling = PoolingMixer(hidden_size, num_heads)
        self.output = nn.Linear(hidden_size, hidden_size)

    def forward(self, hidden_states: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """(B, S, H) -> (B, S, H), zero at padding."""
        batch, length, _ = hidden_states.shape
        segments = (torch.arange(length, device=hidden_states.device) // self.segment_length).expand(batch, -1)
        mixed, _ = self.pooling(hidden_states, mask, segments)
        return zero_padding(self.output(mixed), mask)


MIXERS: dict[str, type[nn.Module]] = {
    "softmax": SoftmaxAttention,
    "s3": S3Mixer,
    "fmm": FmmAttention,
    "skyformer": SkyformerAttention,
    "kernelized": KernelizedAttention,
    "nystrom": NystromAttention,
    "linformer": LinformerAttention,
    "performer": PerformerAttention,
    "linear": LinearAttention,
    "ponet": PoNetMixer,
    "fourier": FourierMixer,
}


def mixer_settings(name: str) -> Sequence[str]:
    """The settings of a mixer's own.

    Raises:
        ValueError: there is no mixer of that name; the message says which there are.
    """
    if name not in MIXERS:
        match = difflib.get_close_matches(str(name), MIXERS, n=1)
        hint = f" Did you mean {match[0]}?" if match else ""
        raise ValueError(f"Unknown mixer {name!r}.{hint} There is {', '.join(MIXERS)}.")
    contract = ("hidden_size", "num_heads", "max_length", "dropout", "layer_index")
    return [setting for setting in inspect.signature(MIXERS[name]).parameters if setting not in contract]


def build_mixer(
    name: str, hidden_size: int, num_heads: int, max_length: int, dropout: float, layer_index: int, **own: Any
) -> nn.Module:
    """The mixer of that name with its own settings; `layer_index` goes to those that draw something for each layer.

    Raises:
        ValueError: an unknown mixer, a setting it does not have, or one that it refuses.
    """
    settings = mixer_settings(name)
    for setting in own:
        if setting not in settings:
            known = ", ".join(settings) or "none of its own"
            raise ValueError(f"Mixer {name} has no setting {setting!r}; it has {known}.")
    if "layer_index" in inspect.signature(MIXERS[name]).parameters:
        own["layer_index"] = layer_index
    return MIXERS[name](hidden_size, num_heads, max_length, dropout, **own)
