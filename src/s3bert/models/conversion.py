"""BERT's weights in an S3BERT of the same size, which begins near BERT: its smoother passes its input on, its attention is fitted to BERT's.

The smoother. Its input x is the output of a LayerNorm, x = g n + b by channel, n of mean 0 and variance 1 over the channels of a token. A stem
whose only taps are 1 / g, from each channel of x to itself at the centre, with bias -b / g, gives n: what either norm of the smoother leaves as
it is, for statistics per position are 0 and 1 too, in training as in evaluation. The norm's bias SHIFT lifts n over the activation's kink. So
z = n + SHIFT, but where n < -SHIFT, and BERT's projections read it: W x + c = (W diag(g)) z + (c + W (b - SHIFT g)).

The attention is another function than BERT's. What it has to be near with are the gains and biases of its two LayerNorms: by channel, least
squares from both to BERT's attention on text.

B batch, S length, H hidden size, L layers.
"""

import math
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, cast

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.bert.modeling_bert import BertOutput

from .configuration_encoder import ENCODER_SIZES
from .configuration_s3bert import S3BertConfig
from .modeling_s3bert import S3BertAttention, S3BertForMaskedLM, S3BertModel


# In standard deviations of n: of a normal distribution 0.6% of the variance is lost below it. More would make z a constant for the most part.
SHIFT = 2.0

_ROBERTA = {
    r"^lm_head\.layer_norm": "cls.predictions.transform.LayerNorm",
    r"^lm_head\.dense": "cls.predictions.transform.dense",
    r"^lm_head": "cls.predictions",
}
_DISTILBERT = {
    r"transformer\.layer": "encoder.layer",
    r"attention\.q_lin": "attention.self.query",
    r"attention\.k_lin": "attention.self.key",
    r"attention\.v_lin": "attention.self.value",
    r"attention\.out_lin": "attention.output.dense",
    r"sa_layer_norm": "attention.output.LayerNorm",
    r"ffn\.lin1": "intermediate.dense",
    r"ffn\.lin2": "output.dense",
    r"output_layer_norm": "output.LayerNorm",
    r"^vocab_transform": "cls.predictions.transform.dense",
    r"^vocab_layer_norm": "cls.predictions.transform.LayerNorm",
    r"^vocab_projector": "cls.predictions.decoder",
}
# Of each model type that can be converted: its names to ours, which are BERT's.
SOURCES: dict[str, dict[str, str]] = {
    "bert": {},
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "distilbert": _DISTILBERT,
}


class Taken(NamedTuple):
    """What became of the weights: ours by name with the source's name of each, ours that are new, and the source's without a place."""

    taken: dict[str, str]
    new: list[str]
    left_out: list[str]


