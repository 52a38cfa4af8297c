"""S3BERT: BERT with its self-attention swapped for S3Attention (mixer_s3.py), and the usual heads.

    x -> Smoother -> z -> Q, K, V -> skeleton attention -> linear -> dropout -> LayerNorm(x + .) -> feed-forward

Embeddings, feed-forward, pooler and masked-LM head are Transformers' BERT modules, so a checkpoint's names are BERT's
wherever the module is. B batch, S length, N `max_position_embeddings`, H hidden size.
"""

import torch
import torch.nn.functional as F
from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import (
    BaseModelOutputWithPooling,
    MaskedLMOutput,
    MultipleChoiceModelOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.models.bert.modeling_bert import (
    BertEmbeddings,
    BertIntermediate,
    BertLMPredictionHead,
    BertOnlyMLMHead,
    BertOutput,
    BertPooler,
    BertSelfOutput,
)
from transformers.utils import logging
from transformers.utils.generic import can_return_tuple
from transformers.utils.output_capturing import capture_outputs

from .configuration_s3bert import S3BertConfig
from .mixer_s3 import SkeletonAttention, Smoother
from .numerics import at_least_float32
from .position_norm import PositionBatchNorm, repeat_cyclically


logger = logging.get_logger(__name__)


class S3BertSelfOutput(BertSelfOutput):
    """BERT's, except that its projection `dense` has been applied by the attention, which may fuse the two."""

    def forward(self, projected: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        return self.LayerNorm(self.dropout(projected) + inputs)


class S3BertAttention(nn.Module):
    """Smoother, skeleton attention, and BERT's output projection with the residual of the unsmoothed input."""

    def __init__(self, config: S3BertConfig, layer_index: int):
        super().__init__()
        self.smoother = Smoother(
            config.hidden_size,
            config.num_segments,
            config.max_position_embeddings,
            norm=config.smoother_norm,
            dropout=config.smoother_dropout_prob,
            use_fourier_convolution=config.use_fourier_convolution,
            use_convolution_stem=config.use_convolution_stem,
            layer_norm_eps=config.layer_norm_eps,
            form=config.smoother_form,
            fourier_impl=config.fourier_impl,
        )
        self.self = SkeletonAttention(
            config.hidden_size,
            config.num_attention_heads,
            config.num_row_samples,
            config.num_column_samples,
            config.landmark_length,
            use_row_attention=config.use_row_attention,
            use_column_attention=config.use_column_attention,
            landmark_sampling=config.landmark_sampling,
            landmark_seed=config.landmark_seed,
            layer_index=layer_index,
            dropout=config.attention_probs_dropout_prob,
            layer_norm_eps=config.layer_norm_eps,
            form=config.attention_form,
        )
        self.output = S3BertSelfOutput(config)

    def forward(
        self, hidden_states: torch.Tensor, mask: torch.Tensor | None = None, contiguous: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        smoothed = self.smoother(hidden_states, mask, contiguous)
        projected, row_weights = self.self(smoothed, mask, lambda: self.output.dense)
        return self.output(projected, hidden_states), row_weights


class S3BertLayer(GradientCheckpointingLayer):
    """S3Attention and BERT's feed-forward, each followed by a residual and LayerNorm; (B, S, H) -> (B, S, H)."""

    def __init__(self, config: S3BertConfig, layer_index: int):
        super().__init__()
        self.attention = S3BertAttention(config, layer_index)
        self.intermediate = BertIntermediate(config)
        self.output = BertOutput(config)

    def forward(
        self, hidden_states: torch.Tensor, mask: torch.Tensor | None = None, contiguous: bool = False
    ) -> torch.Tensor:
        hidden_states, _ = self.attention(hidden_states, mask, contiguous)
        return self.output(self.intermediate(hidden_states), hidden_states)


class S3BertEncoder(nn.Module):
    """The stack of layers."""

    def __init__(self, config: S3BertConfig):
        super().__init__()
        self.layer = nn.ModuleList([S3BertLayer(config, index) for index in range(config.num_hidden_layers)])

    def forward(
        self, hidden_states: torch.Tensor, mask: torch.Tensor | None = None, contiguous: bool = False
    ) -> torch.Tensor:
        for layer in self.layer:
            hidden_states = layer(hidden_states, mask, contiguous)
        return hidden_states


class S3BertPreTrainedModel(PreTrainedModel):
    """What every S3BERT model shares: names, initial values, and lengthening.

    Loss: heads average over the labelled items of the call, or divide by `num_items_in_batch` where a trainer passes it
    (the count over all micro-batches of an optimiser step), so that gradient accumulation is exact for every head.
    """

    config_class = S3BertConfig
    config: S3BertConfig
    base_model_prefix = "s3bert"
    supports_gradient_checkpointing = True
    accepts_loss_kwargs = True
    _input_embed_layer = "word_embeddings"
    _no_split_modules = ["S3BertLayer"]
    _can_record_outputs = {"hidden_states": S3BertLayer, "attentions": S3BertAttention}
    _keep_in_fp32_modules_strict = ["smoother.filter", "smoother.norm"]

    @torch.no_grad()
    def _init_weights(self, module: nn.Module):
        """Initial values of every parameter and buffer (`init` leaves alone what a checkpoint has filled).

        Linear, Embedding, Conv1d   weight normal(0, initializer_range), bias 0, padding embedding 0
        LayerNorm                   weight 1, bias 0
        smoother.filter             Kaiming normal, fan-in, ReLU gain (Algorithm 2)
        smoother.norm ("batch")     weight 1, bias 0, running mean 0, running variance 1
        landmarks                   from `landmark_seed` and the layer's number, never from the global generator
        """
        super()._init_weights(module)
        if isinstance(module, Smoother) and module.use_fourier_convolution:
            init.kaiming_normal_(module.filter, nonlinearity="relu")
        elif isinstance(module, PositionBatchNorm):
            init.ones_(module.weight)
            init.zeros_(module.bias)
            init.zeros_(module.running_mean)
            init.ones_(module.running_var)
        elif isinstance(module, SkeletonAttention):
            row_positions, column_indices = module.seeded_landmarks()
            init.copy_(module.row_positions, row_positions)
            init.copy_(module.column_indices, column_indices)
        elif isinstance(module, BertEmbeddings):
            init.copy_(module.position_ids, torch.arange(module.position_ids.shape[-1])[None])
            init.zeros_(module.token_type_ids)
        elif isinstance(module, BertLMPredictionHead):
            init.zeros_(module.bias)

    def get_position_embeddings(self) -> nn.Embedding:
        """The learned position embeddings, an (N, H) table."""
        return self.base_model.embeddings.position_embeddings

    @torch.no_grad()
    def resize_position_embeddings(self, new_num_position_embeddings: int):
        """Lengthens (or shortens) a trained model in place to sequences of `new_num_position_embeddings` tokens.

        The filters keep their taps at every lag they had, position embeddings and the per-position BatchNorm repeat
        cyclically; shortening crops all three. Landmarks are fractions of the length and stay. Inputs of up to half the
        old length (of the new one, when shortening) give the same outputs as before.

        Raises:
            ValueError: the new length is not a positive integer.
        """
        new_length = new_num_position_embeddings
        if not isinstance(new_length, int) or new_length < 1:
            raise ValueError(f"new_num_position_embeddings = {new_length!r}: give a number of tokens, at least 1.")
        if new_length == self.config.max_position_embeddings:
            return
        embeddings = self.base_model.embeddings
        table = nn.Embedding.from_pretrained(
            repeat_cyclically(embeddings.position_embeddings.weight, new_length), freeze=False
        )
        table.weight.requires_grad_(embeddings.position_embeddings.weight.requires_grad)
        embeddings.position_embeddings = table
        embeddings.position_ids = torch.arange(new_length, device=table.weight.device)[None]
        embeddings.token_type_ids = torch.zeros_like(embeddings.position_ids)
        for smoother in self._smoothers():
            smoother.resize(new_length)
        self.config.max_position_embeddings = new_length

    def fold_filters(self, *lengths: int, max_bytes: int = 2**29) -> list[int]:
        """Prepares for inference: each layer keeps its filter and convolution stem as one, for forwards without gradients.

        Call it in evaluation mode, when weights, device and dtype are final: `train()`, loading weights, moving and
        casting drop what is kept, and so does `unfold_filters()`. Checkpoints never hold it. Outputs stay the same.

        Args:
            lengths: each is served, and all below it; powers of two up to N where none is given. One kept filter takes
                about 2 r H numbers for each token of its length, in every layer.
            max_bytes: no further length is kept beyond this size over all layers; the forwards that would use it
                fold anew or do without.

        Returns:
            The lengths that are kept.

        Raises:
            ValueError: the model is in training mode; a length outside 1..N.
        """
        if self.training:
            raise ValueError(
                "fold_filters prepares for inference, and the model is in training mode: call eval() first."
            )
        longest = self.config.max_position_embeddings
        for length in lengths:
            if not 1 <= length <= longest:
                raise ValueError(f"fold_filters: {length} tokens; the model takes 1 to {longest}.")
        self.unfold_filters()
        kept, size = [], 0
        for length in sorted({*lengths} or {longest, *(2**k for k in range(5, longest.bit_length()))}):
            size += sum(smoother.folded_bytes(length) for smoother in self._smoothers())
            if size > max_bytes:
                logger.warning("fold_filters: %d bytes allow lengths %s; not %d.", max_bytes, kept, length)
                break
            for smoother in self._smoothers():
                smoother.fold(length)
            kept.append(length)
        return kept

    def unfold_filters(self) -> None:
        """Drops what `fold_filters` keeps."""
        for smoother in self._smoothers():
            smoother.unfold()

    def _smoothers(self) -> list[Smoother]:
        return [module for module in self.modules() if isinstance(module, Smoother)]


class S3BertModel(S3BertPreTrainedModel):
    """The encoder without a head."""

    _auto_class = "AutoModel"

    def __init__(self, config: S3BertConfig, add_pooling_layer: bool = True):
        super().__init__(config)
        self.embeddings = BertEmbeddings(config)
        self.encoder = S3BertEncoder(config)
        self.pooler = BertPooler(config) if add_pooling_layer else None
        self.post_init()

    @capture_outputs
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | list[int] | None = None,
    ) -> BaseModelOutputWithPooling | tuple:
        """Encodes a batch of sequences of up to N tokens.

        Args:
            input_ids: (B, S) token ids; or `inputs_embeds` (B, S, H) in their place.
            attention_mask: (B, S), nonzero at real tokens; any pattern, and all real when absent.
            token_type_ids, position_ids: (B, S), as in BERT.
            output_attentions: also returns, per layer, the row attention (B, h, S, s1) over landmark tokens.
            output_hidden_states: also returns the embeddings and each layer's output, (B, S, H) each.

        Returns:
            `last_hidden_state` (B, S, H) and `pooler_output` (B, H), the tanh-projected first real token.

        Raises:
            ValueError: neither or both of the inputs; a mask of another shape; more than N tokens; on CPU, an id
                outside its table (on an accelerator, the scripts check their data once, before training).
        """
        self._check_inputs(input_ids, inputs_embeds, attention_mask, token_type_ids, position_ids)
        mask = None if attention_mask is None else attention_mask != 0
        hidden_states = self.embeddings(
            input_ids=input_ids,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
        )
        hidden_states = self.encoder(hidden_states, mask, self._contiguous(mask))
        pooled = None if self.pooler is None else self.pooler(_first_token(hidden_states, mask))
        return BaseModelOutputWithPooling(last_hidden_state=hidden_states, pooler_output=pooled)

    def _contiguous(self, mask: torch.Tensor | None) -> bool:
        """Whether each sequence's real tokens are one run, as far as that can be known without stalling anything.

        Reading the mask breaks a compiled graph, and makes the host wait for an accelerator: once in evaluation that is
        worth the folded stem, in training it is not.
        """
        if mask is None:
            return True
        if torch.compiler.is_compiling() or (self.training and mask.device.type != "cpu"):
            return False
        starts = mask[:, 0].sum() + (mask[:, 1:] & ~mask[:, :-1]).sum()
        return bool(starts <= mask.shape[0]) and bool(mask.any(1).all())

    def _check_inputs(self, input_ids, inputs_embeds, attention_mask, token_type_ids, position_ids):
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("Give either input_ids or inputs_embeds, and not both.")
        shape = input_ids.shape if input_ids is not None else inputs_embeds.shape[:-1]
        if len(shape) != 2:
            raise ValueError(f"Inputs are batches of sequences, (B, S); got a batch and length of {tuple(shape)}.")
        if attention_mask is not None and attention_mask.shape != shape:
            raise ValueError(
                f"attention_mask has shape {tuple(attention_mask.shape)} and the input {tuple(shape)}: give one entry "
                "for each token, 1 for real and 0 for padding."
            )
        if shape[1] > self.config.max_position_embeddings:
            raise ValueError(
                f"The sequence has {shape[1]} tokens, the model takes up to {self.config.max_position_embeddings}: "
                f"truncate it, or call model.resize_position_embeddings({shape[1]}) to lengthen the model."
            )
        if 0 in shape:
            raise ValueError(
                f"The batch is empty: {shape[0]} sequences of {shape[1]} tokens; give at least one of one."
            )
        # Reading values would stall an accelerator and break a compiled graph; an index error on CPU is caught here.
        if torch.compiler.is_compiling():
            return
        embeddings = self.embeddings
        remedy = "use the tokenizer the model was trained with, or model.resize_token_embeddings(len(tokenizer))"
        for name, ids, table, mend in (
            ("Token id", input_ids, embeddings.word_embeddings, remedy),
            ("Token type", token_type_ids, embeddings.token_type_embeddings, "see config.type_vocab_size"),
            ("Position", position_ids, embeddings.position_embeddings, "see resize_position_embeddings"),
        ):
            size = table.num_embeddings
            if ids is not None and ids.device.type == "cpu" and not (ids.min() >= 0 and ids.max() < size):
                wrong = ids[(ids < 0) | (ids >= size)][0].item()
                raise ValueError(f"{name} {wrong} is outside the model's 0..{size - 1}: {mend}.")


def _first_token(hidden_states: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Each sequence's first real token (B, 1, H), which left padding moves away from position 0."""
    if mask is None:
        return hidden_states[:, :1]
    first = mask.long().argmax(1)[:, None, None].expand(-1, 1, hidden_states.shape[-1])
    return hidden_states.gather(1, first)


def _cross_entropy(
    logits: torch.Tensor, labels: torch.Tensor, num_items_in_batch: torch.Tensor | int | None
) -> torch.Tensor:
    """Mean cross entropy of (..., C) logits over labels that are not -100; 0 where there is none."""
    labels = labels.reshape(-1)
    total = F.cross_entropy(at_least_float32(logits).reshape(-1, logits.shape[-1]), labels, reduction="sum")
    if num_items_in_batch is None:
        num_items_in_batch = (labels != -100).sum().clamp(min=1)
    return total / num_items_in_batch


def _classifier_dropout(config: S3BertConfig) -> nn.Dropout:
    rate = config.classifier_dropout
    return nn.Dropout(config.hidden_dropout_prob if rate is None else rate)


class S3BertForMaskedLM(S3BertPreTrainedModel):
    """S3BERT with BERT's masked-LM head, the decoder tied to the word embeddings."""

    _auto_class = "AutoModelForMaskedLM"
    _tied_weights_keys = {
        "cls.predictions.decoder.weight": "s3bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    }

    def __init__(self, config: S3BertConfig):
        super().__init__(config)
        self.s3bert = S3BertModel(config, add_pooling_layer=False)
        self.cls = BertOnlyMLMHead(config)
        self.post_init()

    def get_output_embeddings(self) -> nn.Linear:
        return self.cls.predictions.decoder

    def set_output_embeddings(self, new_embeddings: nn.Linear):
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
        labels: torch.LongTensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        max_predictions: int | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | list[int] | None = None,
    ) -> MaskedLMOutput | tuple:
        """`labels` (B, S) hold the original ids at masked positions and -100 elsewhere. `logits` are (B, S, V); with
        `sparse_prediction`, in training with labels, (labelled positions, V) in reading order.

        Counting those positions makes the host wait for an accelerator and breaks a compiled graph. A caller who knows
        that they are at most `max_predictions` gets `logits` (max_predictions, V) without either: the rows beyond the
        labelled ones belong to other positions and are not in the loss.

        Raises:
            ValueError: on CPU, more labels than `max_predictions`; on an accelerator, or compiled, the last are lost.
        """
        outputs = self.s3bert(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            return_dict=True,
        )
        hidden_states = outputs.last_hidden_state
        if self.config.sparse_prediction and self.training and labels is not None:
            hidden_states, labels = self._labelled_positions(hidden_states, labels, max_predictions)
        logits = self.cls(hidden_states)
        loss = None if labels is None else _cross_entropy(logits, labels, num_items_in_batch)
        return MaskedLMOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )

    def _labelled_positions(self, hidden_states, labels, max_predictions) -> tuple[torch.Tensor, torch.Tensor]:
        """Hidden states (P, H) and labels (P,) of the labelled positions; P is `max_predictions` where it is given."""
        hidden_states, labels = hidden_states.flatten(0, 1), labels.flatten()  # (B S, H), (B S,)
        unlabelled = labels == -100
        if max_predictions is None:
            chosen = (~unlabelled).nonzero()[:, 0]
        else:
            if labels.device.type == "cpu" and not torch.compiler.is_compiling():
                labelled = int((~unlabelled).sum())
                if labelled > max_predictions:
                    raise ValueError(
                        f"max_predictions = {max_predictions}, but {labelled} labels are not -100: give at least their number."
                    )
            chosen = unlabelled.byte().argsort(stable=True)[:max_predictions]  # the labelled ones first
        return hidden_states.index_select(0, chosen), labels[chosen]


class S3BertForSequenceClassification(S3BertPreTrainedModel):
    """S3BERT with a linear layer on the pooled first token: classification, or regression."""

    _auto_class = "AutoModelForSequenceClassification"

    def __init__(self, config: S3BertConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.s3bert = S3BertModel(config)
        self.dropout = _classifier_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

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
        output_attentions: bool | None = None,
        output_hidden_states: bool | list[int] | None = None,
    ) -> SequenceClassifierOutput | tuple:
        """`labels` (B) integers for classes or floats for a regression, (B, labels) floats for several labels at once;
        `config.problem_type` decides, or the labels' type and `config.num_labels` where it is not set."""
        outputs = self.s3bert(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            return_dict=True,
        )
        logits = self.classifier(self.dropout(outputs.pooler_output))  # (B, labels)
        loss = None if labels is None else self._loss(logits, labels, num_items_in_batch)
        return SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )

    def _loss(self, logits, labels, num_items_in_batch) -> torch.Tensor:
        problem = self.config.problem_type
        if problem is None:
            integers = not labels.is_floating_point()
            several = "single_label_classification" if integers else "multi_label_classification"
            problem = "regression" if self.config.num_labels == 1 else several
        if problem == "single_label_classification":
            return _cross_entropy(logits, labels, num_items_in_batch)
        logits = at_least_float32(logits)
        labels = labels.to(logits.dtype).view_as(logits)
        of_item = F.mse_loss if problem == "regression" else F.binary_cross_entropy_with_logits
        items = labels.numel() if num_items_in_batch is None else num_items_in_batch
        return of_item(logits, labels, reduction="sum") / items


class S3BertForTokenClassification(S3BertPreTrainedModel):
    """S3BERT with a linear layer on every token."""

    _auto_class = "AutoModelForTokenClassification"

    def __init__(self, config: S3BertConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.s3bert = S3BertModel(config, add_pooling_layer=False)
        self.dropout = _classifier_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.LongTensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | list[int] | None = None,
    ) -> TokenClassifierOutput | tuple:
        """`labels` (B, S), -100 where a token has none. `logits` are (B, S, labels)."""
        outputs = self.s3bert(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            return_dict=True,
        )
        logits = self.classifier(self.dropout(outputs.last_hidden_state))
        loss = None if labels is None else _cross_entropy(logits, labels, num_items_in_batch)
        return TokenClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class S3BertForQuestionAnswering(S3BertPreTrainedModel):
    """S3BERT with scores for where an answer starts and ends."""

    _auto_class = "AutoModelForQuestionAnswering"

    def __init__(self, config: S3BertConfig):
        super().__init__(config)
        self.s3bert = S3BertModel(config, add_pooling_layer=False)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        start_positions: torch.LongTensor | None = None,
        end_positions: torch.LongTensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | list[int] | None = None,
    ) -> QuestionAnsweringModelOutput | tuple:
        """`start_positions` and `end_positions` (B); one beyond the sequence is not counted. Both logits are (B, S)."""
        outputs = self.s3bert(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            return_dict=True,
        )
        start_logits, end_logits = self.qa_outputs(outputs.last_hidden_state).unbind(-1)
        loss = None
        if start_positions is not None and end_positions is not None:
            losses = []
            for logits, positions in ((start_logits, start_positions), (end_logits, end_positions)):
                positions = positions.reshape(-1)
                inside = (positions >= 0) & (positions < logits.shape[1])
                losses.append(_cross_entropy(logits, positions.where(inside, -100), num_items_in_batch))
            loss = sum(losses) / 2
        return QuestionAnsweringModelOutput(
            loss=loss,
            start_logits=start_logits,
            end_logits=end_logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class S3BertForMultipleChoice(S3BertPreTrainedModel):
    """S3BERT with one score for each choice, from the pooled first token."""

    _auto_class = "AutoModelForMultipleChoice"

    def __init__(self, config: S3BertConfig):
        super().__init__(config)
        self.s3bert = S3BertModel(config)
        self.dropout = _classifier_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, 1)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.LongTensor | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | list[int] | None = None,
    ) -> MultipleChoiceModelOutput | tuple:
        """Inputs are (B, C, S) for C choices; `labels` (B) number the right one. `logits` are (B, C)."""
        given = input_ids if input_ids is not None else inputs_embeds
        num_choices = given.shape[1]
        per_token = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds = (
            None if tensor is None else tensor.flatten(0, 1) for tensor in per_token
        )
        outputs = self.s3bert(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            return_dict=True,
        )
        logits = self.classifier(self.dropout(outputs.pooler_output)).view(-1, num_choices)
        loss = None if labels is None else _cross_entropy(logits, labels, num_items_in_batch)
        return MultipleChoiceModelOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


__all__ = [
    "S3BertForMaskedLM",
    "S3BertForMultipleChoice",
    "S3BertForQuestionAnswering",
    "S3BertForSequenceClassification",
    "S3BertForTokenClassification",
    "S3BertModel",
    "S3BertPreTrainedModel",
]
