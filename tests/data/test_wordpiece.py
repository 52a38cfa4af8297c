"""Tokenizers: training is reproducible and wastes no pieces, opening says what is missing, packing loses nothing."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from s3bert.data import wordpiece
from s3bert.data.synthetic import synthetic_corpus
from s3bert.data.wordpiece import encode_rows, load_tokenizer, pack, spread_sample, train_wordpiece


@pytest.fixture(scope="module")
def documents() -> list[str]:
    return synthetic_corpus("train", num_documents=120)["text"][:]


def test_a_trained_tokenizer_is_uncased_reproducible_and_opens_with_auto_tokenizer(documents, tmp_path):
    first, second = train_wordpiece(documents, 300), train_wordpiece(documents, 300)
    assert first.get_vocab() == second.get_vocab()
    assert len(first) <= 300
    assert first.tokenize("ANNA is Happy") == first.tokenize("anna is happy")
    first.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    text = "the sailors near the boat pull ."
    assert again(text).input_ids == first(text).input_ids
    assert first.unk_token_id not in first(text).input_ids
    assert (again.cls_token, again.sep_token, again.mask_token, again.pad_token_id) == ("[CLS]", "[SEP]", "[MASK]", 0)


def test_a_folder_with_nothing_but_vocab_txt_is_a_tokenizer(tmp_path, documents):
    vocabulary = train_wordpiece(documents, 400).get_vocab()
    (tmp_path / "vocab.txt").write_text("\n".join(sorted(vocabulary, key=vocabulary.get)))
    assert load_tokenizer(str(tmp_path)).get_vocab() == vocabulary
    (tmp_path / "vocab.txt").rename(tmp_path / "words.txt")
    with pytest.raises(FileNotFoundError, match=r"neither vocab\.txt nor tokenizer\.json"):
        load_tokenizer(str(tmp_path))


def test_rare_characters_cost_no_pieces_and_common_ones_are_never_unknown():
    rare = [chr(code) for code in range(0x4E00, 0x4E00 + 2000)]
    tokenizer = train_wordpiece(["the quick brown fox jumps over the lazy dog 0123456789"] * 50 + rare, 1000)
    assert tokenizer.unk_token_id not in tokenizer("zyx 9876 dog").input_ids
    assert sum(one in tokenizer.get_vocab() for one in rare) < 128


@given(st.lists(st.text(alphabet="ab ", max_size=30), max_size=80), st.integers(10, 200))
def test_a_spread_sample_is_bounded_ordered_and_reaches_to_the_end(texts, limit):
    kept = spread_sample([texts[i : i + 7] for i in range(0, len(texts), 7)], characters=limit)
    nonempty = [text for text in texts if text]
    assert sum(map(len, kept)) <= max(limit, max(map(len, nonempty), default=0))
    if sum(map(len, nonempty)) <= limit:
        assert kept == nonempty
    else:
        stride = next(s for s in (2**i for i in range(20)) if kept == nonempty[::s])
        assert len(kept) * stride >= len(nonempty)


@pytest.mark.parametrize("limits", [(1, 1), (7, 20), (40, 40)], ids=str)
@pytest.mark.parametrize(
    "rows",
    [
        ["one two three four five " * 9, "", "two", "   ", "x" * 200 + " one"],
        ["  \u6c34\u706b\u6c34\u706b\u6c34\u706b one\u0301 \u0301two, three.four\n" * 5, "\t" * 90 + "three"],
    ],
    ids=["words", "ideographs and accents"],
)
def test_a_text_encoded_in_stretches_has_the_ids_of_the_whole(rows, limits, monkeypatch):
    tokenizer = train_wordpiece(["one two three four five \u6c34 \u706b"] * 9, 200)
    monkeypatch.setattr(wordpiece, "STRETCH_CHARACTERS", limits[0])
    monkeypatch.setattr(wordpiece, "CALL_CHARACTERS", limits[1])
    arrays, counts = zip(*encode_rows([rows], tokenizer, np.dtype("<u2"), tokenizer.sep_token_id), strict=True)
    encoded = [tokenizer(row, add_special_tokens=False).input_ids for row in rows]
    assert np.concatenate(arrays).tolist() == [i for ids in encoded if ids for i in [*ids, tokenizer.sep_token_id]]
    assert sum(counts) == sum(map(bool, encoded))
    assert len(arrays) > 1


def test_a_line_of_megabytes_is_tokenised_in_bounded_portions_and_sampled_in_stretches():
    line = "the sea is wide " * 200_000
    portions = list(wordpiece._portions([[line, "end"]]))
    assert max(sum(len(stretch) for stretch, _ in portion) for portion in portions) <= wordpiece.CALL_CHARACTERS
    assert [ends for portion in portions for _, ends in portion].count(True) == 2
    assert "".join(stretch for portion in portions for stretch, _ in portion) == line + "end"
    assert sum(map(len, spread_sample([[line]], characters=500_000))) <= 500_000


def test_a_word_that_is_never_looked_up_takes_no_time_and_no_pieces():
    endless = "".join(np.random.default_rng(0).choice(list("abcdefh"), 300_000))  # minutes, if it were cut into pieces
    started = time.process_time()
    with_it, without = (train_wordpiece(["bad cafe had a head"] * 3 + extra, 200) for extra in ([endless], []))
    assert time.process_time() - started < 10
    assert with_it.get_vocab() == without.get_vocab()
    assert with_it(endless, add_special_tokens=False).input_ids == [with_it.unk_token_id]


@given(st.lists(st.lists(st.integers(5, 99), max_size=40), max_size=8), st.integers(8, 20), st.booleans())
def test_packing_loses_only_what_does_not_fill_the_last_block(arrays, block_size, framed):
    frame = ([2], [3]) if framed else ()
    blocks = list(pack((np.array(ids, dtype="<u2") for ids in arrays), block_size, *frame))
    flat = [token for ids in arrays for token in ids]
    inner = slice(1, -1) if framed else slice(None)
    packed = [token for group in blocks for block in group for token in block[inner].tolist()]
    assert packed == flat[: len(packed)]
    assert len(flat) - len(packed) < block_size - 2 * framed
    assert all(group.shape[1] == block_size for group in blocks)
    if framed:
        assert all((group[:, 0] == 2).all() and (group[:, -1] == 3).all() for group in blocks)
