"""Checkpoints to start from: of a kind that a command takes, and with the vocabulary of the text that they are to read."""

from typing import Any

from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerBase
from transformers.utils import has_file

from s3bert.files import reading


# Without one of them Transformers makes a tokenizer of special tokens alone, or none.
_VOCABULARY_FILES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
)


def check_no_decoder(name: object, config: PreTrainedConfig) -> None:
    """
    Raises:
        ValueError: the model has an encoder and a decoder.
    """
    if config.is_encoder_decoder:
        raise ValueError(f"{name} is an encoder-decoder ({config.model_type}); give an encoder, as BERT's or S3BERT's.")


def check_model_type(name: str, config: PreTrainedConfig, auto_class: Any, kind: str, trust_remote_code: bool) -> None:
    """
    Args:
        auto_class: that of Transformers which is to load the model. kind: what its models are, for people.

    Raises:
        ValueError: the model is none of them.
    """
    remote = auto_class.__name__ in (getattr(config, "auto_map", None) or {})
    if type(config) not in auto_class._model_mapping and not (remote and trust_remote_code):
        with_its_code = ", or give --trust_remote_code for the code that it carries" if remote else ""
        raise ValueError(
            f"{name} is of type {config.model_type}, which is no {kind}: name a model that {auto_class.__name__} loads{with_its_code}."
        )


def own_tokenizer(name: str, trust_remote_code: bool = False) -> PreTrainedTokenizerBase | None:
    """The tokenizer that lies beside a checkpoint's weights, if one does; `name` is a folder or a Hub id.

    Raises:
        ValueError: it is damaged.
    """
    if not any(has_file(name, file) for file in _VOCABULARY_FILES):
        return None
    with reading(f"The tokenizer {name}"):
        return AutoTokenizer.from_pretrained(name, trust_remote_code=trust_remote_code)


def check_vocabulary(
    name: str, own: PreTrainedTokenizerBase, other: PreTrainedTokenizerBase, what: str, remedy: str
) -> None:
    """
    Args:
        own: the tokenizer of the checkpoint `name`. other: that of `what`, in words, which the checkpoint is to read.

    Raises:
        ValueError: they give tokens other numbers.
    """
    if own.get_vocab() != other.get_vocab():
        raise ValueError(
            f"{name} has another vocabulary than {what}, and would take each token for another one: {remedy}"
        )
