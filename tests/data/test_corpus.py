"""Prepared corpora: what is in the folder, that it is reused, that no fault leaves one that opens; streams.

The faults are real ones: processes killed with SIGKILL, files cut short, text that is not text.
"""

import contextlib
import json
import logging
import os
import resource
import shutil
import signal
import time
from itertools import islice
from pathlib import Path

import datasets
import numpy as np
import pytest
from children import processes
from datasets import Dataset
from transformers import BertTokenizer

from s3bert.data.arguments import CorpusArguments
from s3bert.data.blocks import read_manifest
from s3bert.data.corpus import Corpus, prepare_corpus
from s3bert.data.streaming import StreamingCorpus
from s3bert.data.synthetic import synthetic_corpus
from s3bert.data.wordpiece import train_wordpiece


DATA = Path(os.environ.get("S3BERT_DATA", Path(__file__).parents[2] / "../shared/data"))
WIKIPEDIA = DATA / "text/wikipedia-en-2015/validation.txt.gz"
LENGTH = 32


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def documents() -> list[str]:
    return synthetic_corpus("train", num_documents=120)["text"][:]


@pytest.fixture(scope="module")
def tokenizer_folder(documents, tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("tokenizer")
    train_wordpiece(documents, 600).save_pretrained(folder)
    return str(folder)


@pytest.fixture
def arguments(documents, tokenizer_folder, tmp_path):
    """A factory of arguments for two local sources, `a` (100 documents as lines) and `b` (20), each with a validation file."""
    for name, share in (("a", documents[:100]), ("b", documents[100:])):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.txt").write_text("\n".join(share))
        (tmp_path / name / "validation.txt").write_text("\n".join(share[:5]))

    def build(**overrides) -> CorpusArguments:
        fields = {"dataset_name": f"{tmp_path}/a + {tmp_path}/b", "tokenizer_name": tokenizer_folder}
        return CorpusArguments(**{**fields, "max_seq_length": LENGTH, **overrides})

    return build


def test_blocks_hold_the_text_between_cls_and_sep_with_a_sep_between_rows(arguments, tmp_path, documents):
    corpus = Corpus.open(prepare_corpus(arguments(dataset_name=f"{tmp_path}/b"), tmp_path / "corpus"))
    blocks, tokenizer = corpus.split("train"), corpus.tokenizer
    assert all(block.shape == (LENGTH,) and block[0] == tokenizer.cls_token_id for block in blocks)
    assert all(block[-1] == tokenizer.sep_token_id for block in blocks)
    packed = np.concatenate([block[1:-1] for block in blocks]).tolist()
    encoded = [tokenizer(row, add_special_tokens=False).input_ids for row in documents[100:]]
    expected = [token for row in encoded for token in [*row, tokenizer.sep_token_id]]
    assert packed == expected[: len(packed)]
    record = corpus.manifest["files"][0]
    assert record["dropped_tokens"] == len(expected) - len(packed) < LENGTH - 2
    assert (record["rows"], record["tokens"], record["blocks"]) == (20, len(expected), len(blocks))
    assert tokenizer.model_max_length == corpus.block_size == LENGTH
    assert blocks.num_tokens == len(blocks) * LENGTH


def test_special_tokens_written_in_a_text_stay_plain_text(tmp_path, tokenizer_folder):
    (tmp_path / "t.txt").write_text("the [SEP] sailor [MASK] and [CLS] anna\n" * 50)
    arguments = CorpusArguments(train_file=str(tmp_path / "t.txt"), tokenizer_name=tokenizer_folder, max_seq_length=8)
    corpus = Corpus.open(prepare_corpus(arguments, tmp_path / "corpus"))
    inside = np.concatenate([block[1:-1] for block in corpus.split("train")])
    assert not np.isin(inside, [corpus.tokenizer.mask_token_id, corpus.tokenizer.cls_token_id]).any()
    assert (inside == corpus.tokenizer.sep_token_id).sum() <= 50  # the borders of rows


def test_the_folder_costs_two_bytes_a_token(arguments, tmp_path):
    corpus = Corpus.open(prepare_corpus(arguments(), tmp_path / "corpus"))
    for record in corpus.manifest["files"]:
        size = (corpus.folder / record["file"]).stat().st_size
        assert size == record["bytes"] == 2 * LENGTH * record["blocks"]
    left = [path.name for path in tmp_path.iterdir() if path.name.startswith(".corpus")]
    assert not left


def test_large_vocabularies_take_four_bytes(tmp_path, documents):
    words = sorted({word for document in documents for word in document.split()})
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"unused{i}" for i in range(65_531)), *words]
    BertTokenizer(vocab={word: i for i, word in enumerate(vocabulary)}).save_pretrained(tmp_path / "tokenizer")
    arguments = CorpusArguments("synthetic", tokenizer_name=str(tmp_path / "tokenizer"), max_train_samples=20)
    corpus = Corpus.open(prepare_corpus(arguments, tmp_path / "corpus"))
    assert corpus.split("train")[0].dtype == np.uint32
    assert corpus.split("train")[0].max() > 65_535


