"""BERT around a token mixer: what the encoders of this package share, so that the mixer is the only thing exchanged.

    ids -> embeddings -> layers (mixer, residual and LayerNorm, feed-forward, residual and LayerNorm) -> pooler

Embeddings, feed-forward, pooler and masked-LM head are Transformers' BERT modules, so a checkpoint's names are BERT's
wherever the module is. B batch, S length, N `max_position_embeddings`, H hidden size.
"""

from collections.abc import Iterable
from typing import cast

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.models.bert.modeling_bert import (
    BertEmbeddings,
    BertIntermediate,
    BertLMPredictionHead,
    BertOutput,
    BertPooler,
)

from .configuration_encoder import EncoderConfig
from .input_checks import check_ids, numbers_unlike_places, real_tokens, sequences_shape, simplest
from .numerics import at_least_float32, zero_padding


def mean_of_real(hidden_states: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """(B, S, H) states and a (B, S) mask -> (B, H), the mean over real tokens, summed in float32 or more; 0 where there is none."""
    states = at_least_float32(hidden_states)
    if mask is None:
        return states.mean(1).to(hidden_states.dtype)
    total = zero_padding(states, mask).sum(1)
    return (total / mask.sum(1, keepdim=True).clamp(min=1)).to(hidden_states.dtype)


class EncoderLayer(GradientCheckpointingLayer):
    """A mixer with its residual and LayerNorm, and BERT's feed-forward with its own; (B, S, H) -> (B, S, H).

    Args:
        attention: takes hidden states (B, S, H) and whatever else the layer is called with; returns mixed states with the
            residual added and normalised, and attention weights or None.
    """

    def __init__(self, config: EncoderConfig, attention: nn.Module):
        super().__init__()
        self.attention = attention
        self.intermediate = BertIntermediate(config)
        self.output = BertOutput(config)

    def forward(self, hidden_states: torch.Tensor, *inputs: torch.Tensor | bool | None) -> torch.Tensor:
        hidden_states, _ = self.attention(hidden_states, *inputs)
        return self.output(self.intermediate(hidden_states), hidden_states)


class EncoderStack(nn.Module):
    """Layers one after the other, each called with the same further inputs."""

    def __init__(self, layers: Iterable[EncoderLayer]):
        super().__init__()
        self.layer = nn.ModuleList(layers)

    def forward(self, hidden_states: torch.Tensor, *inputs: torch.Tensor | bool | None) -> torch.Tensor:
        for layer in self.layer:
            hidden_states = layer(hidden_states, *inputs)
        return hidden_states


class EncoderPreTrainedModel(PreTrainedModel):
    """Initial values of the shared modules, and how Transformers treats every encoder here.

    Loss: heads average over the labelled items of the call, or divide by `num_items_in_batch` where a trainer passes it
    (the count over all micro-batches of an optimiser step), so that gradient accumulation is exact for every head.
    """

    config: EncoderConfig
    supports_gradient_checkpointing = True
    accepts_loss_kwargs = True
    _input_embed_layer = "word_embeddings"
    lengthening = ""  # what else helps against too long a sequence, `length` tokens, beside truncating it

    def __init__(self, config: EncoderConfig):
        config.validate()  # fields may have been set since it was built, as `from_pretrained(layer_norm_eps=...)` does
        if config.hidden_act not in ACT2FN:
            raise ValueError(f"hidden_act = {config.hidden_act!r}: give one of {', '.join(sorted(ACT2FN))}.")
        super().__init__(config)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Linear, Embedding, Conv1d: weight normal(0, initializer_range), bias and padding embedding 0. LayerNorm: weight
        1, bias 0. `init` leaves alone what a checkpoint has filled."""
        super()._init_weights(module)
        if isinstance(module, BertEmbeddings):
            init.copy_(module.position_ids, torch.arange(module.position_ids.shape[-1])[None])
            init.zeros_(module.token_type_ids)
        elif isinstance(module, BertLMPredictionHead):
            init.zeros_(module.bias)

    def get_position_embeddings(self) -> nn.Embedding:
        """The learned position embeddings, an (N, H) table."""
        return cast("EncoderModel", self.base_model).embeddings.position_embeddings


class EncoderModel(EncoderPreTrainedModel):
    """An encoder without a head, to be given its `forward`: `embed`, `encoder`, `pool`."""

    def __init__(self, config: EncoderConfig, layers: Iterable[EncoderLayer], add_pooling_layer: bool):
        super().__init__(config)
        self.embeddings = BertEmbeddings(config)
        self.encoder = EncoderStack(layers)
        self.pooler = BertPooler(config) if add_pooling_layer else None
        self.post_init()

    def embed(
        self,
        input_ids: torch.Tensor | None,
        attention_mask: torch.Tensor | None,
        token_type_ids: torch.Tensor | None,
        position_ids: torch.Tensor | None,
        inputs_embeds: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """Embeddings (B, S, H), a boolean mask (B, S) and the tokens' numbers (B, S), of arguments that are checked first.

        Mask and numbers are None where they are seen to make no difference. Positions are the
        numbers where none are given: a sequence has the same wherever its padding is.

        Raises:
            ValueError: neither or both of the inputs; mask, types or positions of another shape; more than N tokens; on CPU
                in eager mode, an id outside its table or an additive mask (on an accelerator, the scripts check their data
                once, before training).
        """
        shape = self._check_inputs(input_ids, inputs_embeds, token_type_ids, position_ids)
        mask = simplest(None if attention_mask is None else real_tokens(attention_mask, shape))
        numbers = numbers_unlike_places(mask)
        embeddings = self.embeddings(
            input_ids=input_ids,
            token_type_ids=token_type_ids,
            position_ids=numbers if position_ids is None else position_ids,
            inputs_embeds=inputs_embeds,
        )
        return embeddings, mask, numbers

    def pool(self, hidden_states: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor | None:
        """Each sequence's first real token, which left padding moves away from position 0, or the mean of its real tokens,
        projected, (B, H)."""
        if self.pooler is None:
            return None
        if self.config.classifier_pooling == "mean":
            return self.pooler(mean_of_real(hidden_states, mask)[:, None])
        if mask is None:
            return self.pooler(hidden_states[:, :1])
        first = mask.long().argmax(1)[:, None, None].expand(-1, 1, hidden_states.shape[-1])
        return self.pooler(hidden_states.gather(1, first))

    def _check_inputs(self, input_ids, inputs_embeds, token_type_ids, position_ids):
        """The input's shape, (B, S)."""
        shape = sequences_shape(input_ids, inputs_embeds)
        if shape[1] > self.config.max_position_embeddings:
            raise ValueError(
                f"The sequence has {shape[1]} tokens, the model takes up to {self.config.max_position_embeddings}: "
                f"truncate it{self.lengthening.format(length=shape[1])}."
            )
        if 0 in shape:
            raise ValueError(
                f"The input is empty: {shape[0]} sequences of {shape[1]} tokens; give at least one of one."
            )
        embeddings = self.embeddings
        remedy = "use the tokenizer the model was trained with, or model.resize_token_embeddings(len(tokenizer))"
        for name, ids, table, mend in (
            ("input_ids", input_ids, embeddings.word_embeddings, remedy),
            ("token_type_ids", token_type_ids, embeddings.token_type_embeddings, "see config.type_vocab_size"),
            ("position_ids", position_ids, embeddings.position_embeddings, "see config.max_position_embeddings"),
        ):
            if ids is not None:
                check_ids(name, ids, shape, table.num_embeddings, mend)
        return shape
