"""Encoders to compare with S3BERT, and language models, each at any size: same width, depth, vocabulary, activation, and feed-forward arithmetic.

One line in `BASELINES`, with a small function where a model has fields of its own, adds a model. Filters and position tables
are as long as the sequences it is compared at, and some models change themselves at the first call: build one per length.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from transformers import (
    BertConfig,
    BertModel,
    BigBirdConfig,
    BigBirdModel,
    FNetConfig,
    FNetModel,
    GPT2Config,
    GPT2LMHeadModel,
    LongformerConfig,
    LongformerModel,
    ModernBertConfig,
    ModernBertModel,
    NystromformerConfig,
    NystromformerModel,
    PreTrainedModel,
)

from s3bert.models.configuration_fmm import FmmConfig
from s3bert.models.configuration_lra import LraConfig
from s3bert.models.configuration_ponet import PoNetConfig
from s3bert.models.configuration_s3bert import S3BertConfig
from s3bert.models.mixers import MIXERS
from s3bert.models.modeling_fmm import FmmForCausalLM
from s3bert.models.modeling_lra import LraModel
from s3bert.models.modeling_ponet import PoNetModel
from s3bert.models.modeling_s3bert import S3BertModel
from s3bert.models.sparse_baselines import transform_in_float32

from .encoder_size import EncoderSize


_LANDMARKS = 64  # Nystromformer's
_WINDOW = 512  # Longformer's
_BLOCK = 64  # BigBird's


class UnsuitableError(ValueError):
    """A model that cannot be compared at this length; the message says why."""


@dataclass(frozen=True)
class Baseline:
    """A way to build a model of a size for sequences of so many tokens, and what a reader of its figures must know."""

    build: Callable[..., PreTrainedModel]
    note: str = ""


def build_baseline(
    name: str, size: EncoderSize, length: int, device: torch.device | str = "cpu", exportable: bool = False
) -> PreTrainedModel:
    """The model `name` with new weights, without a pooler where that is a choice, for sequences of `length` tokens.

    As in `from_pretrained` with a dtype, weights that a model wants in float32 stay so. An exportable S3BERT has no complex numbers.

    Raises:
        UnsuitableError: it does not take such a length.
    """
    form = {"implementation": "export"} if exportable and name.startswith("s3bert") else {}
    model = BASELINES[name].build(size, length, **form).to(device, getattr(torch, size.dtype))
    float32 = tuple(model._keep_in_fp32_modules_strict or ())
    for key, tensor in (*model.named_parameters(), *model.named_buffers()):
        if any(part in key for part in float32):
            tensor.data = tensor.data.float()
    return model


def _fields(size: EncoderSize, length: int) -> dict:
    """The configuration fields that BERT and its relatives have in common."""
    return {
        "vocab_size": size.vocab_size,
        "hidden_size": size.hidden_size,
        "num_hidden_layers": size.num_hidden_layers,
        "num_attention_heads": size.num_attention_heads,
        "intermediate_size": size.intermediate_size,
        "hidden_act": "gelu",  # some have tanh formulas for it by default, which take several times as long
        "max_position_embeddings": length,
        "hidden_dropout_prob": size.dropout,
        "attention_probs_dropout_prob": size.dropout,
        "pad_token_id": 0,
    }


def _s3bert(size: EncoderSize, length: int, implementation: str = "auto") -> PreTrainedModel:
    config = S3BertConfig(
        **_fields(size, length),
        num_segments=size.num_segments,
        num_row_samples=size.num_row_samples,
        num_column_samples=size.num_column_samples,
        smoother_norm=size.smoother_norm,
        smoother_dropout_prob=size.dropout,
        implementation=implementation,
    )
    return S3BertModel(config, add_pooling_layer=False)


def _bert(size: EncoderSize, length: int, attention: str) -> PreTrainedModel:
    config = BertConfig(**_fields(size, length), attn_implementation=attention)
    return BertModel(config, add_pooling_layer=False)


def _fnet(size: EncoderSize, length: int) -> PreTrainedModel:
    fields = _fields(size, length)
    del fields["num_attention_heads"], fields["attention_probs_dropout_prob"]
    return transform_in_float32(FNetModel(FNetConfig(**fields), add_pooling_layer=False))


def _nystromformer(size: EncoderSize, length: int) -> PreTrainedModel:
    if length % _LANDMARKS:
        raise UnsuitableError(f"Nystromformer takes multiples of its {_LANDMARKS} landmarks, not {length} tokens")
    return NystromformerModel(
        NystromformerConfig(**_fields(size, length), segment_means_seq_len=length, num_landmarks=_LANDMARKS)
    )


def _bigbird(size: EncoderSize, length: int) -> PreTrainedModel:
    fields = _fields(size, length) | {"max_position_embeddings": -(-length // _BLOCK) * _BLOCK}
    return BigBirdModel(
        BigBirdConfig(**fields, attention_type="block_sparse", block_size=_BLOCK), add_pooling_layer=False
    )


def _longformer(size: EncoderSize, length: int) -> PreTrainedModel:
    if length < _WINDOW:
        raise UnsuitableError(f"Longformer pads {length} tokens to its window of {_WINDOW}")
    padded = -(-length // _WINDOW) * _WINDOW
    fields = _fields(size, length) | {"max_position_embeddings": padded + 1}  # position 0 is the padding's
    return LongformerModel(LongformerConfig(**fields, attention_window=_WINDOW), add_pooling_layer=False)


def _modernbert(size: EncoderSize, length: int) -> PreTrainedModel:
    return ModernBertModel(
        ModernBertConfig(
            vocab_size=size.vocab_size,
            hidden_size=size.hidden_size,
            num_hidden_layers=size.num_hidden_layers,
            num_attention_heads=size.num_attention_heads,
            intermediate_size=round(size.intermediate_size * 2 / 3),
            max_position_embeddings=length,
            attention_dropout=size.dropout,
            embedding_dropout=size.dropout,
            mlp_dropout=size.dropout,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            cls_token_id=1,
            sep_token_id=2,
            attn_implementation="sdpa",
        )
    )


def _ponet(size: EncoderSize, length: int) -> PreTrainedModel:
    config = PoNetConfig(**_fields(size, length), cls_token_id=None, sep_token_id=None)
    return PoNetModel(config, add_pooling_layer=False)


def _lra(size: EncoderSize, length: int, mixer: str, **settings: list[str]) -> PreTrainedModel:
    """The Long Range Arena encoder around a mixer with its own settings but for those given, S3's those of the size."""
    of_s3 = {name: getattr(size, name) for name in ("num_segments", "num_row_samples", "num_column_samples")}
    of_s3 |= {"smoother_norm": size.smoother_norm, "smoother_dropout_prob": size.dropout}
    fields = {name: value for name, value in _fields(size, length).items() if name != "hidden_act"}
    fields["embedding_dropout_prob"] = size.dropout
    return LraModel(LraConfig(**fields, mixer=mixer, mixer_settings=of_s3 if mixer == "s3" else settings))


