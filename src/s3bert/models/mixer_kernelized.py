"""Kernelized Attention and Skyformer (Chen et al., NeurIPS 2021, arXiv 2111.00035): Gaussian kernels in place of softmax.

    C_ij = exp(-|q_i - k_j|^2 / (2 sqrt(p)))                                             (eq. 3)
    C ~ kappa(Q', Z) M^+ kappa(Z, K'),  M = kappa(Z, Z), Z rows of Q' and K'              (eqs. 4 to 6)

with kappa(a, b) = exp(-|a - b|^2 / 2), Q' = Q p^(-1/4) and K' = K p^(-1/4). The first is quadratic in the length; the second,
Nystrom's approximation of it with d landmarks Z, is linear.
"""

from typing import Literal

import torch

from .attention_heads import HeadAttention, real_lengths, zero_padded_keys
from .iterative_inverse import iterative_inverse
from .numerics import at_least_float32


def gaussian_kernel(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """kappa of all pairs, (..., n, p) and (..., m, p) -> (..., n, m).

    -|a - b|^2 / 2 is the product of (a, -|a|^2 / 2, 1) and (b, 1, -|b|^2 / 2), a matrix product. Between long vectors that lie close
    its rounding errors may be positive: they count as 0.
    """
    left_square, right_square = (-0.5 * states.square().sum(-1, keepdim=True) for states in (left, right))
    left = torch.cat([left, left_square, torch.ones_like(left_square)], -1)
    right = torch.cat([right, torch.ones_like(right_square), right_square], -1)
    return (left @ right.transpose(-1, -2)).clamp(max=0).exp()


class KernelizedAttention(HeadAttention):
    """C V, without a division by row sums: a query far from all keys gets next to nothing.

    Args:
        hidden_size, num_heads, max_length, dropout: as in `HeadAttention`; dropout acts on C.
    """

    def attend(self, query, key, value, mask):
        with torch.autocast(query.device.type, enabled=False):
            query, key, value = (at_least_float32(states) for states in (query, key, value))
            scale = self.head_size**-0.25
            weights = self.dropout(gaussian_kernel(query * scale, key * scale))  # (B, h, S, S)
            return weights @ zero_padded_keys(value, mask)


class SkyformerAttention(HeadAttention):
    """Nystrom's approximation of Kernelized Attention.

    Landmarks are half queries and half keys of real tokens: drawn with replacement in training, afresh in every forward
    (Definition 1; half and half as in the authors' program), at fixed fractions of the sequence in evaluation, so that
    results repeat. A sequence of n tokens has at most n of each.

    Args:
        hidden_size, num_heads, max_length, dropout: as in `HeadAttention`; C, which dropout would act on, is never formed.
        num_landmarks: d. ridge: gamma, added to M's diagonal before it is inverted.
        inverse: "iterative", by matrix products, or "solve", exactly, by Cholesky's decomposition.
        num_iterations: steps of the iterative inverse.

    Raises:
        ValueError: d under 2 or odd, a ridge that is not positive, an unknown inverse.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        max_length: int,
        dropout: float = 0.0,
        num_landmarks: int = 128,
        ridge: float = 0.1,
        inverse: Literal["iterative", "solve"] = "iterative",
        num_iterations: int = 6,
    ):
        super().__init__(hidden_size, num_heads, max_length, dropout)
        if num_landmarks < 2 or num_landmarks % 2:
            raise ValueError(f"num_landmarks = {num_landmarks}: half are queries and half keys; give an even number.")
        if ridge <= 0:
            raise ValueError(f"ridge = {ridge}: repeated landmarks have no inverse without a positive one.")
        if inverse not in ("iterative", "solve"):
            raise ValueError(f"inverse = {inverse!r}: there is iterative and solve.")
        self.num_landmarks, self.ridge, self.inverse, self.num_iterations = (
            num_landmarks,
            ridge,
            inverse,
            num_iterations,
        )

    def attend(self, query, key, value, mask):
        with torch.autocast(query.device.type, enabled=False):
            query, key, value = (at_least_float32(states) for states in (query, key, value))
            query, key = query * self.head_size**-0.25, key * self.head_size**-0.25
            landmarks, counts = self._landmarks(query, key, mask)  # (B, h, d, p), (B, 1, d)
            pairs = counts[..., :, None] & counts[..., None, :]
            identity = torch.eye(landmarks.shape[2], dtype=query.dtype, device=query.device)
            gram = torch.where(pairs, gaussian_kernel(landmarks, landmarks), identity)  # M; (B, h, d, d)
            to_landmarks = gaussian_kernel(query, landmarks).masked_fill(~counts[:, :, None], 0)  # (B, h, S, d)
            from_keys = gaussian_kernel(landmarks, key).masked_fill(~counts[..., None], 0)  # (B, h, d, S)
            return to_landmarks @ self._solve(gram, from_keys @ zero_padded_keys(value, mask))

    def _landmarks(self, query, key, mask):
        """Landmark rows and which of them count."""
        half = min(self.num_landmarks // 2, query.shape[2])
        lengths = real_lengths(query, mask)  # (B, 1)
        slots = torch.arange(half, device=query.device)
        number = lengths.clamp(max=half)
        if self.training:
            shares = torch.rand(2, len(query), half, device=query.device)
            numbers = (shares * lengths).long().clamp(max=query.shape[2] - 1)
        else:
            numbers = ((2 * slots + 1) * lengths // (2 * number).clamp(min=1)).expand(2, -1, -1)
        counts = slots < number  # (B, d / 2)
        numbers = torch.where(counts, numbers, 0)
        if mask is not None:  # token number t lies where the running count of real tokens first reaches t + 1
            numbers = torch.searchsorted(mask.cumsum(1).expand(2, -1, -1).contiguous(), numbers + 1)
            numbers = numbers.clamp(max=mask.shape[1] - 1)
        rows = [
            states.gather(2, places[:, None, :, None].expand(-1, states.shape[1], -1, states.shape[3]))
            for states, places in zip((query, key), numbers, strict=True)
        ]
        return torch.cat(rows, 2), torch.cat([counts, counts], 1)[:, None]

    def _solve(self, gram, right):
        """(M + gamma I)^-1 times (B, h, d, p). Scaled to D^(-1/2) (M + gamma I) D^(-1/2) by its row sums D, the spectrum lies in (0, 1],
        so the identity is a start from which the iteration converges (section 4.4)."""
        gram = gram + self.ridge * torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
        if self.inverse == "solve":
            return torch.cholesky_solve(right, torch.linalg.cholesky(gram))
        scale = gram.sum(-1, keepdim=True).rsqrt()  # (B, h, d, 1)
        scaled = scale * gram * scale.transpose(2, 3)
        start = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device).expand_as(scaled)
        return scale * (iterative_inverse(scaled, start, self.num_iterations) @ (scale * right))
