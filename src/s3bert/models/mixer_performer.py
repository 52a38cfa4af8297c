"""Performer attention (Choromanski et al., ICLR 2021, arXiv 2009.14794): softmax attention by positive random features."""

import torch

from .attention_heads import HeadAttention, zero_padded_keys
from .mixer_linear import SMALLEST_DENOMINATOR, feature_sums
from .numerics import at_least_float32


class PerformerAttention(HeadAttention):
    """FAVOR+: phi(x) = exp(W x' - |x'|^2 / 2) / sqrt(m), x' = x p^(-1/4), W of m orthogonal random rows (Lemma 1, section 3).

    The rows are drawn once, from a seed and the layer's number, and saved with the model.

    Args:
        hidden_size, num_heads, max_length, dropout: as in `HeadAttention`; there are no weights for dropout to act on.
        num_features: m. feature_seed: of the rows. causal: sums run over j <= i. layer_index: the layer's number.

    Raises:
        ValueError: m under 1.
    """

    directions: torch.Tensor

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        max_length: int,
        dropout: float = 0.0,
        num_features: int = 128,
        feature_seed: int = 0,
        causal: bool = False,
        layer_index: int = 0,
    ):
        super().__init__(hidden_size, num_heads, max_length, dropout)
        if num_features < 1:
            raise ValueError(f"num_features = {num_features}: there has to be at least one.")
        self.causal = causal
        generator = torch.Generator().manual_seed(1009 * feature_seed + layer_index)
        blocks = [self._orthogonal_rows(generator) for _ in range(-(-num_features // self.head_size))]
        self.register_buffer("directions", torch.cat(blocks)[:num_features].float())  # W, (m, p)

    def _orthogonal_rows(self, generator: torch.Generator) -> torch.Tensor:
        """(p, p): orthogonal, each as long as a Gaussian vector of p entries is."""
        drawn = torch.randn(2, self.head_size, self.head_size, generator=generator, dtype=torch.float64)
        rotation, triangle = torch.linalg.qr(drawn[0])
        # LAPACK fixes signs by its algorithm, which would keep rows out of half the directions, and bias every sum of features.
        rotation = rotation * triangle.diagonal().sign()
        return rotation.T * drawn[1].norm(dim=1, keepdim=True)

    def attend(self, query, key, value, mask):
        with torch.autocast(query.device.type, enabled=False):
            query, key, value = (at_least_float32(states) for states in (query, key, value))
            query, key = (self._exponents(states) for states in (query, key))  # (B, h, S, m)
            # Any factor a query's features share cancels, and any factor that all keys of a head share.
            if mask is not None:
                key = key.masked_fill(~mask[:, None, :, None], torch.finfo(key.dtype).min)
            query = (query - query.amax(3, keepdim=True).detach()).exp()
            key = zero_padded_keys((key - key.amax((2, 3), keepdim=True).detach()).exp(), mask)
            numerator, denominator = feature_sums(query, key, value, self.causal)
            return numerator / denominator.clamp(min=SMALLEST_DENOMINATOR)

    def _exponents(self, states: torch.Tensor) -> torch.Tensor:
        states = states * self.head_size**-0.25
        return states @ self.directions.to(states.dtype).T - states.square().sum(3, keepdim=True) / 2
