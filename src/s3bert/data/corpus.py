"""Prepared corpora: text in, a reusable folder of token blocks out, and its reader.

A corpus folder holds the tokenizer, one `<split>-<k>.bin` for each source and split (little-endian uint16 blocks, uint32
from 65,536 entries on), and `corpus.json`, which is written last, describes them and has their checksums. A block is [CLS]
ids [SEP] of exactly `block_size` ids, or for causal models ids alone; rows of the text end with one [SEP], or with the tokenizer's end
token. What does not fill a last block is dropped. The folder is built aside and renamed when whole, so that an interrupted preparation leaves nothing that opens.
`Corpus` reads it.
"""

import hashlib
import json
import logging
import os
import shutil
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset, IterableDataset
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from s3bert.folder_lock import turn_at

from .arguments import CorpusArguments
from .blocks import CHUNK_BYTES, FORMAT_VERSION, MANIFEST, Blocks, Corpus, manifest_crc32, read_manifest
from .causal_tokenizers import causal_tokenizer, train_words
from .sources import Source, fingerprint, load_files, load_source, local_files, parse_sources, text_batches
from .wordpiece import (
    block_frame,
    encode_rows,
    load_tokenizer,
    pack,
    spread_sample,
    tokenizer_fingerprint,
    train_wordpiece,
)


__all__ = ["Blocks", "Corpus", "CorpusArguments", "prepare_corpus"]

logger = logging.getLogger(__name__)

COUNTED_TOKENS = 1 << 22  # ids read back at once when counting: whole chunks


@dataclass(frozen=True)
class Part:
    """Rows first..stop of one dataset, which are one source's share of one split."""

    source: Source
    split: str
    dataset: Dataset | IterableDataset
    first: int = 0
    stop: int | None = None

    def texts(self) -> Iterator[list[str]]:
        """The rows in batches."""
        position = 0
        for batch in text_batches(self.source, self.dataset):
            start = max(0, self.first - position)
            end = len(batch) if self.stop is None else min(len(batch), self.stop - position)
            if start < end:
                yield batch[start:end]
            position += len(batch)
            if self.stop is not None and position >= self.stop:
                return


def training_sources(arguments: CorpusArguments) -> list[Source]:
    """The sources of the training text, the configuration name filled in."""
    if bool(arguments.dataset_name) == bool(arguments.train_file):
        raise ValueError("name the text with either dataset_name (NAME[:CONFIG][=WEIGHT] + ...) or train_file")
    sources = parse_sources(arguments.dataset_name or arguments.train_file)
    if arguments.dataset_config_name:
        if len(sources) > 1 or sources[0].config:
            raise ValueError(
                f"dataset_config_name {arguments.dataset_config_name!r}: write it as NAME:CONFIG in dataset_name"
            )
        sources = [replace(sources[0], config=arguments.dataset_config_name)]
    return sources


def corpus_parts(arguments: CorpusArguments) -> list[Part]:
    """Train and validation parts of all sources; nothing but the cut positions is read yet.

    Raises what `load_source` raises, and ValueError for a source without training rows.
    """
    parts = []
    for source in training_sources(arguments):
        if arguments.train_file:
            splits = {"train": _rows_of_files(source, "train_file")}
        else:  # from the disk, rows are read as they are needed: no second copy in the cache of `datasets`
            splits = load_source(source, streaming=arguments.streaming or bool(local_files(source)))
        if "train" not in splits:
            raise ValueError(
                f"data source {source} has no train split, only {', '.join(splits)}; a file of any name is read with train_file"
            )
        held_out = 0
        if "validation" in splits and not arguments.validation_file:
            parts.append(Part(source, "validation", splits["validation"], 0, arguments.max_eval_samples))
        elif not arguments.validation_file and arguments.validation_split_percentage:
            held_out = _rows_to_hold_out(source, splits["train"], arguments)
            stop = min(held_out, arguments.max_eval_samples or held_out)
            parts.append(Part(source, "validation", splits["train"], 0, stop))
        stop = None if arguments.max_train_samples is None else held_out + arguments.max_train_samples
        parts.append(Part(source, "train", splits["train"], held_out, stop))
    if arguments.validation_file:
        for source in parse_sources(arguments.validation_file):
            rows = _rows_of_files(source, "validation_file")
            parts.append(Part(source, "validation", rows, 0, arguments.max_eval_samples))
    return parts


