"""Nystromformer attention (Xiong et al., AAAI 2021, arXiv 2102.03902): softmax attention through landmark tokens.

    out = K1 K2^+ (K3 V) + depthwise convolution of V
    K1 = softmax(Q Kl^T), K2 = softmax(Ql Kl^T), K3 = softmax(Ql K^T), Q and K scaled by p^(-1/4)

Ql and Kl are means of consecutive queries and keys. Transformers' class needs inputs of one length and fails on a mask.
"""

import torch
from torch import nn

from .attention_heads import HeadAttention, numbered_tokens, real_lengths, zero_padded_keys
from .iterative_inverse import iterative_inverse
from .numerics import at_least_float32


class NystromAttention(HeadAttention):
    """Landmarks are means over equal runs of real tokens: m of them, or one a token in sequences of fewer.

    Args:
        hidden_size, num_heads, max_length, dropout: as in `HeadAttention`; dropout acts on the output of the three softmaxes.
        num_landmarks: m. kernel_size: tokens of the convolution, odd; 0 for none. num_iterations: steps of the inverse.

    Raises:
        ValueError: no landmark, or an even kernel.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        max_length: int,
        dropout: float = 0.0,
        num_landmarks: int = 128,
        kernel_size: int = 35,
        num_iterations: int = 6,
    ):
        super().__init__(hidden_size, num_heads, max_length, dropout)
        if num_landmarks < 1:
            raise ValueError(f"num_landmarks = {num_landmarks}: there has to be at least one.")
        if kernel_size and kernel_size % 2 == 0:
            raise ValueError(f"kernel_size = {kernel_size}: give an odd number of tokens, or 0 for no convolution.")
        self.num_landmarks, self.num_iterations = num_landmarks, num_iterations
        self.convolution = (
            nn.Conv2d(
                num_heads, num_heads, (kernel_size, 1), padding=(kernel_size // 2, 0), groups=num_heads, bias=False
            )
            if kernel_size
            else None
        )

    def attend(self, query, key, value, mask):
        convolved = 0 if self.convolution is None else self.convolution(zero_padded_keys(value, mask))
        with torch.autocast(query.device.type, enabled=False):
            query, key, value = (at_least_float32(states) for states in (query, key, value))
            query, key = query * self.head_size**-0.25, key * self.head_size**-0.25
            runs, counts = self._runs(query, mask)  # (B, m, S) weights of means, (B, 1, m)
            landmark_query, landmark_key = (runs[:, None] @ states for states in (query, key))  # (B, h, m, p)
            lowest = torch.finfo(query.dtype).min
            no_landmark = ~counts[:, :, None]  # (B, 1, 1, m)
            to_landmarks = (query @ landmark_key.transpose(2, 3)).masked_fill(no_landmark, lowest).softmax(3)
            between = (landmark_query @ landmark_key.transpose(2, 3)).masked_fill(no_landmark, lowest).softmax(3)
            # A slot without a landmark is a row and column of the identity.
            identity = torch.eye(between.shape[-1], dtype=between.dtype, device=between.device)
            between = torch.where(counts[..., None] & counts[:, :, None], between, identity)
            from_keys = landmark_query @ key.transpose(2, 3)
            if mask is not None:
                from_keys = from_keys.masked_fill(~mask[:, None, None], lowest)
            from_keys = from_keys.softmax(3).masked_fill(~counts[..., None], 0)
            columns = between.abs().sum(2).amax(2)[..., None, None]  # |K2|_1; rows sum to one
            inverse = iterative_inverse(between, between.transpose(2, 3) / columns, self.num_iterations)
            return self.dropout(to_landmarks @ (inverse @ (from_keys @ zero_padded_keys(value, mask)))) + convolved

    def _runs(self, query, mask):
        """Which tokens each landmark is the mean of."""
        slots = min(self.num_landmarks, query.shape[2])
        lengths = real_lengths(query, mask)  # (B, 1)
        number = lengths.clamp(max=slots)
        run = numbered_tokens(query, mask) * number // lengths.clamp(min=1)  # (B, S)
        member = run[:, None] == torch.arange(slots, device=query.device)[:, None]  # (B, m, S)
        if mask is not None:
            member = member & mask[:, None]
        weights = member.to(query.dtype) / member.sum(2, keepdim=True).clamp(min=1)
        return weights, (torch.arange(slots, device=query.device) < number)[:, None]
