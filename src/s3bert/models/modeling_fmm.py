"""FMMformer's language model (Nguyen et al., NeurIPS 2021, section 4.3): causal attention that generates in constant memory.

    ids -> scaled word embeddings + positions -> post-LayerNorm layers (attention, feed-forward) -> decoder, or adaptive softmax

The layer is that of the authors' program, which is Transformer-XL's without its recurrence. B batch, S length, H hidden size, V vocabulary;
T tokens of a cache and the new ones together.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache, DynamicCache
from transformers.generation import GenerationMixin
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple
from transformers.utils.output_capturing import capture_outputs

from .adaptive_softmax import AdaptiveSoftmax
from .configuration_fmm import FmmConfig
from .fmm_cache import FmmCache, attention_past, check_cache, new_cache, tokens_read
from .fmm_state import FmmState
from .input_checks import check_classes, check_ids, is_readable, real_tokens, sequences_shape, simplest
from .mixer_fmm import FmmAttention
from .mixer_softmax import SoftmaxAttention
from .numerics import at_least_float32


class FmmLayer(GradientCheckpointingLayer):
    """LayerNorm(x + attention(x)), then LayerNorm(x + feed-forward(x)); (B, S, H) -> (B, S, H)."""

    def __init__(self, config: FmmConfig):
        super().__init__()
        sizes = (config.hidden_size, config.num_attention_heads, config.max_position_embeddings)
        dropout, bias = config.attention_probs_dropout_prob, config.attention_bias
        self.attention: nn.Module
        if config.bandwidth is None:
            self.attention = SoftmaxAttention(*sizes, dropout, causal=True, bias=bias)
        else:
            own = (config.bandwidth, config.kernels)
            self.attention = FmmAttention(*sizes, dropout, *own, causal=True, blend=config.blend, bias=bias)
        self.attention_norm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.intermediate = nn.Linear(config.hidden_size, config.intermediate_size)
        self.activation = ACT2FN[config.hidden_act]
        self.output = nn.Linear(config.intermediate_size, config.hidden_size)
        self.output_norm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(
        self, hidden_states: torch.Tensor, mask: torch.Tensor | None, past: FmmState | Callable | None
    ) -> torch.Tensor:
        mixed = self.attention(hidden_states, mask, past)
        hidden_states = self.attention_norm(hidden_states + self.dropout(mixed))
        inner = self.dropout(self.activation(self.intermediate(hidden_states)))
        return self.output_norm(hidden_states + self.dropout(self.output(inner)))


class FmmPreTrainedModel(PreTrainedModel):
    """Linear and Embedding: normal(0, initializer_range), biases 0. LayerNorm: 1 and 0. Blends: `FmmAttention`'s own values."""

    config_class = FmmConfig
    config: FmmConfig
    base_model_prefix = "fmm"
    supports_gradient_checkpointing = True
    accepts_loss_kwargs = True
    _input_embed_layer = "word_embeddings"
    _no_split_modules = ["FmmLayer"]
    _can_record_outputs = {"hidden_states": FmmLayer}
    _is_stateful = True  # what a state has read it cannot give back: no assisted generation

    def __init__(self, config: FmmConfig):
        config.validate()  # fields may have been set since it was built
        if config.hidden_act not in ACT2FN:
            raise ValueError(f"hidden_act = {config.hidden_act!r}: give one of {', '.join(sorted(ACT2FN))}.")
        super().__init__(config)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, FmmAttention):
            if module.near_weight is not None:
                init.zeros_(module.near_weight)
            if module.far_weight is not None:
                init.constant_(module.far_weight, 0.0 if module.blend == "sigmoid" else 1 / len(module.kernels))

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        """`generate` leaves it to the model to make its cache, at the first forward."""
        return False


