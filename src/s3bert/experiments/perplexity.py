"""A language model's perplexity on a text: both opened and checked against one another, and losses kept while they are found."""

import hashlib
import json
import logging
import math
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset, IterableDataset
from safetensors import safe_open
from safetensors.numpy import save as save_tensors
from torch import nn
from tqdm.auto import tqdm
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

import s3bert  # noqa: F401  (registers its models with the auto classes)
from s3bert.data.blocks import MANIFEST
from s3bert.data.causal_tokenizers import counts_every_row
from s3bert.data.sources import Source, load_source, local_files, parse_sources, text_batches
from s3bert.data.wordpiece import plain_backend
from s3bert.files import reading, replacing
from s3bert.tasks.perplexity import Windows, bootstrap, losses_by_context, token_losses
from s3bert.training.checkpoints import check_finite
from s3bert.training.pretrained import check_model_type
from s3bert.training.settings import differences, in_words


logger = logging.getLogger(__name__)

LOSSES = "token_losses.safetensors"
_LONGEST_DEFAULT, _UNKNOWN_DEFAULT = 1024, 256  # tokens of a window, where none is asked for
_SAVE_SECONDS = 30.0
_TRIED = 16  # tokens on which a model is tried for whether it reads ahead
_ROUNDING = 1e-4  # of the largest logit


@dataclass(frozen=True)
class Text:
    """A text's token ids (N,) int64, each one's document, (N,) int32 from 0 on, and the UTF-8 bytes of its rows and their ends."""

    ids: np.ndarray
    document_ids: np.ndarray
    num_bytes: int

    @property
    def digest(self) -> str:
        """Changes with the tokens."""
        return hashlib.sha256(self.ids.tobytes()).hexdigest()[:16]


def read_text(
    dataset_name: str, split: str | None, tokenizer: PreTrainedTokenizerBase, document_start: str | None = None
) -> Text:
    """One split of some sources as one text: the ids of each row, and the tokenizer's end after it, as in a causal corpus.

    Args:
        dataset_name: as `data.sources` reads it. split: its name; by default validation, or the only one there is. tokenizer: with an end
            token. document_start: a pattern that the first row of each document has; by default each row is a document.

    Raises:
        ValueError: no such split, a corpus in place of text, a pattern that is none or that no row has. What `load_source` raises.
    """
    if (Path(dataset_name).expanduser() / MANIFEST).is_file():
        raise ValueError(f"{dataset_name} is a prepared corpus, whose rows are cut into blocks: name the text itself.")
    sources = parse_sources(dataset_name)
    batches = (batch for source in sources for batch in text_batches(source, _split(source, split)))
    return text_of(batches, tokenizer, document_start)


def text_of(
    batches: Iterable[list[str]], tokenizer: PreTrainedTokenizerBase, document_start: str | None = None
) -> Text:
    """Rows, in batches, as one text; arguments and errors as `read_text`'s."""
    try:
        starts = None if document_start is None else re.compile(document_start)
    except re.error as error:
        raise ValueError(f"document_start = {document_start!r} is no regular expression: {error}.") from error
    backend, every_row = plain_backend(tokenizer), counts_every_row(tokenizer)
    rows: list[np.ndarray] = []
    documents: list[int] = []
    document, num_bytes = -1, 0
    for batch in batches:
        for text, encoding in zip(batch, backend.encode_batch_fast(batch, add_special_tokens=False), strict=True):
            num_bytes += len(text.encode("utf-8", "surrogatepass")) + 1
            document += starts is None or starts.search(text) is not None
            if encoding.ids or every_row:
                rows.append(np.array([*encoding.ids, tokenizer.eos_token_id], dtype=np.int64))
                documents.append(max(document, 0))
    if starts is not None and document < 0:
        raise ValueError(
            f"document_start = {document_start!r}: no row of the text has it; give a pattern of the first row of each document, such as "
            "'^ = [^=].* = $' for WikiText's articles, or leave it out, for a document a row."
        )
    lengths = [len(row) for row in rows]
    ids = np.concatenate(rows) if rows else np.empty(0, dtype=np.int64)
    return Text(ids, np.repeat(np.array(documents, dtype=np.int32), lengths), num_bytes)


def _split(source: Source, split: str | None) -> Dataset | IterableDataset:
    # From the disk, rows are read as they are needed: no second copy in the cache of `datasets`.
    splits = load_source(source, streaming=bool(local_files(source)))
    chosen = split or ("validation" if "validation" in splits or len(splits) > 1 else next(iter(splits)))
    if chosen not in splits:
        raise ValueError(f"data source {source} has no split {chosen!r}: give --split one of {', '.join(splits)}.")
    return splits[chosen]


def load_config(name: str, trust_remote_code: bool) -> PreTrainedConfig:
    """The configuration of a causal language model.

    Raises:
        ValueError: a damaged one, or of a model that Transformers has no causal form of.
    """
    if not Path(name).exists() and (name.startswith((".", "/", "~")) or name.count("/") > 1):
        raise FileNotFoundError(f"There is no model folder {name} (seen from {Path.cwd()}).")
    with reading(f"The configuration of {name}"):
        config = AutoConfig.from_pretrained(name, trust_remote_code=trust_remote_code)
    check_model_type(name, config, AutoModelForCausalLM, "causal language model", trust_remote_code)
    return config


