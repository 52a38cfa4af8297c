"""What the models check of their inputs: shapes and types always, values where reading them is free.

Reading a value makes the host wait for an accelerator, and breaks a compiled or exported graph. Values are therefore read on CPU in
eager mode alone; elsewhere torch's own errors stand.
"""

import torch
from torch._subclasses.fake_tensor import FakeTensor

from .numerics import token_numbers


def is_readable(tensor: torch.Tensor) -> bool:
    """Whether its values may be read: on CPU, in eager mode, and where it has any, as it has not while FLOPs are counted."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling() and not isinstance(tensor, FakeTensor)


def check_ids(name: str, ids: torch.Tensor, shape: torch.Size, size: int, remedy: str) -> None:
    """
    Args:
        name: of the argument. ids: (B, S), or (1, S) for every sequence the same. shape: the input's, (B, S).
        size: of the table that they index. remedy: what to do about one outside it.

    Raises:
        ValueError: ids of another shape, or no integers; where they are readable, one outside 0..size - 1.
    """
    if ids.shape != shape and ids.shape != (1, shape[1]):
        raise ValueError(f"{name} has shape {tuple(ids.shape)} and the input {tuple(shape)}: give one for each token.")
    if ids.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"{name} is {ids.dtype}: give torch.int64, or torch.int32.")
    if is_readable(ids):
        least, most = ids.aminmax()
        if least < 0 or most >= size:
            wrong = int(least if least < 0 else most)
            raise ValueError(f"{name} holds {wrong}, outside the model's 0..{size - 1}: {remedy}.")


def real_tokens(attention_mask: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """True at real tokens, (B, S): where the mask is not 0.

    Args:
        attention_mask: (B, S), booleans, integers or floats. shape: the input's, (B, S).

    Raises:
        ValueError: a mask of another shape. Where it is readable, one that looks additive, 0 at real tokens and -inf at padding: a
            value that is negative or NaN, or nothing but 0.0.
    """
    if attention_mask.dim() > 2:
        raise ValueError(
            f"attention_mask has shape {tuple(attention_mask.shape)}: these models mix tokens without a matrix of token pairs "
            f"to mask; give one entry for each token, {tuple(shape)}, 1 for real and 0 for padding."
        )
    if attention_mask.shape != shape:
        raise ValueError(
            f"attention_mask has shape {tuple(attention_mask.shape)} and the input {tuple(shape)}: give one entry "
            "for each token, 1 for real and 0 for padding."
        )
    if attention_mask.dtype != torch.bool and is_readable(attention_mask):
        least = attention_mask.min()
        zeros = attention_mask.is_floating_point() and not attention_mask.any()
        if zeros or not least >= 0:  # NaN compares false
            what = "nothing but 0.0" if zeros else least.item()
            raise ValueError(
                f"attention_mask holds {what}. This looks like an additive mask, 0 at real tokens and -inf at padding: "
                "give 1 at real tokens and 0 at padding."
            )
    return attention_mask != 0


def simplest(mask: torch.Tensor | None) -> torch.Tensor | None:
    """The mask (B, S) where it makes a difference: one that is readable and of nothing but real tokens is none."""
    return None if mask is None or (is_readable(mask) and mask.all()) else mask


def numbers_unlike_places(mask: torch.Tensor | None) -> torch.Tensor | None:
    """Each token's number in its sequence, (B, S); None where places are the numbers: without a mask, or seen to pad on the right."""
    if mask is None or (is_readable(mask) and not (mask[:, 1:] & ~mask[:, :-1]).any()):
        return None
    return token_numbers(mask)


def sequences_shape(input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None) -> torch.Size:
    """The input's, (B, S).

    Raises:
        ValueError: neither or both of the inputs; no batch of sequences.
    """
    if input_ids is not None and inputs_embeds is None:
        shape = input_ids.shape
    elif inputs_embeds is not None and input_ids is None:
        shape = inputs_embeds.shape[:-1]
    else:
        raise ValueError("Give either input_ids or inputs_embeds, and not both.")
    if len(shape) != 2:
        raise ValueError(f"Inputs are batches of sequences, (B, S); got a batch and length of {tuple(shape)}.")
    return shape


def check_classes(labels: torch.Tensor, logits: torch.Tensor, setting: str) -> None:
    """
    Args:
        labels: numbers of classes, -100 where there is none; one for each row of logits. logits: (..., C). setting: what C is.

    Raises:
        ValueError: labels that do not fit the logits, or no integers; where they are readable, one outside 0..C - 1.
    """
    classes = logits.shape[-1]
    rows = tuple(logits.shape[:-1])
    if tuple(labels.shape) not in (rows, (*rows, 1), (logits.shape[:-1].numel(),)):
        raise ValueError(
            f"labels have shape {tuple(labels.shape)} and the logits {tuple(logits.shape)}: give one label for each row "
            f"of logits, {rows}."
        )
    if labels.dtype != torch.int64:
        raise ValueError(f"labels are {labels.dtype}: give numbers of classes as torch.int64 (`labels.long()`).")
    if is_readable(labels) and labels.numel():
        least, most = labels.aminmax()
        if most >= classes or (least < 0 and ((labels < 0) & (labels != -100)).any()):
            wrong = int(most if most >= classes else labels[(labels < 0) & (labels != -100)][0])
            raise ValueError(
                f"labels hold {wrong}, outside 0..{classes - 1} ({setting} = {classes}): number the classes from 0 and build "
                "the model with as many; -100 stands for no label."
            )
