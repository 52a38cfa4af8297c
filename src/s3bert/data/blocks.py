"""Reading a prepared corpus: its folder, checked, and its memory-mapped blocks in the order an epoch visits them.

`corpus.py` says what is in the folder, and makes it.
"""

import functools
import hashlib
import json
import logging
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoTokenizer, PreTrainedTokenizerBase


logger = logging.getLogger(__name__)

FORMAT_VERSION = 1
MANIFEST = "corpus.json"
CHUNK_BYTES = 1 << 20  # of a file of blocks to a checksum


class Blocks(Sequence):
    """All blocks of one split, source after source; `blocks[i]` is a read-only array (block_size,) of token ids.

    Args:
        files: one file of consecutive blocks for each source.
        block_size: ids of a block.
        dtype: little-endian unsigned type of an id.
        names: the sources, for people.
        weights: share of each source in an epoch; None where every block comes once.
        checksums: CRC-32 of each chunk of `CHUNK_BYTES` of each file, uint32. A chunk is compared when a block of it is first
            read, once in each process, in a fraction of a millisecond. None where they are not known.

    Reading raises OSError for a chunk that is not what its checksum says.
    """

    def __init__(
        self,
        files: list[Path],
        block_size: int,
        dtype: str,
        names: list[str],
        weights: list[float] | None = None,
        checksums: list[np.ndarray] | None = None,
    ) -> None:
        self._arguments = (files, block_size, dtype, names, weights, checksums)
        self.block_size = block_size
        self.weights = weights
        self._maps = [np.memmap(file, dtype=dtype, mode="r").reshape(-1, block_size).view(np.ndarray) for file in files]
        self._unread = None if checksums is None else [np.ones(len(chunks), dtype=bool) for chunks in checksums]
        counts = [len(blocks) for blocks in self._maps]
        self._ends = np.cumsum(counts)
        self.quotas = counts if weights is None else _shares(int(self._ends[-1]), weights)
        for name, quota in zip(names, self.quotas, strict=True):
            if quota == 0:
                raise ValueError(
                    f"the weight of data source {name} gives it none of an epoch's {self._ends[-1]:,} blocks; raise it"
                )
        self.sources = [
            {"name": name, "blocks": count, "weight": weight, "blocks_per_epoch": quota}
            for name, count, weight, quota in zip(
                names, counts, weights or [None] * len(names), self.quotas, strict=True
            )
        ]

    def __reduce__(self):
        return Blocks, self._arguments  # to another process go the files' names, not their contents

    def __len__(self) -> int:
        """Blocks of an epoch, which is as many as there are."""
        return int(self._ends[-1])

    @property
    def num_tokens(self) -> int:
        """Ids of an epoch, [CLS] and [SEP] included."""
        return len(self) * self.block_size

    def __getitem__(self, index: int) -> np.ndarray:
        if not -len(self) <= index < len(self):
            raise IndexError(f"block {index} of {len(self)}")
        index %= len(self)
        source = int(np.searchsorted(self._ends, index, side="right"))
        blocks = self._maps[source]
        number = index - int(self._ends[source]) + len(blocks)
        if self._unread is not None:
            self._check(source, number)
        return blocks[number]

    def _check(self, source: int, number: int) -> None:
        """Compares the chunks in which a block of a source lies with their checksums, where no block of theirs was read yet."""
        data, unread = self._maps[source].reshape(-1).view(np.uint8), self._unread[source]
        size = self._maps[source][number].nbytes
        for chunk in range(number * size // CHUNK_BYTES, ((number + 1) * size - 1) // CHUNK_BYTES + 1):
            if unread[chunk]:
                start = chunk * CHUNK_BYTES
                content = data[start : start + CHUNK_BYTES]
                if zlib.crc32(content) != self._arguments[-1][source][chunk]:
                    file = self._arguments[0][source]
                    raise OSError(
                        f"{file} is damaged: bytes {start:,} to {start + len(content) - 1:,} do not match their checksum in "
                        f"{MANIFEST}; delete {file.parent} and prepare the corpus again"
                    )
                unread[chunk] = False

    def draw(self, seed: int, epoch: int) -> np.ndarray:
        """Block numbers of one epoch in the order to visit them, int64 (len(self),): a function of its arguments alone.

        Without weights every block comes once. With weights, each source gives its share of the epoch, going on through
        its own blocks where the last epoch stopped, in passes that are reshuffled: no block of a source
        comes again before all others have come.
        """
        order = np.random.default_rng([seed, epoch, 1])
        if self.weights is None:
            return order.permutation(len(self))
        chosen = []
        for source, (blocks, quota) in enumerate(zip(self._maps, self.quotas, strict=True)):
            first, count = int(self._ends[source]) - len(blocks), len(blocks)
            position, end = epoch * quota, (epoch + 1) * quota
            while position < end:
                lap, start = divmod(position, count)
                taken = min(count - start, end - position)
                shuffled = np.random.default_rng([seed, source, lap, 2]).permutation(count)
                chosen.append(first + shuffled[start : start + taken])
                position += taken
        return order.permutation(np.concatenate(chosen))


def _shares(total: int, weights: list[float]) -> list[int]:
    """`total` blocks divided in proportion to `weights`, rounded so that they add up (largest remainders first)."""
    exact = np.asarray(weights, dtype=np.float64) / sum(weights) * total
    shares = np.floor(exact).astype(np.int64)
    for source in np.argsort(shares - exact, kind="stable")[: total - int(shares.sum())]:
        shares[source] += 1
    return shares.tolist()


def read_manifest(folder: Path) -> dict[str, Any]:
    """`corpus.json` of a prepared folder; FileNotFoundError or ValueError where that is none of this version."""
    file = folder / MANIFEST
    if not file.is_file():
        raise FileNotFoundError(
            f"{folder} is not a prepared corpus: it has no {MANIFEST}; make one with s3bert prepare-corpus"
        )
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
        version = manifest["format"]
        checksum = manifest.pop("crc32", None)  # corpora of earlier versions have none
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{file} is damaged ({error}); delete {folder} and prepare it again") from error
    if version != FORMAT_VERSION:
        raise ValueError(f"{file} has format {version}, this version reads {FORMAT_VERSION}; prepare the corpus again")
    if checksum is not None and checksum != manifest_crc32(manifest):
        raise ValueError(f"{file} is damaged (it does not match its checksum); delete {folder} and prepare it again")
    return manifest


def manifest_crc32(manifest: dict[str, Any]) -> int:
    """CRC-32 of what `corpus.json` holds beside this number."""
    return zlib.crc32(json.dumps(manifest).encode())


@functools.cache
def _say_that_nothing_is_checked(folder: Path) -> None:
    logger.warning(
        "%s was prepared without checksums: damage to its blocks would not be noticed. Prepare it again to have them.",
        folder,
    )


class Corpus:
    """A prepared folder: `tokenizer`, `vocab_size`, `block_size`, `special_tokens` (whether a block is [CLS] ids [SEP]), `manifest`, and
    the blocks of its splits."""

    def __init__(self, folder: Path, manifest: dict[str, Any], tokenizer: PreTrainedTokenizerBase) -> None:
        self.folder = folder
        self.manifest = manifest
        self.tokenizer = tokenizer
        self.vocab_size: int = manifest["vocab_size"]
        self.block_size: int = manifest["block_size"]
        self.special_tokens: bool = manifest.get("special_tokens", True)  # those of earlier versions have them

    @classmethod
    def open(cls, folder: str | Path) -> "Corpus":
        """Opens a folder of `prepare_corpus`, comparing the blocks' files with the manifest by name and size, the tokenizer's by
        checksum. Blocks are compared with their checksums as they are read.

        Raises FileNotFoundError where there is no corpus, OSError for a missing or cut file, ValueError for another
        format or a tokenizer that is not the corpus's.
        """
        folder = Path(folder)
        manifest = read_manifest(folder)
        for record in manifest["files"]:
            file = folder / record["file"]
            size = file.stat().st_size if file.is_file() else 0
            if size != record["bytes"]:
                raise OSError(
                    f"{file} has {size:,} of its {record['bytes']:,} bytes; delete {folder} and prepare the corpus again"
                )
        for name, checksum in manifest.get("tokenizer_files", {}).items():
            file = folder / name
            if not file.is_file() or zlib.crc32(file.read_bytes()) != checksum:
                raise ValueError(
                    f"{file} is not the file that the blocks of {folder} were made with; prepare the corpus again"
                )
        if not all("crc32" in record for record in manifest["files"]):
            _say_that_nothing_is_checked(folder.resolve())
        tokenizer = AutoTokenizer.from_pretrained(folder)
        if len(tokenizer) != manifest["vocab_size"]:
            raise ValueError(
                f"the tokenizer in {folder} has {len(tokenizer):,} entries, its blocks were made with {manifest['vocab_size']:,}; "
                "prepare the corpus again"
            )
        return cls(folder, manifest, tokenizer)

    @property
    def fingerprint(self) -> str:
        """Changes when a block, a source's weight or the tokenizer does; of a streamed corpus, when its sources do. The folder's
        place says nothing."""
        manifest = self.manifest
        content = [[record["split"], record["weight"], record["sha256"]] for record in manifest["files"]]
        content += [self.block_size, manifest.get("tokenizer_files"), manifest["streaming"] and manifest["fingerprint"]]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]

    def split(self, name: str) -> Blocks:
        """The blocks of `train` or `validation`; ValueError when the corpus has none."""
        records = [record for record in self.manifest["files"] if record["split"] == name]
        if not records:
            splits = ", ".join(sorted({record["split"] for record in self.manifest["files"]}))
            if name == "train" and self.manifest["streaming"]:
                raise ValueError(f"{self.folder} streams its training text; open it with StreamingCorpus")
            raise ValueError(
                f"the corpus {self.folder} has no {name} split, only {splits}; prepare it with a validation_file or a "
                "validation_split_percentage above 0"
            )
        weights = [record["weight"] for record in records]
        return Blocks(
            [self.folder / record["file"] for record in records],
            self.block_size,
            self.manifest["dtype"],
            [record["source"] for record in records],
            None if None in weights else weights,
            [np.array(record["crc32"], dtype=np.uint32) for record in records]
            if all("crc32" in record for record in records)
            else None,
        )
