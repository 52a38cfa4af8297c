"""Where finetuning starts: a checkpoint with its tokenizer, checked against one another, and new classifiers on top of it."""

import hashlib
import inspect
import logging
import math
from collections.abc import Sequence
from pathlib import Path

import torch
from accelerate.utils import set_seed
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers import logging as logging_of_transformers

from s3bert.files import reading

from .checkpoints import check_finite
from .pretrained import check_model_type, check_no_decoder, check_vocabulary, own_tokenizer


logger = logging.getLogger(__name__)

# Models whose mixing reads the padding: only batches padded to one fixed length give a row the same answer every time.
_WITHOUT_MASK = {"fnet"}

# Models with a classifier that AutoModelForSequenceClassification loads, and what they read.
_OF_OTHER_INPUTS = {"s3bert-lra": "Long Range Arena's symbols"}

# Models whose first positions are the padding token's and those before it, as RoBERTa's.
_BEHIND_PADDING = {
    "camembert",
    "data2vec-text",
    "longformer",
    "mpnet",
    "roberta",
    "roberta-prelayernorm",
    "xlm-roberta",
}


def longest_input(config: PreTrainedConfig) -> float:
    """Tokens of a sequence that a model takes; infinity where its positions do not end."""
    if getattr(config, "position_embeddings", None) == "sinusoidal":
        return math.inf
    before = config.pad_token_id + 1 if config.model_type in _BEHIND_PADDING else 0
    positions = getattr(config, "max_position_embeddings", math.inf)
    return positions - before if positions > 0 else math.inf  # XLNet's -1


