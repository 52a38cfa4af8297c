"""Token mixers by name, behind one contract, for encoders that exchange nothing else.

    Mixer(hidden_size, num_heads, max_length, dropout, **its own settings)
    forward(hidden states (B, S, H), mask (B, S) or None) -> mixed states (B, S, H), zero at padding

The mask is True at real tokens. What lies under it never matters, nor how much padding there is, on the right or, but
for `fourier` and the norm per position of `s3`, on the left; a sequence may have any length up to `max_length`. A new mixer is one file and one entry of `MIXERS`.
"""

import difflib
import inspect
from collections.abc import Sequence
from typing import Any

from torch import nn

from .mixer_fmm import FmmAttention
from .mixer_fourier import FourierMixer
from .mixer_kernelized import KernelizedAttention, SkyformerAttention
from .mixer_linear import LinearAttention
from .mixer_linformer import LinformerAttention
from .mixer_nystrom import NystromAttention
from .mixer_performer import PerformerAttention
from .mixer_ponet import PoNetMixer
from .mixer_s3 import S3Mixer
from .mixer_softmax import SoftmaxAttention


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


def setting_names(name: str) -> Sequence[str]:
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
    settings = setting_names(name)
    for setting in own:
        if setting not in settings:
            known = ", ".join(settings) or "none of its own"
            raise ValueError(f"Mixer {name} has no setting {setting!r}; it has {known}.")
    place = {"layer_index": layer_index} if "layer_index" in inspect.signature(MIXERS[name]).parameters else {}
    try:
        return MIXERS[name](hidden_size, num_heads, max_length, dropout, **own, **place)
    except TypeError as error:
        given = ", ".join(f"{setting} = {value!r}" for setting, value in own.items())
        raise ValueError(f"Mixer {name} cannot take {given}: {error}.") from error