def _rows_of_files(source: Source, argument: str) -> IterableDataset:
    files = local_files(source)
    if not files:
        raise FileNotFoundError(f"{argument} {source}: no such file (seen from {Path.cwd()})")
    return load_files({"train": files}, source, streaming=True)["train"]


def _rows_to_hold_out(source: Source, train: Dataset | IterableDataset, arguments: CorpusArguments) -> int:
    if isinstance(train, Dataset):
        rows = len(train)
    elif not arguments.streaming:
        rows = sum(map(len, text_batches(source, train)))
    elif arguments.max_eval_samples:
        return arguments.max_eval_samples
    else:
        raise ValueError(
            f"data source {source} has no validation split, and how many rows a stream has is not known: name "
            "validation_file, or the number of its first rows to hold out as max_eval_samples"
        )
    if rows < 2:
        raise ValueError(
            f"data source {source} has {rows} row{'s' * (rows != 1)} of text (a line of a .txt file is one), too few to hold some out: give "
            "more text, or a validation_file"
        )
    return max(1, rows * arguments.validation_split_percentage // 100)


def prepare_corpus(arguments: CorpusArguments, output_dir: str | Path) -> Path:
    """The folder of the corpus that `arguments` describe: `output_dir`, made now unless it is there already.

    Same inputs again: the folder is reused. A folder made from other inputs is an error unless `overwrite_cache`.
    If dataset_name is itself a prepared folder, that is checked and returned. Two processes that prepare the same
    folder wait for each other. Raises what `load_source` raises, ValueError for a corpus that does not fill a block.
    """
    if arguments.dataset_name and (Path(arguments.dataset_name) / MANIFEST).is_file():
        corpus = Corpus.open(arguments.dataset_name)
        logger.info("using the prepared corpus %s (blocks of %d)", arguments.dataset_name, corpus.block_size)
        return Path(arguments.dataset_name)
    output_dir = Path(output_dir)
    output_dir.parent.mkdir(parents=True, exist_ok=True)
    _limit_threads(arguments.preprocessing_num_workers)
    name, causal = arguments.tokenizer_name, not arguments.add_special_tokens
    tokenizer = load_tokenizer(name, causal) if name else None
    replaces = arguments.overwrite_cache or not (output_dir / MANIFEST).is_file()
    known = {} if replaces else read_manifest(output_dir).get("known_files", {})
    inputs = _inputs(arguments, tokenizer, known)
    with turn_at(output_dir):
        _remove_leftovers(output_dir)  # of a process that died: it would hold the lock otherwise
        if _is_prepared(output_dir, inputs, arguments.overwrite_cache):
            logger.info("reusing the corpus in %s: same inputs", output_dir)
            return output_dir
        building = _aside(output_dir, "partial")
        building.mkdir()
        try:
            _build(arguments, inputs, known, tokenizer, building)
            Corpus.open(building)
            if output_dir.exists():
                output_dir.rename(_aside(output_dir, "replaced"))
            building.rename(output_dir)
        finally:
            _remove_leftovers(output_dir)
    return output_dir


def _inputs(
    arguments: CorpusArguments, tokenizer: PreTrainedTokenizerBase | None, known: dict[str, list]
) -> dict[str, Any]:
    """Everything that decides what is in the folder; equal inputs mean an equal corpus. `known`: see `fingerprint`."""
    sources = training_sources(arguments)
    kind = {"words": "words", "wordpiece": "pieces"}[arguments.vocabulary]
    names = ["max_seq_length", "validation_split_percentage", "max_train_samples", "max_eval_samples", "streaming"]
    return {
        "format": FORMAT_VERSION,
        "sources": [
            [fingerprint(source, known), source.weight] for source in sources
        ],  # not as spelt: paths have many names
        "validation_file": arguments.validation_file
        and [fingerprint(source, known) for source in parse_sources(arguments.validation_file)],
        "train_file": arguments.train_file is not None,
        "tokenizer": tokenizer_fingerprint(tokenizer) if tokenizer else f"trained, {arguments.vocab_size} {kind}",
        **{name: getattr(arguments, name) for name in names},
        **({} if arguments.add_special_tokens else {"add_special_tokens": False}),  # which older folders do not name
    }


def _limit_threads(workers: int | None) -> None:
    """The tokenizers library reads its number of threads once, when it first runs in parallel."""
    if workers is not None:
        os.environ["RAYON_NUM_THREADS"] = str(workers)
        os.environ["TOKENIZERS_PARALLELISM"] = "false" if workers == 1 else "true"


def _aside(output_dir: Path, purpose: str) -> Path:
    return output_dir.parent / f".{output_dir.resolve().name}.{purpose}"


def _remove_leftovers(output_dir: Path) -> None:
    for purpose in ("partial", "replaced"):
        shutil.rmtree(_aside(output_dir, purpose), ignore_errors=True)


def _is_prepared(output_dir: Path, inputs: dict[str, Any], overwrite: bool) -> bool:
    """Whether the folder is this corpus; raises ValueError where something else would be overwritten."""
    if not output_dir.exists() or (output_dir.is_dir() and not any(output_dir.iterdir())):
        return False
    if not (output_dir / MANIFEST).is_file():
        raise ValueError(
            f"{output_dir} exists and is not a prepared corpus (it has no {MANIFEST}); name another folder"
        )
    if overwrite:
        return False
    found = read_manifest(output_dir)["inputs"]
    changed = [name for name in found | inputs if json.dumps(found.get(name)) != json.dumps(inputs.get(name))]
    if changed:
        raise ValueError(
            f"{output_dir} holds a corpus made from other inputs ({', '.join(changed)} changed); name another folder, or "
            "set overwrite_cache to replace it"
        )
    Corpus.open(output_dir)
    return True


def _build(
    arguments: CorpusArguments,
    inputs: dict[str, Any],
    known: dict[str, list],
    tokenizer: PreTrainedTokenizerBase | None,
    folder: Path,
) -> None:
    parts = corpus_parts(arguments)
    training = [part for part in parts if part.split == "train"]
    if tokenizer is None:
        tokenizer = _train_tokenizer(arguments, training)
        if len(tokenizer) < arguments.vocab_size:
            logger.warning("the text affords a vocabulary of %d, not %d", len(tokenizer), arguments.vocab_size)
    if arguments.add_special_tokens:
        tokenizer.model_max_length = arguments.max_seq_length
    try:
        tokenizer.save_pretrained(folder)
    except Exception as error:  # the library raises no narrower one for a full disk
        raise OSError(f"cannot save the tokenizer in {folder}: {error}") from error

    tokenizer_files = {file.name: zlib.crc32(file.read_bytes()) for file in sorted(folder.iterdir())}
    files = []
    counts: dict[str, np.ndarray] = {}
    for split in ("train", "validation"):
        for number, part in enumerate(part for part in parts if part.split == split):
            if arguments.streaming and split == "train":
                continue
            file = folder / f"{split}-{number}.bin"
            record, part_counts = _write_part(part, tokenizer, arguments, file)
            counts[split] = counts.get(split, 0) + part_counts
            files.append(record)
    unpredicted = tokenizer.all_special_ids if arguments.add_special_tokens else []
    manifest = {
        "format": FORMAT_VERSION,
        "fingerprint": hashlib.sha256(json.dumps(inputs).encode()).hexdigest(),
        "inputs": inputs,
        "known_files": known,
        "vocab_size": len(tokenizer),
        "block_size": arguments.max_seq_length,
        "dtype": _id_type(len(tokenizer)).str,
        "special_tokens": arguments.add_special_tokens,
        "unigram_entropy": {split: _entropy(counts[split], unpredicted) for split in counts},
        "tokenizer_files": tokenizer_files,
        "files": files,
        "streaming": _from_anywhere(arguments) if arguments.streaming else None,
    }
    with open(folder / MANIFEST, "w", encoding="utf-8") as stream:
        json.dump({**manifest, "crc32": manifest_crc32(manifest)}, stream, indent=2)
        stream.flush()
        os.fsync(stream.fileno())


def _train_tokenizer(arguments: CorpusArguments, training: list[Part]) -> PreTrainedTokenizerBase:
    """The vocabulary that the training text affords, of a sample; rare words are counted in all of it."""
    size = arguments.vocab_size
    with tqdm(desc="reading text for the vocabulary", unit=" rows", unit_scale=True, disable=None) as progress:
        batches = _counted(training, progress)
        if arguments.vocabulary == "words" and not arguments.streaming:
            return train_words(batches, size)
        texts = spread_sample(batches, stop_when_full=arguments.streaming)
    logger.info("training a vocabulary of %d on %d rows", size, len(texts))
    if arguments.vocabulary == "words":
        return train_words([texts], size)
    tokenizer = train_wordpiece(texts, size)
    return tokenizer if arguments.add_special_tokens else causal_tokenizer(tokenizer)


def _counted(parts: list[Part], progress: tqdm) -> Iterator[list[str]]:
    for part in parts:
        for texts in part.texts():
            progress.update(len(texts))
            yield texts


def _id_type(vocab_size: int) -> np.dtype:
    return np.dtype("<u2") if vocab_size < 65536 else np.dtype("<u4")


def _write_part(
    part: Part, tokenizer: PreTrainedTokenizerBase, arguments: CorpusArguments, file: Path
) -> tuple[dict[str, Any], np.ndarray]:
    """Writes the blocks of one part; gives its record in the manifest and how often each id occurs."""
    dtype, block_size = _id_type(len(tokenizer)), arguments.max_seq_length
    first, last, separator = block_frame(tokenizer, arguments.add_special_tokens)
    rows = tokens = 0

    def encoded() -> Iterator[np.ndarray]:
        nonlocal rows, tokens
        for ids, filled_rows in encode_rows(part.texts(), tokenizer, dtype, separator):
            rows, tokens = rows + filled_rows, tokens + len(ids)
            progress.update(len(ids))
            yield ids

    label = f"{part.split} of {part.source}"
    with (
        open(file, "wb") as stream,
        tqdm(desc=label, unit=" tokens", unit_scale=True, disable=None) as progress,
    ):
        for blocks in pack(encoded(), block_size, first, last):
            try:
                stream.write(blocks.tobytes())
            except OSError as error:
                raise OSError(error.errno, f"{error.strerror} ({tokens:,} tokens read)", str(file)) from error
        stream.flush()
        os.fsync(stream.fileno())
    blocks = file.stat().st_size // (block_size * dtype.itemsize)
    if blocks == 0:
        remedy = "a smaller max_seq_length or more text"
        if part.split == "validation":
            remedy += " (a larger validation_split_percentage or max_eval_samples, or a validation_file)"
        raise ValueError(
            f"{label}: {rows:,} rows with {tokens:,} tokens do not fill one block of {block_size}; it takes {remedy}"
        )

    digest, counts, largest = hashlib.sha256(), np.zeros(len(tokenizer), dtype=np.int64), 0
    checksums: list[int] = []
    with open(file, "rb") as stream:
        while chunk := stream.read(COUNTED_TOKENS * dtype.itemsize):
            digest.update(chunk)
            checksums += [zlib.crc32(chunk[i : i + CHUNK_BYTES]) for i in range(0, len(chunk), CHUNK_BYTES)]
            ids = np.frombuffer(chunk, dtype=dtype)
            largest = max(largest, int(ids.max()))
            counts += np.bincount(ids, minlength=len(counts))[: len(counts)]
    if largest >= len(tokenizer):
        raise ValueError(
            f"{label}: token id {largest} is outside the vocabulary of {len(tokenizer)}; mend the tokenizer"
        )
    record = {
        "file": file.name,
        "split": part.split,
        "source": str(part.source),
        "weight": part.source.weight if part.split == "train" else None,
        "rows": rows,
        "tokens": tokens,
        "blocks": blocks,
        "dropped_tokens": tokens - blocks * (block_size - len(first + last)),
        "unknown_tokens": int(counts[tokenizer.unk_token_id]) if tokenizer.unk_token_id is not None else 0,
        "max_id": largest,
        "bytes": file.stat().st_size,
        "sha256": digest.hexdigest(),
        "crc32": checksums,
    }
    return record, counts


def _entropy(counts: np.ndarray, special_ids: list[int]) -> float:
    """Entropy in nats of the ids that are not special: the loss of knowing nothing but how frequent each is."""
    counts = counts.astype(np.float64)
    counts[special_ids] = 0
    shares = counts[counts > 0] / max(counts.sum(), 1)
    return float(-(shares * np.log(shares)).sum())


def _from_anywhere(arguments: CorpusArguments) -> dict[str, Any]:
    """The arguments with absolute paths, for a stream to be found again from another folder."""

    def absolute(spec: str | None) -> str | None:
        if not spec:
            return None
        sources = [
            replace(source, name=os.path.abspath(os.path.expanduser(source.name))) if local_files(source) else source
            for source in parse_sources(spec)
        ]
        return " + ".join(map(str, sources))

    names = ("dataset_name", "train_file", "validation_file")
    return asdict(replace(arguments, **{name: absolute(getattr(arguments, name)) for name in names}))
