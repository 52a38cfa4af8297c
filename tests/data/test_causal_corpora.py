"""Corpora of causal models: vocabularies of words, blocks that are cuts of one text, and what old folders and other tokenizers make of it."""

import os
import re
from collections import Counter
from pathlib import Path

import datasets
import numpy as np
import pytest
from transformers import AutoTokenizer

from s3bert.data.arguments import CausalCorpusArguments, CorpusArguments
from s3bert.data.causal_tokenizers import causal_tokenizer, train_words
from s3bert.data.corpus import Corpus, prepare_corpus
from s3bert.data.streaming import StreamingCorpus
from s3bert.data.wordpiece import load_tokenizer, train_wordpiece


WIKITEXT = Path(os.environ.get("S3BERT_DATA", Path(__file__).parents[2] / "../shared/data")) / "wikitext-2-v1"
TEXT = ["the cat sat , the cat ran .", "", "a <unk> dog Sat .", "the end"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))


@pytest.fixture
def source(tmp_path) -> str:
    for name, times in (("train", 30), ("validation", 3)):
        (tmp_path / f"{name}.txt").write_text("\n".join(TEXT * times) + "\n")
    return str(tmp_path)


def test_words_are_ranked_by_frequency_after_the_end_and_the_unknown_one(tmp_path):
    tokenizer = train_words([TEXT[:2], TEXT[2:]], 100)
    counts = Counter(" ".join(TEXT).replace("<unk>", "").split())
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    assert tokenizer.convert_ids_to_tokens(range(len(tokenizer))) == ["<eos>", "<unk>", *ranked]
    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert again("the <unk> zebra Sat").input_ids == [2, 1, 1, tokenizer.get_vocab()["Sat"]]
    assert again.decode(again("the cat sat .").input_ids) == "the cat sat ."
    assert list(again("the cat")) == ["input_ids", "attention_mask"]
    assert len(train_words([TEXT], 6)) == 6
    with pytest.raises(ValueError, match="vocab_size 2 leaves no room for words: give at least 3"):
        train_words([TEXT], 2)
    with pytest.raises(ValueError, match="the texts hold no word"):
        train_words([["", " \t"]], 10)


@pytest.mark.parametrize("vocabulary", ["words", "wordpiece"])
def test_blocks_are_cuts_of_the_rows_with_an_end_after_each(vocabulary, source, tmp_path):
    arguments = CausalCorpusArguments(source, vocabulary=vocabulary, vocab_size=300, max_seq_length=8)
    corpus = Corpus.open(prepare_corpus(arguments, tmp_path / "corpus"))
    tokenizer, blocks = corpus.tokenizer, corpus.split("train")
    rows = [row for row in TEXT * 30 if row or vocabulary == "words"]  # word-level perplexities count every line's end
    expected = [token for row in rows for token in [*tokenizer(row).input_ids, tokenizer.eos_token_id]]
    packed = np.concatenate(list(blocks)).tolist()
    assert packed == expected[: len(packed)]
    assert len(expected) - len(packed) < 8
    assert not corpus.special_tokens
    assert tokenizer.model_max_length > 10**6, "causal models may read on"
    counts = np.bincount(np.concatenate(list(corpus.split("validation"))))
    shares = counts[counts > 0] / counts.sum()
    assert corpus.manifest["unigram_entropy"]["validation"] == pytest.approx(-(shares * np.log(shares)).sum())


def test_a_streamed_causal_corpus_has_the_blocks_of_a_prepared_one(source, tmp_path):
    how = dict(vocabulary="words", vocab_size=50, max_seq_length=8)
    whole = Corpus.open(prepare_corpus(CausalCorpusArguments(source, **how), tmp_path / "whole"))
    streamed = prepare_corpus(CausalCorpusArguments(source, **how, streaming=True), tmp_path / "streamed")
    stream = StreamingCorpus.open(streamed).blocks()
    expected = sorted(map(tuple, whole.split("train")))
    assert sorted(tuple(next(stream)) for _ in expected) == expected


def test_folders_of_one_kind_are_not_taken_for_the_other(source, tmp_path):
    masked = CorpusArguments(source, vocab_size=300, max_seq_length=8)
    prepare_corpus(masked, tmp_path / "masked")
    causal = CausalCorpusArguments(source, vocab_size=300, max_seq_length=8)
    with pytest.raises(ValueError, match=re.escape("made from other inputs (add_special_tokens changed)")):
        prepare_corpus(causal, tmp_path / "masked")
    prepare_corpus(causal, tmp_path / "causal")
    with pytest.raises(ValueError, match=re.escape("made from other inputs (add_special_tokens changed)")):
        prepare_corpus(masked, tmp_path / "causal")


def test_a_tokenizer_for_masked_models_serves_causal_ones(tmp_path):
    pieces = train_wordpiece(TEXT * 9, 300)
    pieces.save_pretrained(tmp_path / "bert")
    loaded = load_tokenizer(str(tmp_path / "bert"), causal=True)
    assert (loaded.eos_token, loaded.cls_token) == ("[SEP]", None)
    assert loaded("the cat").input_ids == pieces("the cat", add_special_tokens=False).input_ids
    assert causal_tokenizer(loaded) is loaded
    words = train_words([TEXT], 50)
    words.save_pretrained(tmp_path / "words")
    assert load_tokenizer(str(tmp_path / "words"), causal=True).get_vocab() == words.get_vocab()
    with pytest.raises(ValueError, match="has no cls token, which masked-language-model blocks need"):
        load_tokenizer(str(tmp_path / "words"))
    words.eos_token = None
    words.save_pretrained(tmp_path / "endless")
    with pytest.raises(ValueError, match="has neither an eos nor a sep token, with which a text would end"):
        load_tokenizer(str(tmp_path / "endless"), causal=True)


def test_mistakes_are_named(source):
    with pytest.raises(ValueError, match="vocabulary = word: give one of wordpiece, words"):
        CorpusArguments(source, vocabulary="word")
    with pytest.raises(ValueError, match="give add_special_tokens = false"):
        CorpusArguments(source, vocabulary="words")


@pytest.mark.skipif(not WIKITEXT.exists(), reason="needs WikiText-2, which does not travel with the project")
def test_wikitext_2_has_the_words_and_tokens_that_papers_report(tmp_path):
    arguments = CausalCorpusArguments(str(WIKITEXT), vocabulary="words", vocab_size=50000, max_seq_length=256)
    corpus = Corpus.open(prepare_corpus(arguments, tmp_path / "corpus"))
    assert len(corpus.tokenizer) == 33278
    tokens = {record["split"]: record["tokens"] for record in corpus.manifest["files"]}
    assert tokens == {"train": 2088628, "validation": 217646}
