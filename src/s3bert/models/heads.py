"""BERT's heads for any encoder of this package, as classes to mix in before the encoder's own pre-trained class:

    class PoNetForMaskedLM(MaskedLM, PoNetPreTrainedModel):
        encoder_class = PoNetModel

Inputs are the encoder's, and are passed on; the Trainer keeps the columns that a signature names, so the usual ones are
named. B batch, S length, V vocabulary.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers.modeling_outputs import (
    BaseModelOutputWithPooling,
    MaskedLMOutput,
    MultipleChoiceModelOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.models.bert.modeling_bert import BertOnlyMLMHead
from transformers.utils.generic import can_return_tuple

from .configuration_encoder import EncoderConfig
from .encoder import EncoderModel, EncoderPreTrainedModel
from .input_checks import check_classes, is_readable
from .numerics import at_least_float32


if TYPE_CHECKING:  # what a head is mixed into
    _Encoder = EncoderPreTrainedModel
else:
    _Encoder = object


class Head(_Encoder):
    """What all heads do with their encoder."""

    encoder_class: Callable[..., EncoderModel]

    def _build(self, config: EncoderConfig, pooled: bool, **modules: nn.Module) -> None:
        """The encoder, under its own name, and the head's modules."""
        setattr(self, self.base_model_prefix, self.encoder_class(config, add_pooling_layer=pooled))
        for name, module in modules.items():
            setattr(self, name, module)
        self.num_labels = config.num_labels
        self.post_init()

    def _encode(self, *inputs: torch.Tensor | None, **kwargs: Any) -> BaseModelOutputWithPooling:
        return self.base_model(*inputs, return_dict=True, **kwargs)


def mean_cross_entropy(
    logits: torch.Tensor, labels: torch.Tensor, num_items_in_batch: torch.Tensor | int | None, setting: str
) -> torch.Tensor:
    """Mean cross entropy of (..., C) logits over labels that are not -100; 0 where there is none. `setting` is what C is."""
    check_classes(labels, logits, setting)
    labels = labels.reshape(-1)
    total = F.cross_entropy(at_least_float32(logits).reshape(-1, logits.shape[-1]), labels, reduction="sum")
    if num_items_in_batch is None:
        num_items_in_batch = (labels != -100).sum().clamp(min=1)
    return total / num_items_in_batch


def _classifier_dropout(config: EncoderConfig) -> nn.Dropout:
    rate = config.classifier_dropout
    return nn.Dropout(config.hidden_dropout_prob if rate is None else rate)


def _classifier(config: EncoderConfig) -> nn.Linear:
    return nn.Linear(config.hidden_size, config.num_labels)


def tied_decoder(base_model_prefix: str) -> dict[str, str]:
    """`_tied_weights_keys` of a `MaskedLM`: the decoder is the table of word embeddings."""
    return {
        "cls.predictions.decoder.weight": f"{base_model_prefix}.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    }


def labelled_positions(
    hidden_states: torch.Tensor, labels: torch.Tensor, max_predictions: int | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Hidden states (P, H) and labels (P,) of the labelled positions; P is `max_predictions` where it is given."""
    positions = tuple(hidden_states.shape[:2])
    if tuple(labels.shape) not in (positions, (hidden_states.shape[:2].numel(),)):
        raise ValueError(f"labels have shape {tuple(labels.shape)}: give one for each position, {positions}.")
    hidden_states, labels = hidden_states.flatten(0, 1), labels.flatten()  # (B S, H), (B S,)
    unlabelled = labels == -100
    if max_predictions is None:
        chosen = (~unlabelled).nonzero()[:, 0]
    else:
        if is_readable(labels):
            labelled = int((~unlabelled).sum())
            if labelled > max_predictions:
                raise ValueError(
                    f"max_predictions = {max_predictions}, but {labelled} labels are not -100: give at least their number."
                )
        chosen = unlabelled.byte().argsort(stable=True)[:max_predictions]  # the labelled ones first
    return hidden_states.index_select(0, chosen), labels[chosen]


class MaskedLM(Head):
    """BERT's masked-LM head, the decoder tied to the word embeddings."""

    cls: BertOnlyMLMHead

    def __init__(self, config: EncoderConfig):
        super().__init__(config)
        self._build(config, pooled=False, cls=BertOnlyMLMHead(config))

    def get_output_embeddings(self) -> nn.Linear:
        return self.cls.predictions.decoder

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        self.cls.predictions.decoder = new_embeddings
        self.cls.predictions.bias = new_embeddings.bias

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        max_predictions: int | None = None,
        **kwargs: Any,
    ) -> MaskedLMOutput | tuple:
        """`labels` (B, S) hold the original ids at masked positions and -100 elsewhere. `logits` are (B, S, V); with
        `sparse_prediction` and labels, in training or with `max_predictions`, (labelled positions, V) in reading order.

        Counting those positions makes the host wait for an accelerator and breaks a compiled graph. A caller who knows
        that they are at most `max_predictions` gets `logits` (max_predictions, V) without either: the rows beyond the
        labelled ones belong to other positions and are not in the loss.

        Raises:
            ValueError: on CPU, more labels than `max_predictions`; on an accelerator, or compiled, the last are lost.
        """
        outputs = self._encode(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **kwargs)
        hidden_states = outputs[0]
        sparse = self.config.sparse_prediction and (self.training or max_predictions is not None)
        if sparse and labels is not None:
            hidden_states, labels = labelled_positions(hidden_states, labels, max_predictions)
        logits = self.cls(hidden_states)
        loss = None if labels is None else mean_cross_entropy(logits, labels, num_items_in_batch, "vocab_size")
        return MaskedLMOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class SequenceClassification(Head):
    """A linear layer on the pooled vector, see `classifier_pooling`: classification, or regression."""

    dropout: nn.Dropout
    classifier: nn.Linear

    def __init__(self, config: EncoderConfig):
        super().__init__(config)
        classifier = _classifier(config)
        self._build(config, pooled=True, dropout=_classifier_dropout(config), classifier=classifier)

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: Any,
    ) -> SequenceClassifierOutput | tuple:
        """`labels` (B) integers for classes or floats for a regression, (B, labels) floats for several labels at once;
        `config.problem_type` decides, or the labels' type and `config.num_labels` where it is not set."""
        outputs = self._encode(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **kwargs)
        logits = self.classifier(self.dropout(outputs.pooler_output))  # (B, labels)
        loss = None if labels is None else self._loss(logits, labels, num_items_in_batch)
        return SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )

    def _loss(
        self, logits: torch.Tensor, labels: torch.Tensor, num_items_in_batch: torch.Tensor | int | None
    ) -> torch.Tensor:
        problem: str | None = self.config.problem_type
        if problem is None:
            integers = not labels.is_floating_point()
            several = "single_label_classification" if integers else "multi_label_classification"
            problem = "regression" if self.config.num_labels == 1 else several
        if problem == "single_label_classification":
            return mean_cross_entropy(logits, labels, num_items_in_batch, "num_labels")
        if labels.numel() != logits.numel():
            raise ValueError(
                f"labels have shape {tuple(labels.shape)} and the logits {tuple(logits.shape)}: {problem} takes a number for "
                "each logit; integers (B) give each sequence one class."
            )
        logits = at_least_float32(logits)
        labels = labels.to(logits.dtype).view_as(logits)
        of_item = F.mse_loss if problem == "regression" else F.binary_cross_entropy_with_logits
        items = labels.numel() if num_items_in_batch is None else num_items_in_batch
        return of_item(logits, labels, reduction="sum") / items


