"""Tokenizers: training is reproducible and wastes no pieces, opening says what is missing, packing loses nothing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, BertTokenizer

from s3bert.data.synthetic import synthetic_corpus
from s3bert.data.wordpiece import load_tokenizer, pack, spread_sample, train_wordpiece


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


@given(st.lists(st.lists(st.integers(5, 99), max_size=40), max_size=8), st.integers(8, 20))
def test_packing_loses_only_what_does_not_fill_the_last_block(arrays, block_size):
    tokenizer = BertTokenizer(vocab={"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4})
    blocks = list(pack((np.array(ids, dtype="<u2") for ids in arrays), tokenizer, block_size))
    flat = [token for ids in arrays for token in ids]
    packed = [token for group in blocks for block in group for token in block[1:-1].tolist()]
    assert packed == flat[: len(packed)]
    assert len(flat) - len(packed) < block_size - 2
    assert all((group[:, 0] == 2).all() and (group[:, -1] == 3).all() for group in blocks)
