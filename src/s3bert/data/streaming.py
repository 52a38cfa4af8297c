"""Corpora larger than the disk: training blocks tokenised as they are needed, the order a function of the seed alone.

`prepare_corpus` with `streaming=True` writes a folder with the tokenizer and the held-out blocks only. Memory is bounded
by one buffer of blocks per source. Resuming is exact but not free: to skip to a block, everything before it is read
and tokenised again (about a million tokens a second on two cores). Where the blocks fit on the disk (2 bytes per token),
prepare them instead: there any position is reached at once.

Mixing and shuffling are not those of `datasets` (`interleave_datasets`, `shuffle`, `state_dict`), for they do not resume exactly: a state
holds no shuffled buffer, and in version 5.2.0 a stream of 200 rows with a buffer of 50, resumed after 77, never gives 48 of them,
or from Arrow files gives one twice (huggingface/datasets #7901, #8408). A repeated stream is also shuffled alike in every pass.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, count, islice

import numpy as np
from datasets import IterableDataset

from .corpus import Corpus, CorpusArguments, Part, corpus_parts
from .wordpiece import block_frame, encode_rows, pack


BUFFER_BLOCKS = 2048  # blocks of a source among which the next is drawn


class StreamingCorpus(Corpus):
    """A folder prepared with `streaming=True`: a `Corpus` whose training blocks come from `blocks`, not from `split`."""

    def blocks(self, split: str = "train", seed: int = 0, skip: int = 0) -> Iterator[np.ndarray]:
        """Training blocks (block_size,) without end, from number `skip` on: the same `seed`, the same blocks in the same order.

        Each block comes from one source, drawn by weight (equally likely where there are no weights). A source is read
        pass after pass: its files in an order reshuffled each time, its blocks shuffled within a buffer of 2,048.

        Raises ValueError for a folder that was not prepared for streaming, or a source that does not fill a block.
        """
        if split != "train" or not self.manifest["streaming"]:
            raise ValueError(f"{self.folder} does not stream {split!r}: prepared blocks are read with split({split!r})")
        parts = corpus_parts(CorpusArguments(**self.manifest["streaming"]))
        parts = [part for part in parts if part.split == "train"]
        return islice(self._mixed(parts, seed), skip, None)

    def _mixed(self, parts: list[Part], seed: int) -> Iterator[np.ndarray]:
        weights = np.array([part.source.weight or 1.0 for part in parts])
        borders = np.cumsum(weights / weights.sum())
        borders[-1] = 1.0
        streams = [self._passes(part, seed, number) for number, part in enumerate(parts)]
        choice = np.random.default_rng([seed, 1])
        while True:
            yield next(streams[int(np.searchsorted(borders, choice.random(), side="right"))])

    def _passes(self, part: Part, seed: int, number: int) -> Iterator[np.ndarray]:
        """The blocks of one source, pass after pass, drawn from a buffer that each block leaves at a random time."""
        random = np.random.default_rng([seed, number, 2])
        buffer: list[np.ndarray] = []
        for lap in count():
            found = False
            for block in self._one_pass(part, [seed, number, lap, 3]):
                found = True
                if len(buffer) < BUFFER_BLOCKS:
                    buffer.append(block)
                    continue
                place = int(random.integers(BUFFER_BLOCKS))
                block, buffer[place] = buffer[place], block
                yield block
            if not found:
                raise ValueError(f"data source {part.source} does not fill one block of {self.block_size} tokens")
            # a source smaller than the buffer is read no further than once a pass
            random.shuffle(buffer)
            while buffer:
                yield buffer.pop()

    def _one_pass(self, part: Part, seed: list[int]) -> Iterator[np.ndarray]:
        parts = [part]
        whole = part.first == 0 and part.stop is None  # else "the first rows" must mean the same rows each time
        if whole and isinstance(part.dataset, IterableDataset):
            files = part.dataset.num_shards
            order = np.random.default_rng(seed).permutation(files)
            parts = [replace(part, dataset=part.dataset.shard(files, int(file))) for file in order]
        dtype = np.dtype(self.manifest["dtype"])
        texts = chain.from_iterable(part.texts() for part in parts)
        first, last, separator = block_frame(self.tokenizer, self.special_tokens)
        ids = (ids for ids, _ in encode_rows(texts, self.tokenizer, dtype, separator))
        for blocks in pack(ids, self.block_size, first, last):
            for block in blocks:
                yield block.copy()  # a view would keep its whole batch in memory