def load_model(name: str, config: PreTrainedConfig, trust_remote_code: bool) -> PreTrainedModel:
    """The model in float32, in evaluation mode.

    Raises:
        ValueError: damaged weights, or none of a part.
    """
    with reading(f"The model {name}"):
        model, found = AutoModelForCausalLM.from_pretrained(
            name, config=config, dtype=torch.float32, trust_remote_code=trust_remote_code, output_loading_info=True
        )
    if missing := sorted(found["missing_keys"]):
        raise ValueError(
            f"{name} has no weights for {', '.join(missing[:4])}, which would be random: name a model that was saved with the head of a "
            "causal language model."
        )
    check_finite(model, name)
    return model.eval()


def window_length(name: str, model: PreTrainedModel, asked: int | None) -> int:
    """The tokens that a window reads: as asked, or all that the model was made for, at most 1,024; 256 where it does not say.

    Raises:
        ValueError: more than the model's table of positions has.
    """
    positions = getattr(model.config, "max_position_embeddings", None)
    if asked is None:
        return min(positions or _UNKNOWN_DEFAULT, _LONGEST_DEFAULT)
    if positions is not None and asked > positions and _has_learned_positions(model, positions):
        raise ValueError(
            f"max_seq_length = {asked}: {name} has learned positions, which end at {positions}; give up to that."
        )
    return asked


def _has_learned_positions(model: PreTrainedModel, positions: int) -> bool:
    """Whether a table of embeddings beside that of the words has a row for each position, or one or two more, as OPT's."""
    words = model.get_input_embeddings()
    tables = [module for module in model.modules() if isinstance(module, nn.Embedding) and module is not words]
    return any(positions <= table.num_embeddings <= positions + 2 for table in tables)


def check_fit(name: str, model: PreTrainedModel, ids: np.ndarray, length: int) -> None:
    """
    Raises:
        ValueError: an id outside the model's vocabulary; a model that reads ahead.
    """
    vocab_size = model.config.get_text_config().vocab_size
    if int(ids.max()) >= vocab_size:
        raise ValueError(
            f"The text has id {int(ids.max())}, {name} knows {vocab_size}: give --tokenizer_name the tokenizer it was trained with."
        )
    first = torch.from_numpy(ids[: max(2, min(length, _TRIED))])[None].to(model.device)
    other = first.clone()
    other[0, -1] = (other[0, -1] + 1) % vocab_size
    with torch.no_grad():
        before, after = (model(input_ids=tokens).logits[:, :-1] for tokens in (first, other))
    if (before - after).abs().max() > _ROUNDING * before.abs().max():
        raise ValueError(
            f"{name} reads ahead: what it predicts changes with later tokens, as a masked language model's does, and its perplexity would "
            "be of no meaning. Name a causal one."
        )


def resumed_losses(file: Path, settings: dict[str, Any]) -> np.ndarray:
    """The losses that a measurement with the same settings has found so far; none where there is no file.

    Raises:
        ValueError: a damaged file, or one of other settings.
    """
    if not file.exists():
        return np.empty(0, dtype=np.float32)
    with reading(f"{file}"), safe_open(file, "np") as kept:
        before, losses = json.loads(kept.metadata()["settings"]), kept.get_tensor("losses")
    if changed := differences(file, before, settings):
        raise ValueError(
            f"{file} holds losses of other settings than this call's, {in_words(changed)}. Give the same, or another --output_dir."
        )
    return losses


def measure(
    model: PreTrainedModel, text: Text, windows: Windows, batch_size: int, file: Path, settings: dict[str, Any]
) -> np.ndarray:
    """The losses (N - 1,) float32 of a text's tokens after the first, kept in `file` while they are found; those that it has are not
    computed again.

    The file holds `losses`, the tokens' `context` and `document_ids`, as many of each, and the settings as JSON.
    """
    losses = resumed_losses(file, settings)
    context = windows.context()
    total = len(text.ids) - 1

    def save() -> None:
        tensors = {"losses": losses, "context": context, "document_ids": text.document_ids[1:]}
        with replacing(file) as aside:
            found = {name: np.ascontiguousarray(values[: len(losses)]) for name, values in tensors.items()}
            aside.write_bytes(save_tensors(found, {"settings": json.dumps(settings)}))

    if len(losses) < total:
        if len(losses):
            logger.info("%d of %d losses are in %s: going on from there.", len(losses), total, file)
        parts, saved = [losses], time.monotonic()
        progress = tqdm(desc="scoring", total=total, initial=len(losses), unit=" tokens", unit_scale=True, disable=None)
        try:
            for part in token_losses(model, text.ids, windows, batch_size, model.device, len(losses)):
                parts.append(part)
                progress.update(len(part))
                if time.monotonic() - saved > _SAVE_SECONDS:
                    parts = [np.concatenate(parts)]
                    losses = parts[0]
                    save()
                    saved = time.monotonic()
        finally:  # what is found is kept, however this ends
            progress.close()
            losses = np.concatenate(parts)
            save()
    return losses


def results_of(losses: np.ndarray, text: Text, windows: Windows) -> dict[str, Any]:
    """What losses (N - 1,) say: loss and perplexity with its interval, bits per byte, counts, and the loss by context."""
    document_ids = text.document_ids[1:]
    mean, interval = float(losses.mean(dtype=np.float64)), None
    if document_ids[0] != document_ids[-1]:
        _, low, high = bootstrap(losses, document_ids)
        interval = [math.exp(low), math.exp(high)]
    return {
        "loss": mean,
        "perplexity": math.exp(mean),
        "perplexity_interval": interval,
        "bits_per_byte": mean * len(losses) / math.log(2) / text.num_bytes,
        "tokens": len(losses),
        "documents": len(np.unique(document_ids)),
        "bytes": text.num_bytes,
        "loss_by_context": losses_by_context(losses, windows.context()),
    }
