"""S3BERT: BERT with its self-attention swapped for S3Attention (mixer_s3.py), and the usual heads.

    x -> S3Attention -> dropout -> LayerNorm(x + .) -> feed-forward

B batch, S length, N `max_position_embeddings`, H hidden size.
"""

from typing import cast

import torch
from torch import nn
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.models.bert.modeling_bert import BertSelfOutput
from transformers.utils import logging
from transformers.utils.output_capturing import capture_outputs

from .configuration_s3bert import S3BertConfig
from .encoder import EncoderLayer, EncoderModel, EncoderPreTrainedModel
from .fast_smoother import fold, folded_bytes, folding_saves, unfold
from .heads import (
    MaskedLM,
    MultipleChoice,
    QuestionAnswering,
    SequenceClassification,
    TokenClassification,
    tied_decoder,
)
from .mixer_s3 import apply_s3, build_s3, initialize_s3, is_plain
from .position_norm import repeat_cyclically
from .smoother import FLOAT32_PARTS, Smoother


logger = logging.get_logger(__name__)


class S3BertSelfOutput(BertSelfOutput):
    """BERT's, except that its projection `dense` has been applied by `apply_s3`, which may fuse it with the attention."""

    def forward(self, projected: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        return self.LayerNorm(self.dropout(projected) + inputs)


class S3BertAttention(nn.Module):
    """S3Attention, and BERT's residual of the unsmoothed input; the arguments are those of `apply_s3`."""

    def __init__(self, config: S3BertConfig, layer_index: int):
        super().__init__()
        self.implementation = config.implementation
        self.smoother, self.self = build_s3(
            config.hidden_size,
            config.num_attention_heads,
            config.max_position_embeddings,
            num_segments=config.num_segments,
            num_row_samples=config.num_row_samples,
            num_column_samples=config.num_column_samples,
            smoother_dropout_prob=config.smoother_dropout_prob,
            attention_dropout_prob=config.attention_probs_dropout_prob,
            smoother_norm=config.smoother_norm,
            use_fourier_convolution=config.use_fourier_convolution,
            use_convolution_stem=config.use_convolution_stem,
            use_row_attention=config.use_row_attention,
            use_column_attention=config.use_column_attention,
            landmark_length=config.landmark_length,
            landmark_sampling=config.landmark_sampling,
            landmark_seed=config.landmark_seed,
            layer_index=layer_index,
            row_norm_init=config.row_norm_init,
            stem=config.stem,
            stem_activation=config.stem_activation,
            filter_init=config.filter_init,
            implementation=config.implementation,
            layer_norm_eps=config.layer_norm_eps,
        )
        self.output = S3BertSelfOutput(config)

    def forward(
        self,
        hidden_states: torch.Tensor,
        mask: torch.Tensor | None = None,
        numbers: torch.Tensor | None = None,
        contiguous: bool = False,
        use_sdpa: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        projected, row_weights = apply_s3(
            self.smoother,
            self.self,
            self.output.dense,
            hidden_states,
            mask,
            numbers,
            implementation=self.implementation,
            contiguous=contiguous,
            use_sdpa=use_sdpa,
        )
        return self.output(projected, hidden_states), row_weights


class S3BertLayer(EncoderLayer):
    """S3Attention and BERT's feed-forward; called with what `S3BertAttention` is."""

    def __init__(self, config: S3BertConfig, layer_index: int):
        super().__init__(config, S3BertAttention(config, layer_index))


class S3BertPreTrainedModel(EncoderPreTrainedModel):
    """What every S3BERT model shares: names, initial values, lengthening, and folding for inference.

    Examples:
        >>> from s3bert import S3BertConfig, S3BertModel, S3BertPreTrainedModel
        >>> model = S3BertModel(S3BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2))
        >>> model.resize_position_embeddings(2048)
        >>> isinstance(model, S3BertPreTrainedModel), model.config.max_position_embeddings
        (True, 2048)
    """

    config_class = S3BertConfig
    config: S3BertConfig
    base_model_prefix = "s3bert"
    lengthening = ", or call model.resize_position_embeddings({length}) to lengthen the model"
    _no_split_modules = ["S3BertLayer"]
    _can_record_outputs = {"hidden_states": S3BertLayer, "attentions": S3BertAttention}
    _keep_in_fp32_modules_strict = list(FLOAT32_PARTS)
    _supports_sdpa = True

    def get_correct_attn_implementation(self, requested_attention: str | None, is_init_check: bool = False) -> str:
        """Transformers' check of `attn_implementation`: "eager", the default, or "sdpa", which acts on row attention alone.

        It does so where queries are formed: under `implementation="direct"`, and where "auto" does without the low-rank form, as at
        the default sizes with under 512 tokens in the batch, or compiled for an accelerator.

        Raises:
            ValueError: another implementation.
        """
        if requested_attention not in (None, "eager", "sdpa"):
            raise ValueError(
                f"attn_implementation = {requested_attention!r}: S3BERT takes 'eager' or 'sdpa'; flash kernels compute softmax over all "
                "pairs of tokens, and S3Attention has none: its tokens meet a few landmarks."
            )
        return requested_attention or "eager"

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """As every encoder's, and `initialize_s3`."""
        super()._init_weights(module)
        initialize_s3(module)

    @torch.no_grad()
    def resize_position_embeddings(self, new_num_position_embeddings: int) -> None:
        """Lengthens (or shortens) a trained model in place to sequences of `new_num_position_embeddings` tokens.

        A tokenizer goes on truncating at its own length: set `tokenizer.model_max_length` too.

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
        embeddings = cast(EncoderModel, self.base_model).embeddings
        table = nn.Embedding.from_pretrained(
            repeat_cyclically(embeddings.position_embeddings.weight, new_length), freeze=False
        )
        table.weight.requires_grad_(embeddings.position_embeddings.weight.requires_grad)
        embeddings.position_embeddings = table
        position_ids = torch.arange(new_length, device=table.weight.device)[None]
        embeddings.register_buffer("position_ids", position_ids, persistent=False)
        embeddings.register_buffer("token_type_ids", torch.zeros_like(position_ids), persistent=False)
        self.unfold_filters()
        for smoother in self._smoothers():
            smoother.resize(new_length)
        self.config.max_position_embeddings = new_length

    def fold_filters(self, *lengths: int, max_bytes: int = 2**29) -> list[int]:
        """Prepares for inference: each layer keeps its filter and convolution stem as one. Outputs stay the same.

        What is kept is a frozen snapshot. In evaluation without gradients it is used in place of the weights it was made of,
        until `unfold_filters()`, `train()`, `load_state_dict()`, casting, moving or lengthening drops it. A change of weights in
        place (an optimiser's step, `.data`, NumPy, a merged adapter, `functional_call`) is NOT noticed: call `unfold_filters()`.
        Checkpoints never hold it.

        Args:
            lengths: each is served, and all below it; powers of two up to N where none is given. One kept filter takes
                about 2 (r + 1) H numbers for each token of its length, in every layer; half of that where its length is N.
            max_bytes: no further length is kept beyond this size over all layers; the forwards that would use it
                fold by themselves or do without.

        Returns:
            The lengths that are kept; none where `implementation` is not "auto", or so many segments make it slower.

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
        config = self.config
        if config.implementation != "auto" or not (config.use_fourier_convolution and config.use_convolution_stem):
            return []
        plain = (smoother for smoother in self._smoothers() if is_plain(smoother.stem, nn.Conv1d))
        smoothers = [smoother for smoother in plain if folding_saves(smoother)]
        if not smoothers:
            return []
        kept: list[int] = []
        size = 0
        for length in sorted({*lengths} or {longest, *(2**k for k in range(5, longest.bit_length()))}):
            size += sum(folded_bytes(smoother, length) for smoother in smoothers)
            if size > max_bytes:
                logger.warning("fold_filters: %d bytes allow lengths %s; not %d.", max_bytes, kept, length)
                break
            for smoother in smoothers:
                fold(smoother, length)
            kept.append(length)
        return kept

    def unfold_filters(self) -> None:
        """Drops what `fold_filters` keeps."""
        for smoother in self._smoothers():
            unfold(smoother)

    def _smoothers(self) -> list[Smoother]:
        return [module for module in self.modules() if isinstance(module, Smoother)]


class S3BertModel(S3BertPreTrainedModel, EncoderModel):
    """The encoder without a head.

    Examples:
        >>> import torch
        >>> from s3bert import S3BertConfig, S3BertModel
        >>> model = S3BertModel(S3BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2))
        >>> model(input_ids=torch.tensor([[101, 7592, 102]])).last_hidden_state.shape
        torch.Size([1, 3, 32])
    """

    def __init__(self, config: S3BertConfig, add_pooling_layer: bool = True):
        layers = (S3BertLayer(config, index) for index in range(config.num_hidden_layers))
        super().__init__(config, layers, add_pooling_layer)

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
            attention_mask: (B, S), nonzero at real tokens, never additive; any pattern, and all real when absent.
            token_type_ids: (B, S), as in BERT.
            position_ids: (B, S) or (1, S); where absent, the running number of real tokens, which padding on the left does not move.
            output_attentions: also returns, per layer, the row attention (B, h, S, s1) over landmark tokens.
            output_hidden_states: also returns the embeddings and each layer's output, (B, S, H) each.

        Returns:
            `last_hidden_state` (B, S, H) and `pooler_output` (B, H), the tanh-projected first real token or mean.

        Raises:
            ValueError: see `EncoderModel.embed`.
        """
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        hidden_states, mask, numbers = self.embed(*inputs)
        with_weights = self.config.output_attentions if output_attentions is None else output_attentions
        use_sdpa = self.config._attn_implementation == "sdpa" and not with_weights
        hidden_states = self.encoder(hidden_states, mask, numbers, self._contiguous(mask), use_sdpa)
        pooled = self.pool(hidden_states, mask)
        return BaseModelOutputWithPooling(last_hidden_state=hidden_states, pooler_output=pooled)

    def _contiguous(self, mask: torch.Tensor | None) -> bool:
        """Whether each sequence's real tokens are one run, where the host may read it: on CPU, in eager mode."""
        if mask is None:
            return True
        # Not `is_readable`: while FLOPs are counted a fake mask is taken for one run, and the form that training takes is counted.
        if mask.device.type != "cpu" or torch.compiler.is_compiling():
            return False
        starts = mask[:, 0].sum() + (mask[:, 1:] & ~mask[:, :-1]).sum()
        return bool((starts <= mask.shape[0]) & mask.any(1).all())


class S3BertForMaskedLM(MaskedLM, S3BertPreTrainedModel):
    """S3BERT with BERT's masked-LM head.

    Examples:
        >>> import torch
        >>> from s3bert import S3BertConfig, S3BertForMaskedLM
        >>> model = S3BertForMaskedLM(S3BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2))
        >>> ids, labels = torch.tensor([[101, 103, 102]]), torch.tensor([[-100, 7592, -100]])
        >>> model(input_ids=ids, labels=labels).logits.shape
        torch.Size([1, 3, 30522])
    """

    encoder_class = S3BertModel
    _tied_weights_keys = tied_decoder("s3bert")


class S3BertForSequenceClassification(SequenceClassification, S3BertPreTrainedModel):
    """S3BERT with a linear layer on the pooled vector (`classifier_pooling`): classification, or regression.

    Examples:
        >>> import torch
        >>> from s3bert import S3BertConfig, S3BertForSequenceClassification
        >>> config = S3BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_labels=3)
        >>> model = S3BertForSequenceClassification(config)
        >>> model(input_ids=torch.tensor([[101, 7592, 102]]), labels=torch.tensor([2])).logits.shape
        torch.Size([1, 3])
    """

    encoder_class = S3BertModel


class S3BertForTokenClassification(TokenClassification, S3BertPreTrainedModel):
    """S3BERT with a linear layer on every token.

    Examples:
        >>> import torch
        >>> from s3bert import S3BertConfig, S3BertForTokenClassification
        >>> config = S3BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_labels=5)
        >>> model = S3BertForTokenClassification(config)
        >>> model(input_ids=torch.tensor([[101, 7592, 102]]), labels=torch.tensor([[-100, 4, 0]])).logits.shape
        torch.Size([1, 3, 5])
    """

    encoder_class = S3BertModel


class S3BertForQuestionAnswering(QuestionAnswering, S3BertPreTrainedModel):
    """S3BERT with scores for where an answer starts and ends.

    Examples:
        >>> import torch
        >>> from s3bert import S3BertConfig, S3BertForQuestionAnswering
        >>> model = S3BertForQuestionAnswering(S3BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2))
        >>> outputs = model(input_ids=torch.tensor([[101, 2040, 102, 7592, 102]]))
        >>> outputs.start_logits.shape, outputs.end_logits.shape
        (torch.Size([1, 5]), torch.Size([1, 5]))
    """

    encoder_class = S3BertModel


class S3BertForMultipleChoice(MultipleChoice, S3BertPreTrainedModel):
    """S3BERT with one score for each choice, from the pooled vector (`classifier_pooling`).

    Examples:
        >>> import torch
        >>> from s3bert import S3BertConfig, S3BertForMultipleChoice
        >>> model = S3BertForMultipleChoice(S3BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2))
        >>> choices = torch.tensor([[[101, 7592, 102], [101, 2088, 102]]])
        >>> model(input_ids=choices, labels=torch.tensor([1])).logits.shape
        torch.Size([1, 2])
    """

    encoder_class = S3BertModel


__all__ = [
    "S3BertForMaskedLM",
    "S3BertForMultipleChoice",
    "S3BertForQuestionAnswering",
    "S3BertForSequenceClassification",
    "S3BertForTokenClassification",
    "S3BertModel",
    "S3BertPreTrainedModel",
]
