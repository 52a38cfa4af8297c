"""The Long Range Arena encoder around any mixer, its classifier and its masked-token head.

    ids -> word and position embeddings -> pre-LayerNorm blocks (mixer, feed-forward) -> LayerNorm -> mean over real tokens

After the encoder of Nystromformer's LRA code (Xiong et al., 2021), with means over real tokens. Token 0 is padding: where no
mask is given, it is read from the ids. Positions are places, which black pixels do not shift, so padding of texts belongs on the
right. B batch, S length, H hidden size.
"""

import torch
from torch import nn
from torch.nn import functional as F
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutput, MaskedLMOutput, SequenceClassifierOutput

from .configuration_lra import LraConfig
from .input_checks import check_classes, check_ids, real_tokens, simplest
from .mixer_s3 import initialize_s3
from .mixers import build_mixer
from .numerics import at_least_float32, zero_padding
from .smoother import FLOAT32_PARTS


class LraLayer(GradientCheckpointingLayer):
    """x + mixer(LayerNorm x), then x + feed-forward(LayerNorm x); (B, S, H) -> (B, S, H)."""

    def __init__(self, config: LraConfig, layer_index: int):
        super().__init__()
        self.mixer_norm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.mixer = build_mixer(
            config.mixer,
            config.hidden_size,
            config.num_attention_heads,
            config.max_position_embeddings,
            config.attention_probs_dropout_prob,
            layer_index,
            **config.mixer_settings,
        )
        self.feed_forward_norm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.intermediate = nn.Linear(config.hidden_size, config.intermediate_size)
        self.output = nn.Linear(config.intermediate_size, config.hidden_size)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, hidden_states: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        hidden_states = hidden_states + self.dropout(self.mixer(self.mixer_norm(hidden_states), mask))
        inner = self.dropout(F.gelu(self.intermediate(self.feed_forward_norm(hidden_states))))
        return hidden_states + self.dropout(self.output(inner))


class LraPreTrainedModel(PreTrainedModel):
    """Embeddings start normal(0, initializer_range), all else as torch's modules and the mixers draw it: that code's values.

    BERT's normal(0, 0.02) is much less than torch's 0.07 for linear layers of width 64, and slows the first hundreds of steps.
    """

    config_class = LraConfig
    config: LraConfig
    base_model_prefix = "encoder"
    supports_gradient_checkpointing = True
    accepts_loss_kwargs = False
    _input_embed_layer = "word_embeddings"
    _no_split_modules = ["LraLayer"]
    _keep_in_fp32_modules_strict = list(FLOAT32_PARTS)

    def __init__(self, config: LraConfig):
        config.validate()  # fields may have been set since it was built
        super().__init__(config)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d):
            init.kaiming_uniform_(module.weight, a=5**0.5)
            if module.bias is not None:
                bound = module.weight[0].numel() ** -0.5
                init.uniform_(module.bias, -bound, bound)
            return
        super()._init_weights(module)
        initialize_s3(module)


