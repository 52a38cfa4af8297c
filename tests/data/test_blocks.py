"""Prepared blocks: memory-mapped, and visited in an order that honours the weights and is a function of seed and epoch."""

import pickle
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from s3bert.data.blocks import Blocks


def made_of(file: Path, blocks: int, first: int = 0) -> Path:
    """A file of `blocks` blocks of 4 ids, each block its own number in all places."""
    np.repeat(np.arange(first, first + blocks, dtype="<u4"), 4).tofile(file)
    return file


@settings(max_examples=40, deadline=None)
@given(
    counts=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    weights=st.lists(st.sampled_from([1.0, 2.0, 5.0]), min_size=4, max_size=4),
    seed=st.integers(0, 5),
)
def test_weights_are_honoured_and_a_source_repeats_no_block_before_all_have_come(
    tmp_path_factory, counts, weights, seed
):
    folder = tmp_path_factory.mktemp("blocks")
    files = [made_of(folder / str(i), count) for i, count in enumerate(counts)]
    weights, total = weights[: len(counts)], sum(counts)
    assume(min(weights) / sum(weights) * total >= 1)
    blocks = Blocks(files, 4, "<u4", [str(i) for i in range(len(counts))], weights)
    borders = np.cumsum([0, *counts])
    seen = [[] for _ in counts]
    for epoch in range(6):
        order = blocks.draw(seed, epoch)
        assert len(order) == len(blocks) == total
        assert order.dtype == np.int64
        for i, weight in enumerate(weights):
            mine = order[(order >= borders[i]) & (order < borders[i + 1])] - borders[i]
            assert abs(len(mine) - weight / sum(weights) * total) < 1
            seen[i] += mine.tolist()
    for count, numbers in zip(counts, seen, strict=True):
        often = np.bincount(numbers, minlength=count)
        assert often.max() - often.min() <= 1


def test_a_weight_too_small_for_a_single_block_is_an_error(tmp_path):
    files = [made_of(tmp_path / "0", 10), made_of(tmp_path / "1", 10)]
    with pytest.raises(ValueError, match="weight of data source tiny gives it none of an epoch's 20 blocks"):
        Blocks(files, 4, "<u4", ["large", "tiny"], [1000.0, 1.0])


def test_without_weights_every_block_comes_once_in_another_order_each_epoch(tmp_path):
    blocks = Blocks([made_of(tmp_path / "0", 30), made_of(tmp_path / "1", 12, first=30)], 4, "<u4", ["x", "y"])
    orders = [blocks.draw(seed, epoch) for seed in (0, 1) for epoch in (0, 1)]
    assert all(sorted(order) == list(range(42)) for order in orders)
    assert len({tuple(order) for order in orders}) == 4
    assert (blocks.draw(1, 1) == orders[-1]).all()
    assert [int(blocks[i][0]) for i in (0, 29, 30, 41, -1)] == [0, 29, 30, 41, 41]
    with pytest.raises(IndexError):
        blocks[42]


def test_blocks_are_mapped_not_read_and_travel_to_workers_as_names(tmp_path):
    blocks = Blocks([made_of(tmp_path / "0", 10_000)], 4, "<u4", ["x"])
    assert len(pickle.dumps(blocks)) < 1000
    assert (pickle.loads(pickle.dumps(blocks))[17] == blocks[17]).all()
    with pytest.raises(ValueError, match="read-only"):
        blocks[0][0] = 1


def test_every_chunk_is_compared_with_its_checksum_when_a_block_of_it_is_first_read(tmp_path, monkeypatch):
    monkeypatch.setattr("s3bert.data.blocks.CHUNK_BYTES", 40)  # two and a half blocks
    file = made_of(tmp_path / "0", 12)
    whole = file.read_bytes()
    checksums = [np.array([zlib.crc32(whole[i : i + 40]) for i in range(0, len(whole), 40)], dtype=np.uint32)]
    for place in range(len(whole)):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 64]) + whole[place + 1 :])
        blocks = pickle.loads(pickle.dumps(Blocks([file], 4, "<u4", ["x"], None, checksums)))
        chunk = place // 40
        for number in range(12):
            if number * 16 < (chunk + 1) * 40 and (number + 1) * 16 > chunk * 40:
                with pytest.raises(
                    OSError, match=f"0 is damaged: bytes {chunk * 40} to {min(chunk * 40 + 39, 191)} do"
                ):
                    blocks[number]
            else:
                assert blocks[number].tolist() == [number] * 4


def test_any_step_of_a_large_corpus_is_reached_at_once(tmp_path):
    """Two million blocks (2 GB, a hole in the file but for the end), the fortieth epoch: only what is asked for is read."""
    number, size = 2_000_000, 512
    with open(tmp_path / "large.bin", "wb") as stream:
        stream.truncate(number * size * 2)
        stream.seek((number - 1) * size * 2)
        stream.write(np.full(size, 7, dtype="<u2").tobytes())
    started = time.perf_counter()
    blocks = Blocks([tmp_path / "large.bin"], size, "<u2", ["large"], [1.0])
    order = blocks.draw(seed=3, epoch=40)
    for position in range(number - 16, number):
        blocks[int(order[position])].sum()
    finished = time.perf_counter()
    assert blocks[number - 1].tolist() == [7] * size
    assert finished - started < 5