def _gpt2(size: EncoderSize, length: int) -> PreTrainedModel:
    config = GPT2Config(
        vocab_size=size.vocab_size,
        n_embd=size.hidden_size,
        n_layer=size.num_hidden_layers,
        n_head=size.num_attention_heads,
        n_inner=size.intermediate_size,
        n_positions=2 * length,  # generation goes on behind the length
        activation_function="gelu",
        resid_pdrop=size.dropout,
        embd_pdrop=size.dropout,
        attn_pdrop=size.dropout,
        summary_first_dropout=size.dropout,
        bos_token_id=1,
        eos_token_id=2,
        attn_implementation="sdpa",
    )
    return GPT2LMHeadModel(config)


def _fmm(size: EncoderSize, length: int, bandwidth: int | None, kernels: list[str]) -> PreTrainedModel:
    return FmmForCausalLM(FmmConfig(**_fields(size, length), bandwidth=bandwidth, kernels=kernels))


BASELINES: dict[str, Baseline] = {
    "s3bert": Baseline(_s3bert),
    "s3bert-direct": Baseline(partial(_s3bert, implementation="direct")),
    "bert": Baseline(partial(_bert, attention="sdpa")),
    "bert-eager": Baseline(partial(_bert, attention="eager")),
    "fnet": Baseline(_fnet, "takes no attention mask: padding is mixed in like tokens"),
    "nystromformer": Baseline(
        _nystromformer, f"{_LANDMARKS} landmarks; Transformers' code fails on padding masks and on bfloat16"
    ),
    "bigbird": Baseline(_bigbird, f"blocks of {_BLOCK}; Transformers gives it full attention up to 704 tokens"),
    "longformer": Baseline(
        _longformer, f"window {_WINDOW}, no global tokens; other lengths are padded to multiples of it"
    ),
    "modernbert": Baseline(
        _modernbert, "sdpa; its gated feed-forward is 2/3 as wide as the others', which makes the arithmetic equal"
    ),
    "ponet": Baseline(_ponet, "a whole sequence is one segment: no token is taken for [CLS] or [SEP]"),
}
ENCODERS = tuple(BASELINES)  # of text
BASELINES |= {f"lra-{mixer}": Baseline(partial(_lra, mixer=mixer)) for mixer in MIXERS}
BASELINES |= {
    f"lra-fmm-{count}": Baseline(
        partial(_lra, mixer="fmm", kernels=["elu", "elu_flip", "tanh"][:count]), f"a band of 5; kernels: {count}"
    )
    for count in (1, 2, 3)
}
LANGUAGE_MODELS: dict[str, Baseline] = {
    "gpt2": Baseline(_gpt2, "Transformers' GPT-2, whose cache keeps every key and value; learned positions"),
    "fmm-softmax": Baseline(partial(_fmm, bandwidth=None, kernels=[]), "keeps every key and value too"),
    "fmm-linear": Baseline(partial(_fmm, bandwidth=0, kernels=["elu"])),
    "fmm-fast-weights": Baseline(partial(_fmm, bandwidth=0, kernels=["delta_elu"])),
    "fmm-band": Baseline(partial(_fmm, bandwidth=20, kernels=[]), "a band of 20"),
    "fmm-linear-band": Baseline(partial(_fmm, bandwidth=20, kernels=["elu"]), "FMMformer: one kernel and a band of 20"),
    "fmm-fast-weights-band": Baseline(
        partial(_fmm, bandwidth=20, kernels=["delta_elu"]), "FMMformer: fast weights and a band of 20"
    ),
}
BASELINES |= LANGUAGE_MODELS
