"""PoNet: BERT with its self-attention swapped for pooling (mixer_ponet.py), and the usual heads.

B batch, S length, H hidden size, h heads.
"""

import torch
import torch.nn.functional as F
from torch import nn
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.models.bert.modeling_bert import BertSelfOutput
from transformers.utils.output_capturing import capture_outputs

from .configuration_ponet import PoNetConfig
from .encoder import EncoderLayer, EncoderModel, EncoderPreTrainedModel
from .heads import (
    MaskedLM,
    MultipleChoice,
    QuestionAnswering,
    SequenceClassification,
    TokenClassification,
    tied_decoder,
)
from .input_checks import is_readable
from .mixer_ponet import PoolingMixer


class PoNetAttention(nn.Module):
    """Pooling, and BERT's output projection with the residual."""

    def __init__(self, config: PoNetConfig):
        super().__init__()
        self.self = PoolingMixer(
            config.hidden_size,
            config.num_attention_heads,
            config.use_global_aggregation,
            config.use_segment_pooling,
            config.use_local_pooling,
        )
        self.output = BertSelfOutput(config)

    def forward(self, hidden_states: torch.Tensor, *inputs: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        mixed, weights = self.self(hidden_states, *inputs)
        return self.output(mixed, hidden_states), weights


class PoNetLayer(EncoderLayer):
    """PoNet's mixer and BERT's feed-forward; called with mask, segments and tokens apart, (B, S) each."""

    def __init__(self, config: PoNetConfig):
        super().__init__(config, PoNetAttention(config))


class PoNetPreTrainedModel(EncoderPreTrainedModel):
    """What every PoNet model shares.

    Examples:
        >>> from s3bert import PoNetConfig, PoNetModel, PoNetPreTrainedModel
        >>> model = PoNetModel(PoNetConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2))
        >>> isinstance(model, PoNetPreTrainedModel), model.get_position_embeddings()
        (True, Embedding(512, 32))
    """

    config_class = PoNetConfig
    config: PoNetConfig
    base_model_prefix = "ponet"
    _no_split_modules = ["PoNetLayer"]
    _can_record_outputs = {"hidden_states": PoNetLayer, "attentions": PoNetAttention}


class PoNetModel(PoNetPreTrainedModel, EncoderModel):
    """The encoder without a head.

    Examples:
        >>> import torch
        >>> from s3bert import PoNetConfig, PoNetModel
        >>> model = PoNetModel(PoNetConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2))
        >>> ids, segments = torch.tensor([[101, 7592, 2088, 102]]), torch.tensor([[0, 1, 1, 2]])
        >>> model(input_ids=ids, segment_ids=segments).last_hidden_state.shape
        torch.Size([1, 4, 32])
    """

    def __init__(self, config: PoNetConfig, add_pooling_layer: bool = True):
        super().__init__(config, (PoNetLayer(config) for _ in range(config.num_hidden_layers)), add_pooling_layer)

    @capture_outputs
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        segment_ids: torch.LongTensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | list[int] | None = None,
    ) -> BaseModelOutputWithPooling | tuple:
        """Encodes a batch of sequences of up to `max_position_embeddings` tokens.

        Args:
            input_ids: (B, S) token ids; or `inputs_embeds` (B, S, H) in their place, in which no token is special.
            attention_mask: (B, S), nonzero at real tokens, never additive; any pattern, and all real when absent.
            token_type_ids: (B, S), as in BERT.
            position_ids: (B, S) or (1, S); where absent, the running number of real tokens, which padding on the left does not move.
            segment_ids: (B, S), from 0 to S and equal at the tokens of a segment (a sentence, a line); where absent,
                `config.segment_rule` says. (The Trainer drops it unless `remove_unused_columns` is False.)
            output_attentions: also returns, per layer, the weights (B, h, S) of the global aggregation.
            output_hidden_states: also returns the embeddings and each layer's output, (B, S, H) each.

        Returns:
            `last_hidden_state` (B, S, H) and `pooler_output` (B, H), the tanh-projected first real token or mean.

        Raises:
            ValueError: see `EncoderModel.embed`; `segment_ids` of another shape or, on CPU, outside 0 to S.
        """
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        hidden_states, mask, numbers = self.embed(*inputs)
        special = self._special(input_ids, mask)
        segments = self._segments(hidden_states, special, segment_ids, numbers)
        apart = special if self.config.exclude_special_from_pooling else None
        hidden_states = self.encoder(hidden_states, mask, segments, apart)
        pooled = self.pool(hidden_states, mask)
        return BaseModelOutputWithPooling(last_hidden_state=hidden_states, pooler_output=pooled)

    def _special(self, input_ids: torch.Tensor | None, mask: torch.Tensor | None) -> torch.Tensor | None:
        """(B, S), True at real [CLS] and [SEP] tokens; None where ids are not known."""
        if input_ids is None:
            return None
        special = torch.zeros_like(input_ids, dtype=torch.bool)
        for token in (self.config.cls_token_id, self.config.sep_token_id):
            if token is not None:
                special = special | (input_ids == token)
        return special if mask is None else special & mask

    def _segments(
        self,
        hidden_states: torch.Tensor,
        special: torch.Tensor | None,
        segment_ids: torch.Tensor | None,
        numbers: torch.Tensor | None = None,
    ) -> torch.Tensor | None:
        """Numbers from 0 to S, (B, S), equal at the tokens of a segment; None for one segment."""
        batch, length, _ = hidden_states.shape
        if segment_ids is not None:
            if segment_ids.shape != (batch, length):
                raise ValueError(
                    f"segment_ids has shape {tuple(segment_ids.shape)} and the input {(batch, length)}: give a number for "
                    "each token."
                )
            if is_readable(segment_ids) and not (segment_ids.min() >= 0 and segment_ids.max() <= length):
                wrong = segment_ids[(segment_ids < 0) | (segment_ids > length)][0].item()
                raise ValueError(f"segment_ids holds {wrong}: number segments from 0, up to the length {length}.")
            return segment_ids
        if self.config.segment_rule == "special":
            if special is None:
                return None
            # A special token begins a segment, and so does what follows it.
            return (special | F.pad(special, (1, -1))).cumsum(1)
        wanted = int(self.config.segment_rule.removeprefix("fixed:"))
        width = self.config.max_position_embeddings // wanted + 1
        if numbers is None:
            numbers = torch.arange(length, device=hidden_states.device).expand(batch, -1)
        return numbers // width