def test_the_unigram_entropy_is_that_of_the_written_tokens(arguments, tmp_path):
    corpus = Corpus.open(prepare_corpus(arguments(), tmp_path / "corpus"))
    tokens = np.concatenate(list(corpus.split("validation")))
    tokens = tokens[~np.isin(tokens, corpus.tokenizer.all_special_ids)]
    shares = np.unique(tokens, return_counts=True)[1] / len(tokens)
    assert corpus.manifest["unigram_entropy"]["validation"] == pytest.approx(-(shares * np.log(shares)).sum(), rel=1e-9)


def test_the_same_inputs_are_reused_and_said_so_and_others_are_refused_until_told(arguments, tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="s3bert")
    folder = prepare_corpus(arguments(), tmp_path / "corpus")
    made = (folder / "corpus.json").stat().st_mtime_ns
    assert prepare_corpus(arguments(preprocessing_num_workers=1), folder) == folder
    assert caplog.messages[-1] == f"reusing the corpus in {folder}: same inputs"
    assert prepare_corpus(CorpusArguments(dataset_name=str(folder)), tmp_path / "elsewhere") == folder
    assert (folder / "corpus.json").stat().st_mtime_ns == made
    assert not (tmp_path / "elsewhere").exists()

    with pytest.raises(ValueError, match=r"other inputs \(max_seq_length changed\).*overwrite_cache"):
        prepare_corpus(arguments(max_seq_length=16), folder)
    for file in tmp_path.glob("?/*.txt"):
        os.utime(file, (1, 1))
    assert prepare_corpus(arguments(), folder) == folder, "content decides, not time"
    with open(tmp_path / "a/train.txt", "r+b") as stream:
        stream.write(b"X")
    with pytest.raises(ValueError, match=r"other inputs \(sources changed\)"):
        prepare_corpus(arguments(), folder)
    assert Corpus.open(folder).block_size == LENGTH
    prepare_corpus(arguments(max_seq_length=16, overwrite_cache=True), folder)
    assert Corpus.open(folder).block_size == 16


def test_a_folder_of_something_else_is_never_written_into(arguments, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match="not a prepared corpus"):
        prepare_corpus(arguments(overwrite_cache=True), tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "years of work"


@pytest.mark.parametrize("moment", ["training the vocabulary", "writing blocks"])
def test_a_killed_preparation_leaves_nothing_that_opens_and_the_next_one_starts_clean(documents, tmp_path, moment):
    source = tmp_path / "large.txt"
    source.write_text("\n".join(documents * 60))  # some seconds of work
    with_tokenizer = {}
    if moment == "writing blocks":
        train_wordpiece(documents, 600).save_pretrained(tmp_path / "tokenizer")
        with_tokenizer = {"tokenizer_name": str(tmp_path / "tokenizer")}
    arguments = CorpusArguments(train_file=str(source), vocab_size=600, max_seq_length=LENGTH, **with_tokenizer)
    folder, partial = tmp_path / "corpus", tmp_path / ".corpus.partial"
    child = processes.Process(target=prepare_corpus, args=(arguments, folder))
    child.start()
    wanted = partial / "train-0.bin" if with_tokenizer else partial
    deadline = time.monotonic() + 60
    while not (wanted.exists() and (wanted.is_dir() or wanted.stat().st_size > 0)):
        assert child.is_alive()
        assert time.monotonic() < deadline
        time.sleep(0.002)
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    assert child.exitcode == -signal.SIGKILL
    assert partial.exists()
    assert not folder.exists()
    for left in (folder, partial):
        with pytest.raises(FileNotFoundError, match="not a prepared corpus"):
            Corpus.open(left)

    source.write_text("\n".join(documents))
    Corpus.open(prepare_corpus(arguments, folder))
    assert not partial.exists()


def test_two_processes_that_prepare_the_same_folder_make_it_once(arguments, tmp_path):
    children = [processes.Process(target=prepare_corpus, args=(arguments(), tmp_path / "corpus")) for _ in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    assert [child.exitcode for child in children] == [0, 0]
    assert len(Corpus.open(tmp_path / "corpus").split("train")) > 0


def test_an_error_on_the_way_leaves_no_folder(arguments, tmp_path):
    with open(tmp_path / "b/train.txt", "ab") as stream:
        stream.write(b"\xff\n")
    with pytest.raises(ValueError, match=r"b/train\.txt: not UTF-8"):
        prepare_corpus(arguments(), tmp_path / "corpus")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


@pytest.mark.parametrize(
    ("bytes_allowed", "message"), [(5_000, "cannot save the tokenizer"), (60_000, r"train-0\.bin")]
)
def test_a_disk_that_fills_leaves_no_folder_and_a_clear_error(arguments, tmp_path, bytes_allowed, message):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_allowed, hard))  # Python ignores the signal; the write fails
    try:
        with pytest.raises(OSError, match=message):
            prepare_corpus(arguments(dataset_name=f"{tmp_path}/a"), tmp_path / "corpus")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def cut(folder: Path) -> None:
    os.truncate(folder / "train-1.bin", 100)


def damage_manifest(folder: Path) -> None:
    os.truncate(folder / "corpus.json", 50)


def raise_format(folder: Path) -> None:
    manifest = json.loads((folder / "corpus.json").read_text())
    (folder / "corpus.json").write_text(json.dumps({**manifest, "format": 99}))


def swap_tokenizer(folder: Path) -> None:
    train_wordpiece(["other words altogether"] * 5, 300).save_pretrained(folder)


def flip(file: Path, place: int, bit: int = 0) -> None:
    with open(file, "r+b", buffering=0) as stream:
        stream.seek(place)
        byte = stream.read(1)[0]
        stream.seek(place)
        stream.write(bytes([byte ^ 1 << bit]))


def flip_tokenizer(folder: Path) -> None:
    flip(folder / "tokenizer.json", (folder / "tokenizer.json").read_bytes().index(b'"the"') + 1)


def forget_checksums(folder: Path) -> None:
    """Makes the folder one of earlier versions."""
    manifest = json.loads((folder / "corpus.json").read_text())
    del manifest["crc32"], manifest["tokenizer_files"], manifest["known_files"]
    for record in manifest["files"]:
        del record["crc32"]
    (folder / "corpus.json").write_text(json.dumps(manifest))


def forget_checksums_and_swap_tokenizer(folder: Path) -> None:
    forget_checksums(folder)
    swap_tokenizer(folder)


@pytest.mark.parametrize(
    ("damage", "kind", "message"),
    [
        (cut, OSError, r"train-1\.bin has 100 of its [\d,]+ bytes; delete .* prepare"),
        (lambda folder: (folder / "validation-0.bin").unlink(), OSError, r"validation-0\.bin has 0 of its"),
        (damage_manifest, ValueError, r"corpus\.json is damaged"),
        (raise_format, ValueError, "has format 99, this version reads"),
        (swap_tokenizer, ValueError, r"tokenizer\.json is not the file that the blocks of .* were made with; prepare"),
        (flip_tokenizer, ValueError, r"tokenizer\.json is not the file that the blocks of .* were made with; prepare"),
        (forget_checksums_and_swap_tokenizer, ValueError, r"has [\d,]+ entries, its blocks were made with"),
    ],
    ids=["cut file", "missing file", "cut manifest", "other format", "other tokenizer", "flipped tokenizer", "older"],
)
def test_a_damaged_folder_does_not_open_and_is_not_reused(arguments, tmp_path, damage, kind, message):
    folder = prepare_corpus(arguments(), tmp_path / "corpus")
    damage(folder)
    with pytest.raises(kind, match=message):
        Corpus.open(folder)
    with pytest.raises(kind, match=message):
        prepare_corpus(arguments(), folder)


