"""What FMMformer's causal attention keeps of the tokens it has read: of one size, however many there were."""

from collections.abc import Callable

import torch


class FmmState:
    """The band's last keys and values, and one state for each kernel, in float32; empty until it is extended.

    B batch, h heads, p channels, w places of the window.

    Args:
        window: w, k - 1 of a band of k. num_kernels: r.
    """

    def __init__(self, window: int, num_kernels: int):
        self.window, self.num_kernels = window, num_kernels
        self.reset()

    def reset(self) -> None:
        """Forgets all."""
        self.places = 0  # read, padding among them
        self.unmasked = 0  # of them, the last ones that came without a mask: real tokens all
        self.tokens: torch.Tensor | None = None  # real ones of each sequence, (B,)
        self.keys: torch.Tensor | None = None  # (B, h, w, p)
        self.values: torch.Tensor | None = None
        self.real: torch.Tensor | None = None  # which places of the window hold a token, (B, w)
        # (B, h, p, p + 1) of a linear kernel, (B, h, p, p) of fast weights
        self.sums: list[torch.Tensor | None] = [None] * self.num_kernels

    def extend(
        self, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Takes in new keys and values, (B, h, S, p), and their mask (B, S); returns all three with the window's before them.

        The last w of them are the window from then on. The mask is None where the window is full and came without one.
        """
        batch, heads, length, size = key.shape
        if self.tokens is None or self.keys is None or self.values is None or self.real is None:
            self.tokens = torch.zeros(batch, dtype=torch.long, device=key.device)
            self.keys = self.values = key.new_zeros(batch, heads, self.window, size)
            self.real = torch.zeros(batch, self.window, dtype=torch.bool, device=key.device)
        self.places += length
        self.unmasked = self.unmasked + length if mask is None else 0
        self.tokens = self.tokens + (length if mask is None else mask.sum(1))
        if not self.window:
            return key, value, mask
        keys, values, real = torch.cat([self.keys, key], 2), torch.cat([self.values, value], 2), None
        # Clones: views would keep the whole prompt.
        self.keys, self.values = keys[:, :, length:].clone(), values[:, :, length:].clone()
        if self.unmasked < self.window + length:  # beyond that the window's flags are set, and stay so
            new = self.real.new_ones(batch, length) if mask is None else mask
            real = torch.cat([self.real, new], 1)
            self.real = real[:, length:].clone()
        return keys, values, real

    def map(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Puts what a function makes of each tensor, whose rows are sequences, in its place."""
        for name in ("tokens", "keys", "values", "real"):
            tensor = getattr(self, name)
            setattr(self, name, None if tensor is None else function(tensor))
        self.sums = [None if state is None else function(state) for state in self.sums]
