"""The synthetic data: repeatable, of the promised size and balance, and with agreement that reaches across sentences."""

import re

import pytest

from s3bert.data.synthetic import PRONOUNS, synthetic_acceptability, synthetic_corpus


@pytest.fixture(scope="module")
def corpus() -> list[str]:
    return synthetic_corpus("train")["text"][:]


def test_the_same_seed_gives_the_same_text_and_another_seed_or_split_other_text():
    first = synthetic_corpus("validation", seed=3)["text"][:]
    assert first == synthetic_corpus("validation", seed=3)["text"][:]
    assert not set(first) & set(synthetic_corpus("validation", seed=4)["text"])
    assert not set(first) & set(synthetic_corpus("train", seed=3, num_documents=200)["text"])
    assert synthetic_acceptability("validation")[:] == synthetic_acceptability("validation")[:]


def test_the_corpus_has_its_size_and_documents_of_15_to_40_sentences(corpus: list[str]):
    assert 1_000_000 < sum(map(len, corpus)) < 2_000_000
    lengths = {document.count(" .") for document in corpus}
    assert min(lengths) >= 15
    assert max(lengths) <= 40
    assert len(lengths) > 20
    assert len(set(corpus)) == len(corpus)


def test_a_document_keeps_the_person_and_the_tense_of_its_first_sentence_to_its_end(corpus: list[str]):
    for document in corpus:
        sentences = document.split(" . ")
        plural = " and " in sentences[0]
        past = bool(re.search(r" (was|were) ", sentences[0]))
        reflexives = set(re.findall(r"\b(?:her|him|them)sel(?:f|ves)\b", document))
        assert len(reflexives) <= 1  # one main person, one reflexive
        if reflexives:
            assert (reflexives == {PRONOUNS["they"][2]}) == plural
        assert not re.search(r" (is|are) " if past else r" (was|were) ", document)


def test_acceptability_is_balanced_and_no_sentence_is_in_two_splits():
    splits = {split: synthetic_acceptability(split) for split in ("train", "validation", "test")}
    assert [len(rows) for rows in splits.values()] == [4000, 500, 500]
    for rows in splits.values():
        assert sum(rows["label"]) == len(rows) / 2
        assert rows["idx"] == list(range(len(rows)))
        assert rows.features["label"].names == ["unacceptable", "acceptable"]
    sentences = [sentence for rows in splits.values() for sentence in rows["sentence"]]
    assert len(set(sentences)) == len(sentences)


def test_acceptability_cannot_be_told_from_single_words():
    """Every word is about as frequent on either side, so the label takes relations between words."""
    rows = synthetic_acceptability("train")
    counts: dict[str, list[int]] = {}
    for sentence, label in zip(rows["sentence"], rows["label"], strict=True):
        for word in set(sentence.split()):
            counts.setdefault(word, [0, 0])[label] += 1
    frequent = {word: count for word, count in counts.items() if sum(count) >= 200}
    assert len(frequent) > 10
    for word, (bad, good) in frequent.items():
        assert 0.3 < good / (bad + good) < 0.7, word


def test_an_unknown_split_is_an_error_that_names_the_splits():
    with pytest.raises(ValueError, match="no split 'dev', only train, validation, test"):
        synthetic_corpus("dev")