def test_a_flipped_bit_of_the_blocks_is_an_error_when_it_is_read(arguments, tmp_path):
    folder = prepare_corpus(arguments(), tmp_path / "corpus")
    file = folder / "train-1.bin"
    first = Corpus.open(folder).manifest["files"][0]["blocks"]
    for place in (0, 1, 777, file.stat().st_size - 1):
        flip(file, place, bit=place % 8)
        blocks = Corpus.open(folder).split("train")
        with pytest.raises(
            OSError, match=r"train-1\.bin is damaged: bytes 0 to [\d,]+ do not match .*prepare the corpus"
        ):
            blocks[first + place // (2 * LENGTH)]
        assert len(blocks[first - 1]) == LENGTH, "the other source is whole"
        flip(file, place, bit=place % 8)
    assert len(list(Corpus.open(folder).split("train"))) == len(blocks)


def test_a_flipped_bit_of_the_manifest_is_an_error_or_changes_nothing_but_the_name_of_its_checksum(arguments, tmp_path):
    folder = prepare_corpus(arguments(), tmp_path / "corpus")
    whole, size = read_manifest(folder), (folder / "corpus.json").stat().st_size
    names = set()
    for place in range(size):
        flip(folder / "corpus.json", place, bit=place % 8)
        with contextlib.suppress(ValueError):
            found = read_manifest(folder)
            renamed = found.keys() - whole.keys()
            assert len(renamed) == 1, f"byte {place} changed what is in it"
            assert {name: value for name, value in found.items() if name not in renamed} == whole
            names |= renamed
        flip(folder / "corpus.json", place, bit=place % 8)
    assert len(names) <= len("crc32")


def test_a_corpus_of_an_earlier_version_is_read_without_checks_which_is_said_once(arguments, tmp_path, caplog):
    folder = prepare_corpus(arguments(), tmp_path / "corpus")
    expected = list(Corpus.open(folder).split("train"))
    assert not caplog.messages
    forget_checksums(folder)
    for _ in range(2):
        assert np.array_equal(expected, list(Corpus.open(folder).split("train")))
    assert caplog.messages == [
        f"{folder} was prepared without checksums: damage to its blocks would not be noticed. Prepare it again to have them."
    ]


def test_text_too_short_for_a_block_is_an_error_that_names_the_remedy(arguments, tmp_path):
    with pytest.raises(ValueError, match=r"train of .*b.* do not fill one block of 50000; .*smaller max_seq_length"):
        prepare_corpus(arguments(dataset_name=f"{tmp_path}/b", max_seq_length=50_000), tmp_path / "corpus")
    (tmp_path / "blank.txt").write_text("\n \n\n")
    with pytest.raises(ValueError, match="0 rows with 0 tokens do not fill one block"):
        prepare_corpus(arguments(dataset_name=None, train_file=f"{tmp_path}/blank.txt"), tmp_path / "corpus")
    with pytest.raises(ValueError, match="the texts hold no word"):
        prepare_corpus(CorpusArguments(train_file=f"{tmp_path}/blank.txt"), tmp_path / "corpus")
    (tmp_path / "line.txt").write_text("hello world\n")
    with pytest.raises(ValueError, match=r"has 1 row of text .* too few to hold some out: give more text"):
        prepare_corpus(CorpusArguments(train_file=f"{tmp_path}/line.txt"), tmp_path / "corpus")


def test_the_first_rows_are_held_out_where_there_is_no_validation_split(documents, tmp_path, tokenizer_folder):
    Dataset.from_dict({"text": documents[:100]}).to_parquet(tmp_path / "all.parquet")

    def rows(name: str, **fields) -> dict[str, int]:
        fields |= {"train_file": str(tmp_path / "all.parquet"), "tokenizer_name": tokenizer_folder}
        corpus = Corpus.open(prepare_corpus(CorpusArguments(max_seq_length=LENGTH, **fields), tmp_path / name))
        return {record["split"]: record["rows"] for record in corpus.manifest["files"]}

    assert rows("tenth", validation_split_percentage=10) == {"train": 90, "validation": 10}
    corpus = Corpus.open(tmp_path / "tenth")
    for split, first_row in (("validation", 0), ("train", 10)):
        expected = corpus.tokenizer(documents[first_row], add_special_tokens=False).input_ids[: LENGTH - 2]
        assert corpus.split(split)[0][1:-1].tolist() == expected
    limits = {"max_train_samples": 30, "max_eval_samples": 7}
    assert rows("limited", validation_split_percentage=10, **limits) == {"train": 30, "validation": 7}
    assert rows("none", validation_split_percentage=0) == {"train": 100}
    with pytest.raises(ValueError, match="no validation split, only train"):
        Corpus.open(tmp_path / "none").split("validation")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "either dataset_name"),
        ({"dataset_name": "a", "train_file": "b"}, "either dataset_name"),
        ({"dataset_name": "a + b", "dataset_config_name": "c"}, "NAME:CONFIG"),
        ({"dataset_name": "synthetic", "max_seq_length": 2}, "at least 8"),
        (
            {"dataset_name": "synthetic", "validation_split_percentage": 100},
            "validation_split_percentage = 100: must be at least 0 and below 100",
        ),
        ({"dataset_name": "synthetic", "max_train_samples": 0}, "max_train_samples = 0: must be at least 1"),
        ({"dataset_name": "synthetic", "vocab_size": 40}, r"vocab_size 40 is too small .* at least \d+"),
        ({"train_file": "./nowhere.txt"}, "no file, folder or match"),
        ({"dataset_name": "synthetic", "tokenizer_name": "./no-tokenizer"}, "no tokenizer"),
    ],
)
def test_arguments_that_cannot_work_are_errors(tmp_path, fields, message):
    with pytest.raises((ValueError, OSError), match=message):
        prepare_corpus(CorpusArguments(**fields), tmp_path / "corpus")