class TokenClassification(Head):
    """A linear layer on every token."""

    dropout: nn.Dropout
    classifier: nn.Linear

    def __init__(self, config: EncoderConfig):
        super().__init__(config)
        classifier = _classifier(config)
        self._build(config, pooled=False, dropout=_classifier_dropout(config), classifier=classifier)

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: Any,
    ) -> TokenClassifierOutput | tuple:
        """`labels` (B, S), -100 where a token has none. `logits` are (B, S, labels)."""
        outputs = self._encode(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **kwargs)
        logits = self.classifier(self.dropout(outputs.last_hidden_state))
        loss = None if labels is None else mean_cross_entropy(logits, labels, num_items_in_batch, "num_labels")
        return TokenClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class QuestionAnswering(Head):
    """Scores for where an answer starts and ends."""

    qa_outputs: nn.Linear

    def __init__(self, config: EncoderConfig):
        super().__init__(config)
        self._build(config, pooled=False, qa_outputs=nn.Linear(config.hidden_size, 2))

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        start_positions: torch.Tensor | None = None,
        end_positions: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: Any,
    ) -> QuestionAnsweringModelOutput | tuple:
        """`start_positions` and `end_positions` (B); one beyond the sequence is not counted. Both logits are (B, S)."""
        outputs = self._encode(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **kwargs)
        start_logits, end_logits = self.qa_outputs(outputs.last_hidden_state).unbind(-1)
        loss = None
        if start_positions is not None and end_positions is not None:
            losses = []
            for logits, positions in ((start_logits, start_positions), (end_logits, end_positions)):
                positions = positions.reshape(-1)
                inside = (positions >= 0) & (positions < logits.shape[1])
                positions = positions.where(inside, -100)
                losses.append(mean_cross_entropy(logits, positions, num_items_in_batch, "length"))
            loss = (losses[0] + losses[1]) / 2
        return QuestionAnsweringModelOutput(
            loss=loss,
            start_logits=start_logits,
            end_logits=end_logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class MultipleChoice(Head):
    """One score for each choice, from the pooled vector, see `classifier_pooling`."""

    dropout: nn.Dropout
    classifier: nn.Linear

    def __init__(self, config: EncoderConfig):
        super().__init__(config)
        classifier = nn.Linear(config.hidden_size, 1)
        self._build(config, pooled=True, dropout=_classifier_dropout(config), classifier=classifier)

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: Any,
    ) -> MultipleChoiceModelOutput | tuple:
        """Inputs are (B, C, S) for C choices; `labels` (B) number the right one. `logits` are (B, C)."""
        given = input_ids if input_ids is not None else inputs_embeds
        if given is None:
            raise ValueError("Give either input_ids or inputs_embeds.")
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        per_choice = [None if tensor is None else tensor.flatten(0, 1) for tensor in inputs]
        kwargs = {key: x.flatten(0, 1) if isinstance(x, torch.Tensor) else x for key, x in kwargs.items()}
        outputs = self._encode(*per_choice, **kwargs)
        logits = self.classifier(self.dropout(outputs.pooler_output)).view(given.shape[:2])
        loss = None if labels is None else mean_cross_entropy(logits, labels, num_items_in_batch, "choices")
        return MultipleChoiceModelOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )
