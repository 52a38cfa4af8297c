"""Models made to take longer sequences than they were trained on."""

import torch
from torch import nn
from transformers import PreTrainedModel


def lengthening(name: str, positions: float, length: int) -> str:
    """A sentence on what `lengthen` does to a model of so many positions, or none."""
    if positions >= length:
        return ""
    return (
        f"{name}, pretrained with {positions:,} positions, is lengthened in place to {length:,}: learned ones are repeated, rotary ones "
        "go on."
    )


@torch.no_grad()
def lengthen(model: PreTrainedModel, length: int) -> None:
    """Lengthens a model in place to sequences of `length` tokens; one that takes them stays as it is.

    S3BERT has its own way. A table of learned positions is repeated, as Longformer's began (Beltagy et al. 2020, section 5), so that
    inputs of up to the old length give the same outputs as before. Rotary positions do not end.

    Raises:
        ValueError: the model has other positions.
    """
    config = model.config
    positions = getattr(config, "max_position_embeddings", length)
    if config.model_type == "s3bert":
        if positions < length:
            model.resize_position_embeddings(length)
        return
    for name, table in model.named_modules():
        if (
            name.endswith("position_embeddings")
            and isinstance(table, nn.Embedding)
            and table.num_embeddings == positions
        ):
            first = (
                0 if table.padding_idx is None else table.padding_idx + 1
            )  # RoBERTa's real positions begin behind padding's
            if positions - first < length:
                if (
                    getattr(config, "max_relative_positions", positions) < 1
                ):  # DeBERTa's are as many as positions, unless they are told
                    config.max_relative_positions = positions
                _repeat(model.get_submodule(name.rpartition(".")[0]), table, first, length)
                config.max_position_embeddings = first + length
            return
    if positions >= length or positions < 1:
        return
    if not any("rotary" in name for name, _ in model.named_modules()):
        raise ValueError(
            f"{config.model_type} takes up to {positions} tokens, and how to lengthen it is not known: pass --max_seq_length "
            f"{positions}, or finetune with windows, --sliding_window {positions}."
        )
    config.max_position_embeddings = length


def _repeat(embeddings: nn.Module, table: nn.Embedding, first: int, length: int) -> None:
    """Repeats the rows of a table of positions from `first` on to so many, and the buffers that number them."""
    rows = torch.arange(length) % (table.num_embeddings - first) + first
    rows = torch.cat([torch.arange(first), rows]).to(table.weight.device)
    embeddings.position_embeddings = nn.Embedding.from_pretrained(
        table.weight[rows], freeze=False, padding_idx=table.padding_idx
    )
    numbers = torch.arange(len(rows), device=table.weight.device)[None]
    for name, value in (("position_ids", numbers), ("token_type_ids", torch.zeros_like(numbers))):
        if name in embeddings._buffers:
            embeddings.register_buffer(name, value, persistent=False)