# Streaming


def streamed(corpus: StreamingCorpus, seed: int, skip: int, count: int) -> list[list[int]]:
    return [block.tolist() for block in islice(corpus.blocks("train", seed=seed, skip=skip), count)]


def test_a_stream_resumed_twice_goes_on_exactly_where_it_was(arguments, tmp_path):
    corpus = StreamingCorpus.open(prepare_corpus(arguments(streaming=True), tmp_path / "corpus"))
    whole = streamed(corpus, seed=1, skip=0, count=2000)  # more than one pass over either source
    assert whole[:700] + streamed(corpus, 1, 700, 600) + streamed(corpus, 1, 1300, 700) == whole
    assert streamed(corpus, seed=2, skip=0, count=50) != whole[:50]
    with pytest.raises(ValueError, match="open it with StreamingCorpus"):
        corpus.split("train")
    assert len(corpus.split("validation")) > 0


def test_a_stream_gives_the_blocks_of_the_prepared_corpus_and_honours_weights(arguments, tmp_path):
    spec = f"{tmp_path}/a=1 + {tmp_path}/b=3"
    prepared = Corpus.open(prepare_corpus(arguments(dataset_name=spec), tmp_path / "prepared")).split("train")
    corpus = StreamingCorpus.open(prepare_corpus(arguments(dataset_name=spec, streaming=True), tmp_path / "streamed"))
    a, b = (source["blocks"] for source in prepared.sources)
    from_b = {tuple(prepared[i].tolist()) for i in range(a, a + b)}
    blocks = [tuple(block) for block in streamed(corpus, seed=0, skip=0, count=1000)]
    assert set(blocks) <= {tuple(block.tolist()) for block in prepared}
    assert 0.7 < sum(block in from_b for block in blocks) / 1000 < 0.8
    own = [block for block in blocks if block in from_b]
    assert set(own[:b]) == from_b  # one whole pass before any block comes again


def test_a_stream_without_validation_split_holds_out_its_first_rows_when_told_how_many(arguments, tmp_path):
    (tmp_path / "a/validation.txt").unlink()
    spec = f"{tmp_path}/a"
    with pytest.raises(ValueError, match="max_eval_samples"):
        prepare_corpus(arguments(dataset_name=spec, streaming=True), tmp_path / "corpus")
    folder = prepare_corpus(arguments(dataset_name=spec, streaming=True, max_eval_samples=10), tmp_path / "corpus")
    corpus = StreamingCorpus.open(folder)
    held_out = {tuple(block.tolist()) for block in corpus.split("validation")}
    assert corpus.manifest["files"][0]["rows"] == 10
    assert not held_out & {tuple(block) for block in streamed(corpus, seed=0, skip=0, count=1500)}


def test_a_streamed_folder_is_found_from_another_working_directory(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = prepare_corpus(arguments(dataset_name="a=1 + ./b=1", streaming=True), tmp_path / "corpus")
    monkeypatch.chdir("/")
    assert len(streamed(StreamingCorpus.open(folder), seed=0, skip=0, count=3)) == 3


@pytest.mark.skipif(not WIKIPEDIA.is_file(), reason="the real data are not here (S3BERT_DATA)")
def test_real_text_is_prepared_with_few_unknown_pieces(tmp_path):
    arguments = CorpusArguments(train_file=str(WIKIPEDIA), vocab_size=2000, max_seq_length=128)
    corpus = Corpus.open(prepare_corpus(arguments, tmp_path / "corpus"))
    assert corpus.vocab_size == 2000
    train, validation = corpus.manifest["files"]
    assert train["rows"] + validation["rows"] > 3200
    assert train["unknown_tokens"] < 1e-3 * train["tokens"]
    assert 5.5 < corpus.manifest["unigram_entropy"]["train"] < 7.5
    shutil.copytree(corpus.folder, tmp_path / "moved")
    assert len(Corpus.open(tmp_path / "moved").split("train")) == train["blocks"]