def converted_config(source: PreTrainedConfig) -> S3BertConfig:
    """Of an S3BERT of the source's size. Dropout in the smoother is 0: it would be noise of the size of SHIFT. Training decodes
    masked positions alone.

    Raises:
        ValueError: the source is no BERT, or one that S3BERT has no place for.
    """
    if source.model_type not in SOURCES:
        raise ValueError(
            f"a model of type {source.model_type!r} cannot be converted: S3BERT takes the weights of {', '.join(SOURCES)}."
        )
    for name, allowed in (("position_embedding_type", "absolute"), ("is_decoder", False)):
        if (value := getattr(source, name, allowed)) != allowed:
            raise ValueError(f"{name} = {value!r}: S3BERT takes the weights of encoders with absolute positions alone.")
    distilbert = source.model_type == "distilbert"
    fields: dict[str, Any] = {
        "intermediate_size": source.hidden_dim if distilbert else source.intermediate_size,
        "hidden_act": source.activation if distilbert else source.hidden_act,
        "hidden_dropout_prob": source.dropout if distilbert else source.hidden_dropout_prob,
        "attention_probs_dropout_prob": source.attention_dropout if distilbert else source.attention_probs_dropout_prob,
        "type_vocab_size": 2 if distilbert else source.type_vocab_size,
        "layer_norm_eps": 1e-12 if distilbert else source.layer_norm_eps,
        "max_position_embeddings": source.max_position_embeddings - _first_position(source),
        "num_segments": math.gcd(8, source.hidden_size),
        "smoother_dropout_prob": 0.0,
        "sparse_prediction": True,
    }
    same = ["vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "initializer_range"]
    same += ["pad_token_id", "bos_token_id", "eos_token_id", "tie_word_embeddings"]
    return S3BertConfig(**fields, **{name: getattr(source, name) for name in same})


def check_size(config: S3BertConfig, source: PreTrainedConfig) -> None:
    """
    Raises:
        ValueError: the configuration is of another size than the source's weights.
    """
    expected = converted_config(source)
    for name in ENCODER_SIZES:
        asked, own = getattr(config, name), getattr(expected, name)
        if asked != own:
            raise ValueError(
                f"{name} = {asked}: the checkpoint has {own}, and its weights fit nothing else. Leave it out"
                + (", and call resize_position_embeddings on the converted model." * ("position" in name) or ".")
            )


def _first_position(source: PreTrainedConfig) -> int:
    """The row of the table of positions that is the first token's: RoBERTa's kind counts from behind the padding's id."""
    return source.pad_token_id + 1 if SOURCES[source.model_type] is _ROBERTA else 0


@torch.no_grad()
def take_weights(model: S3BertForMaskedLM, source: PreTrainedModel, missing: Iterable[str] = ()) -> Taken:
    """Fills `model` with the weights of a masked LM; those of its `missing` names are no checkpoint's, and stay out.

    Query, key and value are as BERT's until `start_near_identity`.
    """
    ours, missing = model.state_dict(), {*missing}
    taken, left_out = {}, []
    first = _first_position(source.config)
    for name, tensor in source.state_dict().items():
        if name in missing:
            continue
        target = _our_name(name, source)
        if name.endswith("position_embeddings.weight") and first:
            tensor = tensor[first:]
            left_out.append(f"{name}[:{first}]")
        if target not in ours:
            left_out.append(name)
            continue
        ours[target].copy_(tensor)
        taken[target] = name
    if model.config.tie_word_embeddings:  # one tensor of two names
        for pair in model.all_tied_weights_keys.items():
            for one, other in (pair, pair[::-1]):
                if one in taken:
                    taken.setdefault(other, taken[one])
    types = "s3bert.embeddings.token_type_embeddings.weight"
    if types not in taken:
        ours[types].zero_()
    return Taken(taken, [name for name in ours if name not in taken], left_out)


def _our_name(name: str, source: PreTrainedModel) -> str:
    name = name.replace(f"{source.base_model_prefix}.", "s3bert.", 1)
    for pattern, ours in SOURCES[source.config.model_type].items():
        name = re.sub(pattern, ours, name)
    return name


@torch.no_grad()
def start_near_identity(model: S3BertForMaskedLM) -> None:
    """Lets each smoother pass its input on, and its layer's query, key and value read what comes out of it: the module's docstring.

    Raises:
        ValueError: no stem stands behind a Fourier convolution of segments' means, which cannot give single channels back.
    """
    norms = [cast(S3BertModel, model.base_model).embeddings.LayerNorm]
    norms += [module.LayerNorm for module in model.modules() if isinstance(module, BertOutput)]
    for before, layer in zip(norms, _attentions(model), strict=False):  # behind the last norm there is none
        smoother, attention = layer.smoother, layer.self
        if not smoother.use_convolution_stem:
            if smoother.use_fourier_convolution:
                if smoother.num_segments < model.config.hidden_size:
                    raise ValueError(
                        f"use_convolution_stem = False: the smoother gives means of {smoother.num_segments} segments alone, far from its "
                        f"input. Set num_segments = {model.config.hidden_size}, or leave the stem in."
                    )
                smoother.filter[..., 0], smoother.filter[..., 1] = 1.0, 0.0
            continue
        gain, bias = before.weight, before.bias
        inverse = torch.where(gain.abs() > 1e-6, 1 / gain, 0.0)
        stem, channels = smoother.stem, torch.arange(len(gain))
        own = stem.weight.shape[1] - (1 if stem.groups > 1 else len(gain) - channels)  # x stands behind m
        stem.weight.zero_()
        stem.weight[channels, own, stem.kernel_size[0] // 2] = inverse
        cast(nn.Parameter, stem.bias).copy_(-bias * inverse)
        smoother.norm.bias.fill_(SHIFT)
        for linear in (attention.query, attention.key, attention.value):
            linear.bias.add_(linear.weight @ (bias - SHIFT * gain))
            linear.weight.mul_(gain)


class Fit(NamedTuple):
    """Of a layer's attention, behind its output projection, with BERT's for the same input: 1 - |difference|^2 / variance, and correlation."""

    explained: float
    correlation: float


@torch.no_grad()
def fit_attention(model: S3BertForMaskedLM, source: PreTrainedModel, inputs: Iterable[torch.Tensor]) -> None:
    """Sets gain and bias of both norms of each layer's attention to those that give BERT's attention of the same input best.

    Three numbers of a channel, by least squares over all tokens: the gains on the two normalised attentions, and a constant.

    Args:
        inputs: batches of ids (B, S) without padding, thousands of tokens in all.
    """
    layers = _attentions(model)
    norms = [_norms(layer) for layer in layers]
    for norm in (norm for pair in norms for norm in pair):
        norm.reset_parameters()
    sums = [torch.zeros(()).double() for _ in layers]
    for states, contexts in _attentions_of(source, inputs):
        for index, (layer, hidden_states, context) in enumerate(zip(layers, states, contexts, strict=True)):
            features = [*_normalised(layer, hidden_states), torch.ones_like(context)]
            columns = torch.stack([*features, context], -1).flatten(0, 1).double()  # (B S, H, features and target)
            sums[index] = sums[index] + torch.einsum("thf,thg->hfg", columns, columns)
    for pair, products in zip(norms, sums, strict=True):
        count = len(pair) + 1
        damping = (
            1e-6 * products[:, -2, -2, None, None] * torch.eye(count, dtype=torch.float64)
        )  # of the tokens' number
        solution = torch.linalg.solve(products[:, :count, :count] + damping, products[:, :count, count])  # (H, count)
        for column, norm in enumerate(pair):  # the mean of both is what is fitted
            norm.weight.copy_(len(pair) * solution[:, column])
            norm.bias.copy_(solution[:, -1])


@torch.no_grad()
def measure_attention(model: S3BertForMaskedLM, source: PreTrainedModel, inputs: Iterable[torch.Tensor]) -> list[Fit]:
    """How near each layer's attention is to BERT's, for BERT's own input of that layer."""
    layers = _attentions(model)
    ours: list[list[torch.Tensor]] = [[] for _ in layers]
    theirs: list[list[torch.Tensor]] = [[] for _ in layers]
    for states, contexts in _attentions_of(source, inputs):
        for index, (layer, hidden_states, context) in enumerate(zip(layers, states, contexts, strict=True)):
            dense, pair = layer.output.dense, _norms(layer)
            parts = _normalised(layer, hidden_states)
            ours[index].append(dense(sum(parts) / len(pair)).flatten(0, 1))
            theirs[index].append(dense(context).flatten(0, 1))
    fits = []
    for mine, target in zip(map(torch.cat, ours), map(torch.cat, theirs), strict=True):
        error = (mine - target).square().sum() / (target - target.mean(0)).square().sum()
        mine, target = mine - mine.mean(0), target - target.mean(0)
        fits.append(Fit(float(1 - error), float((mine * target).sum() / (mine.norm() * target.norm()))))
    return fits


def _attentions(model: S3BertForMaskedLM) -> list[S3BertAttention]:
    return [module for module in model.modules() if isinstance(module, S3BertAttention)]


def _norms(layer: S3BertAttention) -> list[nn.LayerNorm]:
    return [getattr(layer.self, name) for name in ("row_norm", "column_norm") if hasattr(layer.self, name)]


def _normalised(layer: S3BertAttention, hidden_states: torch.Tensor) -> list[torch.Tensor]:
    """What the norms of the layer's attention give for its input (B, S, H), each (B, S, H)."""
    found: list[torch.Tensor] = []
    hooks = [norm.register_forward_hook(lambda _, __, output: found.append(output)) for norm in _norms(layer)]
    try:
        layer.self(layer.smoother(hidden_states))
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _attentions_of(
    source: PreTrainedModel, inputs: Iterable[torch.Tensor]
) -> Iterator[tuple[list[torch.Tensor], list[torch.Tensor]]]:
    """Of each batch the inputs of BERT's L layers and their heads' outputs side by side, (B, S, H) each."""
    contexts: list[torch.Tensor] = []
    projections = [
        module for name, module in source.named_modules() if _our_name(name, source).endswith("attention.output.dense")
    ]
    hooks = [module.register_forward_pre_hook(lambda _, args: contexts.append(args[0])) for module in projections]
    try:
        for ids in inputs:
            contexts.clear()
            states = source.base_model(ids, output_hidden_states=True).hidden_states
            yield [*states[:-1]], [*contexts]
    finally:
        for hook in hooks:
            hook.remove()