class PoNetForMaskedLM(MaskedLM, PoNetPreTrainedModel):
    """PoNet with BERT's masked-LM head.

    Examples:
        >>> import torch
        >>> from s3bert import PoNetConfig, PoNetForMaskedLM
        >>> model = PoNetForMaskedLM(PoNetConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2))
        >>> ids, labels = torch.tensor([[101, 103, 102]]), torch.tensor([[-100, 7592, -100]])
        >>> model(input_ids=ids, labels=labels).logits.shape
        torch.Size([1, 3, 30522])
    """

    encoder_class = PoNetModel
    _tied_weights_keys = tied_decoder("ponet")


class PoNetForSequenceClassification(SequenceClassification, PoNetPreTrainedModel):
    """PoNet with a linear layer on the pooled vector (`classifier_pooling`): classification, or regression.

    Examples:
        >>> import torch
        >>> from s3bert import PoNetConfig, PoNetForSequenceClassification
        >>> config = PoNetConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_labels=3)
        >>> model = PoNetForSequenceClassification(config)
        >>> model(input_ids=torch.tensor([[101, 7592, 102]]), labels=torch.tensor([2])).logits.shape
        torch.Size([1, 3])
    """

    encoder_class = PoNetModel


class PoNetForTokenClassification(TokenClassification, PoNetPreTrainedModel):
    """PoNet with a linear layer on every token.

    Examples:
        >>> import torch
        >>> from s3bert import PoNetConfig, PoNetForTokenClassification
        >>> config = PoNetConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_labels=5)
        >>> model = PoNetForTokenClassification(config)
        >>> model(input_ids=torch.tensor([[101, 7592, 102]]), labels=torch.tensor([[-100, 4, 0]])).logits.shape
        torch.Size([1, 3, 5])
    """

    encoder_class = PoNetModel


class PoNetForQuestionAnswering(QuestionAnswering, PoNetPreTrainedModel):
    """PoNet with scores for where an answer starts and ends.

    Examples:
        >>> import torch
        >>> from s3bert import PoNetConfig, PoNetForQuestionAnswering
        >>> model = PoNetForQuestionAnswering(PoNetConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2))
        >>> outputs = model(input_ids=torch.tensor([[101, 2040, 102, 7592, 102]]))
        >>> outputs.start_logits.shape, outputs.end_logits.shape
        (torch.Size([1, 5]), torch.Size([1, 5]))
    """

    encoder_class = PoNetModel


class PoNetForMultipleChoice(MultipleChoice, PoNetPreTrainedModel):
    """PoNet with one score for each choice, from the pooled vector (`classifier_pooling`).

    Examples:
        >>> import torch
        >>> from s3bert import PoNetConfig, PoNetForMultipleChoice
        >>> model = PoNetForMultipleChoice(PoNetConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2))
        >>> choices = torch.tensor([[[101, 7592, 102], [101, 2088, 102]]])
        >>> model(input_ids=choices, labels=torch.tensor([1])).logits.shape
        torch.Size([1, 2])
    """

    encoder_class = PoNetModel


__all__ = [
    "PoNetForMaskedLM",
    "PoNetForMultipleChoice",
    "PoNetForQuestionAnswering",
    "PoNetForSequenceClassification",
    "PoNetForTokenClassification",
    "PoNetModel",
    "PoNetPreTrainedModel",
]
