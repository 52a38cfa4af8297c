"""What attentions over heads share: the projections around a rule that says how heads mix, and token numbers under a mask."""

import torch
from torch import nn

from .numerics import token_numbers, zero_padding


class HeadAttention(nn.Module):
    """Queries, keys and values of h heads, a rule that mixes them (`attend`, by the subclass), the output projection.

    B batch, S length, H hidden size, h heads of p = H / h channels.

    Args:
        hidden_size: H. num_heads: h. max_length: tokens of the longest sequence. dropout: on attention weights.
        bias: the projections have one.

    Raises:
        ValueError: h does not divide H.
    """

    def __init__(self, hidden_size: int, num_heads: int, max_length: int, dropout: float = 0.0, bias: bool = True):
        super().__init__()
        if hidden_size % num_heads:
            raise ValueError(f"hidden_size = {hidden_size} is not divisible by num_heads = {num_heads}.")
        self.num_heads, self.head_size, self.max_length = num_heads, hidden_size // num_heads, max_length
        self.query = nn.Linear(hidden_size, hidden_size, bias=bias)
        self.key = nn.Linear(hidden_size, hidden_size, bias=bias)
        self.value = nn.Linear(hidden_size, hidden_size, bias=bias)
        self.output = nn.Linear(hidden_size, hidden_size, bias=bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden_states: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """(B, S, H) -> (B, S, H), zero at padding. `mask` (B, S) is True at real tokens; nothing else has influence."""
        hidden_states = zero_padding(hidden_states, mask)
        query, key, value = self.split(hidden_states)
        return self.join(self.attend(query, key, value, mask), hidden_states, mask)

    def split(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values of each head, (B, h, S, p), of (B, S, H)."""
        query, key, value = (
            linear(hidden_states).unflatten(2, (self.num_heads, self.head_size)).transpose(1, 2)
            for linear in (self.query, self.key, self.value)
        )
        return query, key, value

    def join(self, mixed: torch.Tensor, hidden_states: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """The output (B, S, H), zero at padding, of mixed heads (B, h, S, p); in the hidden states' dtype."""
        mixed = mixed.to(hidden_states.dtype)
        return zero_padding(self.output(mixed.transpose(1, 2).flatten(2)), mask)

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        """The rule: (B, h, S, p) three times -> (B, h, S, p), finite at padding too, where keys and values are biases."""
        raise NotImplementedError


def zero_padded_keys(states: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """(B, h, S, ...) with zeros at padding."""
    return (
        states if mask is None else states.masked_fill(~mask.view(mask.shape[0], 1, -1, *[1] * (states.dim() - 3)), 0)
    )


def real_lengths(states: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Each sequence's number n of real tokens, (B, 1); `states` is (B, h, S, p)."""
    if mask is None:
        return torch.full((len(states), 1), states.shape[2], device=states.device)
    return mask.sum(1, keepdim=True)


def numbered_tokens(states: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Each token's number in its sequence, (B, S), as `token_numbers` has it; `states` is (B, h, S, p)."""
    if mask is None:
        return torch.arange(states.shape[2], device=states.device).expand(len(states), -1)
    return token_numbers(mask)
