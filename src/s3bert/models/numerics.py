"""What every S3 module keeps to: neither half precision nor padding may touch a sum, a transform or a softmax."""

import torch


def at_least_float32(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in float32, or in float64 where it is: FFTs, softmaxes and statistics never run in half precision."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def in_product_dtype(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as autocast hands it to a matrix product: cast once, where several products would each cast it."""
    kind = tensor.device.type
    if not (torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)):
        return tensor
    return tensor.to(torch.get_autocast_dtype(kind))


def first_rows(tensor: torch.Tensor, length: int) -> torch.Tensor:
    """The first rows of a tensor: itself where it has no more, which saves the gradient a pass."""
    # A program that is exported for all lengths must not ask.
    return tensor if not torch.compiler.is_exporting() and length == tensor.shape[0] else tensor[:length]


def zero_padding(tensor: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Zeroes the tokens of `tensor` (B, S, ...) that `mask` (B, S) excludes; a NaN there goes too."""
    if mask is None:
        return tensor
    return tensor.masked_fill(~mask.view(*mask.shape, *[1] * (tensor.dim() - 2)), 0)


def token_numbers(mask: torch.Tensor) -> torch.Tensor:
    """Each token's number in its sequence, (B, S) from 0, of a mask (B, S): real tokens in their order, padding after them.

    A permutation of the places; where padding is on the right, the places themselves.
    """
    count = mask.cumsum(1)  # real tokens up to each place
    places = torch.arange(mask.shape[1], device=mask.device)
    return torch.where(mask, count - 1, count[:, -1:] + places - count)