class StartingPoint:
    """A checkpoint to finetune.

    Args:
        name: a folder or Hub id. tokenizer_name: a tokenizer that is not in the checkpoint.
        max_seq_length: the tokens wanted; `.max_seq_length` is lower where the tokenizer's `model_max_length` is. length_argument: of the
            command, which says so.
        from_finetuned: whether the checkpoint may itself be finetuned; its classifier is kept where its shape fits.
        lengthened: the caller lengthens a model that has fewer positions; the tokenizer then cuts at `max_seq_length`.

    Raises:
        ValueError: damaged files; a model that does not classify texts, or cannot in batches; a length beyond the model's positions, unless
            `lengthened`; a tokenizer without words, with more than the model knows, or of another vocabulary than the checkpoint's own; a
            finetuned checkpoint without `from_finetuned`.
        OSError: no such checkpoint.
    """

    def __init__(
        self,
        name: str,
        max_seq_length: int,
        tokenizer_name: str | None = None,
        from_finetuned: bool = False,
        trust_remote_code: bool = False,
        lengthened: bool = False,
        length_argument: str = "max_seq_length",
    ):
        self.name, self.from_finetuned, self.trust_remote_code = name, from_finetuned, trust_remote_code
        if not Path(name).exists() and (name.startswith((".", "/", "~")) or name.count("/") > 1):
            raise FileNotFoundError(f"There is no checkpoint folder {name} (seen from {Path.cwd()}).")
        with reading(f"The checkpoint {name}"):
            config = AutoConfig.from_pretrained(name, trust_remote_code=trust_remote_code)
        self._check_reads_texts(config)
        if not from_finetuned and any("ForSequenceClassification" in head for head in config.architectures or []):
            raise ValueError(
                f"{name} is already finetuned (to {', '.join(map(str, config.id2label.values()))}); scores from there are not "
                "those of a pretrained model. Pass --from_finetuned if that is meant, or name the pretrained checkpoint."
            )
        tokenizer_name = tokenizer_name or name
        with reading(f"The tokenizer {tokenizer_name}"):
            self.tokenizer = AutoTokenizer.from_pretrained(tokenizer_name, trust_remote_code=trust_remote_code)
        remedy = "give --tokenizer_name the tokenizer the model was trained with."
        # Special tokens alone: what Transformers makes of a missing vocabulary.
        if len(self.tokenizer) <= len(self.tokenizer.all_special_ids):
            raise ValueError(f"{tokenizer_name} has no vocabulary: {remedy}")
        if len(self.tokenizer) > config.vocab_size:
            raise ValueError(
                f"The tokenizer {tokenizer_name} has {len(self.tokenizer):,} entries, {name} knows {config.vocab_size:,}: {remedy}"
            )
        if tokenizer_name != name and (own := own_tokenizer(name, trust_remote_code)) is not None:
            remedy = "leave --tokenizer_name out, or name a model that was trained with it."
            check_vocabulary(name, own, self.tokenizer, f"the tokenizer {tokenizer_name}", remedy)
        self._check_padding(config)
        self.positions = longest_input(config)
        if lengthened:
            self.tokenizer.model_max_length = max(max_seq_length, self.tokenizer.model_max_length)
        elif max_seq_length > self.positions:
            raise ValueError(
                f"--{length_argument} {max_seq_length} is beyond {name}, which takes up to {self.positions} tokens: pass "
                f"--{length_argument} {self.positions}, or lengthen the model first (S3BERT: resize_position_embeddings)."
            )
        self.max_seq_length = min(max_seq_length, self.tokenizer.model_max_length)
        if self.max_seq_length < max_seq_length:
            logger.info("Inputs are cut to %d tokens, the tokenizer's model_max_length.", self.max_seq_length)
        self.model_type = config.model_type
        self.needs_fixed_length = config.model_type in _WITHOUT_MASK
        self._reported = False  # which weights were found and which are new: once is enough
        self.weights = weights_digest(name, config)

    def __str__(self) -> str:
        return self.name + (" (itself finetuned)" if self.from_finetuned else "")

    def _check_reads_texts(self, config: PreTrainedConfig) -> None:
        check_no_decoder(self.name, config)
        check_model_type(
            self.name, config, AutoModelForSequenceClassification, "classifier of texts", self.trust_remote_code
        )
        if config.model_type in _OF_OTHER_INPUTS:
            raise ValueError(
                f"{self.name} is of type {config.model_type}, which reads no texts but {_OF_OTHER_INPUTS[config.model_type]}: name an "
                "encoder of text, as BERT's or S3BERT's."
            )

    def _check_padding(self, config: PreTrainedConfig) -> None:
        # Classifiers of language models read the last token, which they find by the padding that their configuration names.
        of_last = type(config) in AutoModelForCausalLM._model_mapping
        of_last = of_last and type(config) not in AutoModelForMaskedLM._model_mapping
        if self.tokenizer.pad_token_id is None or (of_last and config.pad_token_id is None):
            raise ValueError(
                f"{self.name} ({config.model_type}) has no padding token, without which texts of several lengths are no batch: write one of "
                "its tokens as pad_token into its tokenizer_config.json, and that token's number as pad_token_id into its config.json."
            )

    def classifier(self, labels: Sequence[str] | None, seed: int) -> PreTrainedModel:
        """The checkpoint, float32, under a new classifier of those labels, or with one output for regression when None.

        `seed` decides its initial weights. From the first call on `tokenizer` gives the inputs that the model takes.

        Raises:
            ValueError: its weights are damaged, or of other shapes.
        """
        names = labels or ("score",)
        set_seed(seed)
        # Transformers warns of a classifier that is new, which it has to be; what else is new is told below.
        verbosity = logging_of_transformers.get_verbosity()
        logging_of_transformers.set_verbosity_error()
        try:
            with reading(f"The checkpoint {self.name}"):
                model, found = AutoModelForSequenceClassification.from_pretrained(
                    self.name,
                    id2label=dict(enumerate(names)),
                    label2id={label: number for number, label in enumerate(names)},
                    # Explicit: an entry of the checkpoint's, from another task, would decide the loss.
                    problem_type="single_label_classification" if labels else "regression",
                    dtype=torch.float32,
                    ignore_mismatched_sizes=self.from_finetuned,
                    trust_remote_code=self.trust_remote_code,
                    output_loading_info=True,
                )
        finally:
            logging_of_transformers.set_verbosity(verbosity)
        check_finite(model, self.name)
        if not self._reported:
            self._report(model.base_model_prefix, sorted(found["missing_keys"]))
        self._reported = True
        if "token_type_ids" not in inspect.signature(model.forward).parameters:
            inputs = self.tokenizer.model_input_names
            self.tokenizer.model_input_names = [entry for entry in inputs if entry != "token_type_ids"]
        return model

    def _report(self, encoder: str, missing: list[str]) -> None:
        """Says which weights are new: a classifier and a pooler are to be expected, anything else is not."""
        odd = [name for name in missing if name.startswith(f"{encoder}.") and ".pooler." not in name]
        if odd:
            logger.warning(
                "%s has no weights for %s: they start at random, and scores are not those of a pretrained encoder.",
                self.name,
                ", ".join(odd),
            )
        elif missing:
            logger.info("New weights: %s; all others are those of %s.", ", ".join(missing), self.name)


def weights_digest(name: str, config: PreTrainedConfig) -> str:
    """Changes with the weights of a checkpoint: of the files in a local folder; else its revision on the Hub, or its name."""
    total = hashlib.sha256()
    files = sorted((*Path(name).glob("*.safetensors"), *Path(name).glob("*.bin")))
    for file in files:
        with file.open("rb") as stream:
            total.update(hashlib.file_digest(stream, "sha256").digest())
    return total.hexdigest() if files else getattr(config, "_commit_hash", None) or name
