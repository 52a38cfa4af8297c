"""S3Attention: the smoother and skeleton attention (Wang et al., "S3Attention: Improving Long Sequence Attention with
Smoothed Skeleton Sketching", IEEE JSTSP 2024). Equations and algorithms are cited by that paper's numbers.

Its parts, smoother.py and skeleton_attention.py, take plain arguments, no config, so that each can be built and tested alone
and serve other models. All of them read (B, S, H) hidden states and an optional boolean mask (B, S), True at real tokens;
what lies under the mask has no influence on real tokens, and a mask of all ones gives what no mask gives.

    B batch    S length of this batch     N length the filter was trained for    F = N // 2 + 1 frequencies
    H hidden   h heads    p = H / h       r segments    s1 sampled rows (tokens)    s2 sampled columns (channels)
"""

import torch
from torch import nn

from .numerics import zero_padding
from .skeleton_attention import SkeletonAttention
from .smoother import Smoother


class S3Mixer(nn.Module):
    """S3Attention: S3BERT's smoother and skeleton attention, and the output projection.

    Args:
        hidden_size, num_heads, max_length, dropout: the contract's; dropout acts on both attentions' weights.
        num_segments, num_row_samples, num_column_samples: r, s1, s2. smoother_dropout: after the convolution stem.
        smoother_norm: "batch" or "layer". use_...: Table 7's switches. landmark_seed: of the sampled tokens and channels.
        layer_index: the layer's number.

    Raises:
        ValueError: one of r, s1, s2 is no whole number of at least 1, or r does not divide H; and as its two parts do.
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
        sizes = {"num_segments": num_segments, "num_row_samples": num_row_samples}
        for setting, size in (sizes | {"num_column_samples": num_column_samples}).items():
            if not isinstance(size, int) or size < 1:
                raise ValueError(f"{setting} = {size!r}: give a whole number, at least 1.")
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