class FmmModel(FmmPreTrainedModel):
    """The layers without a decoder: ids (B, S) to `last_hidden_state` (B, S, H) and a cache.

    Examples:
        >>> import torch
        >>> from s3bert import FmmConfig, FmmModel
        >>> config = FmmConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
        >>> model = FmmModel(config)
        >>> model(torch.randint(0, 100, (2, 300))).last_hidden_state.shape
        torch.Size([2, 300, 32])
    """

    def __init__(self, config: FmmConfig):
        super().__init__(config)
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
        self.position_embeddings: nn.Embedding | None = None
        if config.position_embeddings == "learned":
            self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.layers = nn.ModuleList(FmmLayer(config) for _ in range(config.num_hidden_layers))
        self.post_init()

    @capture_outputs
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | list[int] | None = None,
    ) -> BaseModelOutputWithPast | tuple:
        """Reads tokens, after those of a cache where one is given.

        Args:
            input_ids: (B, S) token ids; or `inputs_embeds` (B, S, H) in their place.
            attention_mask: (B, T), of the cache's tokens and the new ones, nonzero at real tokens, never additive; padding on either side, and
                holes. Where it is absent, all new tokens are real.
            position_ids: (B, S) or (1, S); where absent, the running number of real tokens, which padding on the left does not move.
            past_key_values: an `FmmCache` of this model's sizes, or of softmax attention a `DynamicCache`; it takes in the new tokens.
            use_cache: return a cache, a new one where none is given; `config.use_cache` in evaluation, and not in training.
            output_hidden_states: also returns the embeddings and each layer's output, (B, S, H) each.

        Raises:
            ValueError: neither or both of the inputs, an empty one; a mask or positions of another shape; a cache of another model or batch;
                more tokens than learned positions; on CPU in eager mode, an id outside its table or an additive mask.
        """
        batch, length = self._check_inputs(input_ids, inputs_embeds)
        if use_cache is None:
            use_cache = self.config.use_cache and not self.training
        checkpointed = self.training and self.layers[0].gradient_checkpointing
        if checkpointed and (use_cache or past_key_values is not None):
            raise ValueError(
                "Checkpointed layers run twice, and a cache would take in each token twice: train without one, or call model.eval()."
            )
        cache = new_cache(self.config) if use_cache and past_key_values is None else past_key_values
        places = 0
        if cache is not None:
            check_cache(cache, self.config, batch)
            places = cache.get_seq_length()
        mask = None if attention_mask is None else real_tokens(attention_mask, torch.Size((batch, places + length)))
        if mask is not None:  # an FmmCache keeps what it needs of the mask before
            mask = simplest(mask if isinstance(cache, DynamicCache) else mask[:, places:])
        if position_ids is None:
            positions = self._numbers(mask, length, 0 if cache is None else tokens_read(cache))
        else:
            positions = position_ids
            check_ids("position_ids", positions, torch.Size((batch, length)), 2**31, "number tokens from 0")

        embeddings = self.word_embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        scaled = embeddings * self.config.hidden_size**0.5
        hidden_states = self.dropout(scaled + self._embedded(positions).to(scaled.dtype))
        for index, layer in enumerate(self.layers):
            hidden_states = layer(hidden_states, mask, None if cache is None else attention_past(cache, index))
        hidden_states = self.dropout(hidden_states)
        return BaseModelOutputWithPast(last_hidden_state=hidden_states, past_key_values=cache if use_cache else None)

    def _check_inputs(self, input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None) -> torch.Size:
        """The input's shape, (B, S)."""
        shape = sequences_shape(input_ids, inputs_embeds)
        if 0 in shape:
            raise ValueError(
                f"The input is empty: {shape[0]} sequences of {shape[1]} tokens; give at least one of one."
            )
        if input_ids is not None:
            remedy = "use the tokenizer the model was trained with, or model.resize_token_embeddings(len(tokenizer))"
            check_ids("input_ids", input_ids, shape, self.word_embeddings.num_embeddings, remedy)
        return shape

    def _numbers(self, mask: torch.Tensor | None, length: int, before: torch.Tensor | int) -> torch.Tensor:
        """The new tokens' numbers among the real ones of their sequence, (B, S) or (1, S); those of padding are of no use."""
        if mask is None:
            return torch.arange(length, device=self.word_embeddings.weight.device)[None] + before
        if mask.shape[1] > length:  # it counts those before too
            before = 0
        return (mask.cumsum(1)[:, -length:] + (before - 1)).clamp(min=0)

    def _embedded(self, positions: torch.Tensor) -> torch.Tensor:
        """Embeddings (..., H) of positions: of the table, or sines and cosines of wavelengths from 2 pi to 10,000 times that.

        Raises:
            ValueError: learned positions end before them; where they are not readable, torch's own error stands.
        """
        if self.position_embeddings is None:
            size = self.config.hidden_size
            exponents = torch.arange(0, size, 2, device=positions.device, dtype=torch.float32) / size
            angles = positions[..., None] * 10000.0**-exponents
            return torch.cat([angles.sin(), angles.cos()], -1)
        end = self.position_embeddings.num_embeddings
        if is_readable(positions) and (last := int(positions.max())) >= end:
            raise ValueError(
                f"A sequence has {last + 1} tokens and learned positions end at {end}: give fewer tokens, or train with "
                'position_embeddings="sinusoidal", which do not end.'
            )
        return self.position_embeddings(positions)