class LraModel(LraPreTrainedModel):
    """The encoder: ids (B, S) to `last_hidden_state` (B, S, H), zero at padding.

    Examples:
        >>> import torch
        >>> from s3bert import LraConfig, LraModel
        >>> model = LraModel(LraConfig(mixer="linear", max_position_embeddings=128))
        >>> model(input_ids=torch.randint(1, 257, (2, 100))).last_hidden_state.shape
        torch.Size([2, 100, 64])
    """

    def __init__(self, config: LraConfig):
        super().__init__(config)
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        rate = config.embedding_dropout_prob
        self.dropout = nn.Dropout(config.hidden_dropout_prob if rate is None else rate)
        self.layers = nn.ModuleList(LraLayer(config, index) for index in range(config.num_hidden_layers))
        self.norm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.post_init()

    def mask(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        """True at real tokens, (B, S); read from the ids where none is given."""
        if attention_mask is not None:
            return real_tokens(attention_mask, input_ids.shape)
        padding = self.config.pad_token_id
        return torch.ones_like(input_ids, dtype=torch.bool) if padding is None else input_ids.ne(padding)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> BaseModelOutput:
        """
        Raises:
            ValueError: ids of another shape than (B, S); the sequence is longer than the task's; a mask of another shape; on CPU in
                eager mode, an id outside the vocabulary or an additive mask.
        """
        if input_ids.dim() != 2:
            raise ValueError(f"input_ids has shape {tuple(input_ids.shape)}; the encoder takes (B, S).")
        length = input_ids.shape[1]
        if length > self.config.max_position_embeddings:
            raise ValueError(
                f"The sequence has {length} tokens, the model takes up to {self.config.max_position_embeddings}: cut it, or "
                "build the model with a larger max_position_embeddings."
            )
        if not input_ids.is_floating_point():
            input_ids = input_ids.long()  # they may come as bytes
        check_ids("input_ids", input_ids, input_ids.shape, self.word_embeddings.num_embeddings, "see config.vocab_size")
        mask = simplest(self.mask(input_ids, attention_mask))
        states = self.dropout(self.word_embeddings(input_ids) + self.position_embeddings.weight[:length])
        for layer in self.layers:
            states = layer(states, mask)
        return BaseModelOutput(last_hidden_state=zero_padding(self.norm(states), mask))


class LraForSequenceClassification(LraPreTrainedModel):
    """Two linear layers on the mean of real tokens; of two sequences a and b, on [a, b, a b, a - b].

    Examples:
        >>> import torch
        >>> from s3bert import LraConfig, LraForSequenceClassification
        >>> config = LraConfig(mixer="fmm", max_position_embeddings=128, num_labels=10)
        >>> model = LraForSequenceClassification(config)
        >>> model(input_ids=torch.randint(1, 257, (2, 100)), labels=torch.tensor([3, 7])).logits.shape
        torch.Size([2, 10])
    """

    def __init__(self, config: LraConfig):
        super().__init__(config)
        self.encoder = LraModel(config)
        pooled_size = (4 if config.pair_inputs else 1) * config.hidden_size
        self.dense = nn.Linear(pooled_size, config.classifier_size)
        self.classifier = nn.Linear(config.classifier_size, config.num_labels)
        self.post_init()

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
    ) -> SequenceClassifierOutput:
        """Logits (B, num_labels) of ids (B, S), or (B, 2, S) for pairs; the loss is the mean cross entropy."""
        if (input_ids.dim() == 3) != self.config.pair_inputs:
            expected = "(B, 2, S)" if self.config.pair_inputs else "(B, S)"
            raise ValueError(f"input_ids has shape {tuple(input_ids.shape)}; this model takes {expected}.")
        if self.config.pair_inputs:
            masks = None if attention_mask is None else attention_mask.flatten(0, 1)
            left, right = self._pool(input_ids.flatten(0, 1), masks).unflatten(0, (-1, 2)).unbind(1)
            pooled = torch.cat([left, right, left * right, left - right], 1)
        else:
            pooled = self._pool(input_ids, attention_mask)
        logits = self.classifier(F.relu(self.dense(pooled)))
        loss = None
        if labels is not None:
            check_classes(labels, logits, "num_labels")
            loss = F.cross_entropy(at_least_float32(logits), labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)

    def _pool(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
        states = self.encoder(input_ids, attention_mask).last_hidden_state
        count = self.encoder.mask(input_ids, attention_mask).sum(1, keepdim=True)
        total = at_least_float32(states).sum(1) / count.clamp(min=1)
        return total.to(states.dtype)  # (B, H)


class LraForMaskedLM(LraPreTrainedModel):
    """Predicts masked tokens, for pretraining on a task's own inputs; the decoder is the embedding's table.

    Examples:
        >>> import torch
        >>> from s3bert import LraConfig, LraForMaskedLM
        >>> model = LraForMaskedLM(LraConfig(mixer="s3", max_position_embeddings=128))
        >>> ids = torch.randint(1, 257, (2, 100))
        >>> model(input_ids=ids, labels=ids).logits.shape
        torch.Size([2, 100, 257])
    """

    _tied_weights_keys = {"decoder.weight": "encoder.word_embeddings.weight"}

    def __init__(self, config: LraConfig):
        super().__init__(config)
        self.encoder = LraModel(config)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def get_output_embeddings(self) -> nn.Linear:
        return self.decoder

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
    ) -> MaskedLMOutput:
        """Logits (B, S, vocab_size); the loss is the mean cross entropy over labels that are not -100."""
        logits = self.decoder(self.encoder(input_ids, attention_mask).last_hidden_state)
        loss = None
        if labels is not None:
            check_classes(labels, logits, "vocab_size")
            loss = F.cross_entropy(at_least_float32(logits).flatten(0, 1), labels.flatten())
        return MaskedLMOutput(loss=loss, logits=logits)


__all__ = ["LraForMaskedLM", "LraForSequenceClassification", "LraModel", "LraPreTrainedModel"]