class FmmForCausalLM(FmmPreTrainedModel, GenerationMixin):
    """Predicts the next token; `generate` keeps a state of constant size, or of softmax attention all keys and values.

    The decoder is the table of word embeddings, or with `adaptive_cutoffs` an adaptive softmax, whose logits are log-probabilities.

    Examples:
        >>> import torch
        >>> from s3bert import FmmConfig, FmmForCausalLM
        >>> config = FmmConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
        >>> model = FmmForCausalLM(config).eval()
        >>> model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=40).shape
        torch.Size([1, 43])
    """

    _tied_weights_keys = {"lm_head.weight": "fmm.word_embeddings.weight"}

    def __init__(self, config: FmmConfig):
        super().__init__(config)
        self.fmm = FmmModel(config)
        self.lm_head: nn.Linear | AdaptiveSoftmax
        if config.adaptive_cutoffs:
            sizes = (config.hidden_size, config.vocab_size, config.adaptive_cutoffs, config.adaptive_div_value)
            self.lm_head = AdaptiveSoftmax(*sizes)
            self._tied_weights_keys = {}
        else:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_output_embeddings(self) -> nn.Linear | None:
        return self.lm_head if isinstance(self.lm_head, nn.Linear) else None

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        self.lm_head = new_embeddings

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        """As in Transformers.

        Raises:
            ValueError: an adaptive softmax, whose clusters are those of a sorted vocabulary.
        """
        if self.config.adaptive_cutoffs and (args or kwargs):
            raise ValueError(
                "An adaptive softmax keeps its vocabulary: train with adaptive_cutoffs = [] to change it later."
            )
        return super().resize_token_embeddings(*args, **kwargs)

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        past_key_values: Cache | None = None,
        labels: torch.LongTensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        num_items_in_batch: torch.Tensor | int | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | list[int] | None = None,
    ) -> CausalLMOutputWithPast:
        """Logits (B, S, V), or of the tokens to keep; with labels the mean cross entropy of each token after the first.

        Args:
            labels: (B, S), the inputs themselves, -100 where no loss is wanted: they are shifted here, as in Transformers.
            logits_to_keep: so many last tokens' logits, or those of given places; 0 for all. The loss is of all.
            num_items_in_batch: what to divide the loss by in place of the number of its labels.
            output_attentions: PEFT hands it on; there are no weights to return.

        In training, an adaptive softmax gives the loss alone: its logits, (B, S, V), are what it saves.

        Raises:
            ValueError: what `FmmModel` refuses; a label outside the vocabulary; `output_attentions`.
        """
        if output_attentions:
            raise ValueError(
                "output_attentions = True: linear attention and fast weights form no weights; leave it out."
            )
        outputs = self.fmm(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            past_key_values=past_key_values,
            use_cache=use_cache,
            output_hidden_states=output_hidden_states,
            return_dict=True,
        )
        states, loss, logits = outputs.last_hidden_state, None, None
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        if labels is not None:
            # The shape of logits, which an adaptive softmax does not make here.
            check_classes(labels, states.new_empty(1).expand(*states.shape[:2], self.config.vocab_size), "vocab_size")
        if isinstance(self.lm_head, AdaptiveSoftmax):
            if labels is not None:
                loss = self.lm_head.total_loss(states[:, :-1], labels[:, 1:])
            if labels is None or not self.training:
                logits = self.lm_head.log_probabilities(states[:, kept])
        elif labels is None:
            logits = self.lm_head(states[:, kept])
        else:
            logits = self.lm_head(states)
            predicted = at_least_float32(logits[:, :-1]).flatten(0, 1)
            loss = F.cross_entropy(predicted, labels[:, 1:].flatten(), reduction="sum")
            logits = logits[:, kept]
        if loss is not None and labels is not None:
            counted = (labels[:, 1:] != -100).sum().clamp(min=1)
            loss = loss / (counted if num_items_in_batch is None else num_items_in_batch)
        return CausalLMOutputWithPast(
            loss=loss, logits=logits, past_key_values=outputs.past_key_values, hidden_states=outputs.hidden_states
        )


__all__ = ["FmmCache", "FmmForCausalLM", "FmmModel", "FmmPreTrainedModel"]
