"""Data sources: what a spec means, what is found on the disk, and that every fault is named, never papered over."""

import gzip
import os
from pathlib import Path

import datasets
import pytest
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st

from s3bert.data.sources import Source, clear_errors, fingerprint, load_source, parse_sources, text_batches, text_column


DATA = Path(os.environ.get("S3BERT_DATA", Path(__file__).parents[2] / "../shared/data"))


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))


def write(file: Path, content: bytes | str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    content = content.encode() if isinstance(content, str) else content
    file.write_bytes(gzip.compress(content) if file.suffix == ".gz" else content)
    return file


def rows(source: Source, split: str = "train", streaming: bool = False) -> list[str]:
    return [text for batch in text_batches(source, load_source(source, streaming)[split]) for text in batch]


names = st.from_regex(r"[A-Za-z][A-Za-z0-9_.-]{0,9}(/[A-Za-z][A-Za-z0-9_.-]{0,9})?", fullmatch=True).filter(
    lambda name: name not in ("glue", "wikitext", "bookcorpus")
)
configs = st.none() | st.from_regex(r"[a-z][a-z0-9-]{0,9}", fullmatch=True)
weights = st.integers(1, 999).map(lambda number: number / 8)


@given(st.lists(st.tuples(names, configs, weights), min_size=1, max_size=4), st.booleans())
def test_a_spec_written_from_sources_is_read_back_as_the_same_sources(parts, weighted):
    sources = [Source(name, config, weight if weighted else None) for name, config, weight in parts]
    assert parse_sources(" + ".join(map(str, sources))) == sources


def test_short_names_become_hub_ids_unless_they_exist_on_the_disk(tmp_path, monkeypatch):
    assert parse_sources("wikitext:wikitext-103-raw-v1 + bookcorpus") == [
        Source("Salesforce/wikitext", "wikitext-103-raw-v1"),
        Source("rojagtap/bookcorpus"),
    ]
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "wikitext" / "train.txt", "mine\n")
    assert parse_sources("wikitext=2 + glue=1") == [Source("wikitext", None, 2.0), Source("nyu-mll/glue", None, 1.0)]


def test_a_path_with_an_equals_sign_or_a_colon_is_a_path(tmp_path):
    folder = tmp_path / "year=2015"
    write(folder / "a:b.txt", "x\n")
    assert parse_sources(f"{folder}") == [Source(str(folder))]
    assert parse_sources(f"{folder}/a:b.txt=3") == [Source(f"{folder}/a:b.txt", None, 3.0)]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("a=1 + b", "b has no weight"),
        ("a=x", "weight 'x' is not a number"),
        ("a=0", "must be positive"),
        ("a=inf", "must be positive and finite"),
        ("a + ", "empty part"),
        ("", "empty part"),
        ("a:", "NAME"),
    ],
)
def test_a_malformed_spec_is_an_error_that_says_what_is_wrong(spec, message):
    with pytest.raises(ValueError, match=message):
        parse_sources(spec)


def test_file_names_decide_the_splits(tmp_path):
    for name in (
        "train-00.txt",
        "train-01.txt.gz",
        "dev.txt",
        "test_1.txt",
        "validation_matched.txt",
        "training_notes.txt",
    ):
        write(tmp_path / name, f"{name}\n")
    splits = load_source(Source(str(tmp_path)))
    assert {split: dataset["text"][:] for split, dataset in splits.items()} == {
        "train": ["train-00.txt", "train-01.txt.gz"],
        "validation": ["dev.txt"],
        "test": ["test_1.txt"],
        "validation_matched": ["validation_matched.txt"],
    }


def test_without_split_names_all_files_are_train_and_a_glob_picks_some(tmp_path):
    for name in ("b.txt", "a.txt", "notes.md"):
        write(tmp_path / name, f"{name}\n")
    assert rows(Source(str(tmp_path))) == ["a.txt", "b.txt"]
    assert rows(Source(f"{tmp_path}/b*.txt")) == ["b.txt"]


def test_a_folder_name_with_glob_characters_is_taken_literally(tmp_path):
    write(tmp_path / "my [old] *text*" / "a.txt", "here\n")
    assert rows(Source(str(tmp_path / "my [old] *text*"))) == ["here"]


@pytest.mark.parametrize("streaming", [False, True], ids=["loaded", "streamed"])
@pytest.mark.parametrize("packed", ["", ".gz"])
@pytest.mark.parametrize(
    ("extension", "content"),
    [
        ("txt", "one\n\nthrée\n"),
        ("jsonl", '{"text": "one", "n": 1}\n{"text": "", "n": 2}\n{"text": "thr\\u00e9e", "n": 3}\n'),
        ("json", '[{"text": "one"}, {"text": ""}, {"text": "thrée"}]'),
        ("csv", "n,text\n1,one\n2, \n3,thrée\n"),
        ("tsv", "n\tline\n1\tone\n2\t \n3\tthrée\n"),
    ],
)
def test_every_format_gives_the_same_rows(tmp_path, extension, content, packed, streaming):
    file = write(tmp_path / f"some.{extension}{packed}", content)
    assert [text.strip() for text in rows(Source(str(file)), streaming=streaming)] == ["one", "", "thrée"]


def test_parquet_is_read(tmp_path):
    Dataset.from_dict({"text": ["one", "", "three"], "n": [1, 2, 3]}).to_parquet(tmp_path / "train.parquet")
    assert rows(Source(str(tmp_path)), streaming=True) == ["one", "", "three"]


@pytest.mark.parametrize("streaming", [False, True], ids=["loaded", "streamed"])
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("b.jsonl", '{"text": "one", "n": 1}\n{"n": 2}\n'),
        ("b.jsonl", '{"text": "", "n": 1}\n{"text": null, "n": 2}\n'),
        ("b.csv", "n,text\n1,one\n2,\n"),
        ("b.tsv", "n\ttext\n1\tone\n2\tNA\n"),
    ],
)
def test_a_row_without_a_text_is_named_with_its_file(tmp_path, name, content, streaming):
    file = write(tmp_path / name, content)
    write(tmp_path / f"a{file.suffix}", "".join(content.splitlines(True)[:-1]))  # all but that row
    with pytest.raises(
        ValueError, match=r"/b\.\w+, row 2 \(counted from 1, .*\) has no text in column 'text' .*: fill"
    ):
        rows(Source(str(tmp_path)), streaming=streaming)


def test_a_first_row_without_a_text_and_one_of_parquet_are_named_too(tmp_path):
    first = write(tmp_path / "a.jsonl", '{"text": null, "n": "x"}\n{"text": "one", "n": "y"}\n')
    Dataset.from_dict({"text": ["one", None]}).to_parquet(tmp_path / "train.parquet")
    for file, row in ((first, 1), (tmp_path / "train.parquet", 2)):
        with pytest.raises(ValueError, match=f"{file.name}, row {row} "):
            rows(Source(str(file)), streaming=True)
    with pytest.raises(ValueError, match="data source Salesforce/wikitext, row 2 "):
        list(text_batches(Source("Salesforce/wikitext"), Dataset.from_dict({"text": ["one", None]})))


def test_a_subfolder_is_named_as_a_configuration(tmp_path):
    write(tmp_path / "cola" / "train.txt", "x\n")
    assert rows(parse_sources(f"{tmp_path}:cola")[0]) == ["x"]
    with pytest.raises(FileNotFoundError, match=r"no data file.*subfolders are cola"):
        load_source(Source(str(tmp_path)))
    with pytest.raises(FileNotFoundError, match="no subfolder 'sst2'"):
        load_source(Source(str(tmp_path), "sst2"))


def truncated(file: Path) -> Path:
    write(file, os.urandom(50_000).hex())
    file.write_bytes(file.read_bytes()[:20_000])
    return file


FAULTS = {
    "truncated gzip": (lambda d: truncated(d / "a.txt.gz"), OSError, r"a\.txt\.gz: truncated gzip"),
    "not gzip": (lambda d: write(d / "a.txt", "x").rename(d / "a.txt.gz"), OSError, r"a\.txt\.gz: not a valid gzip"),
    "latin-1 text": (
        lambda d: write(d / "a.txt", b"fine\n" * 1000 + b"d\xe9j\xe0 vu\n"),
        ValueError,
        r"a\.txt: not UTF-8 at byte 5,001 \(line 1,001",
    ),
    "latin-1 in a gzipped csv": (
        lambda d: write(d / "a.csv.gz", b"text\nok\n\xff\n"),
        ValueError,
        r"not UTF-8 at byte 8 \(line 3",
    ),
    "latin-1 jsonl": (
        lambda d: write(d / "a.jsonl", b'{"text": "\xff"}\n'),
        ValueError,
        r"not UTF-8 at byte 10 \(line 1",
    ),
    "cut jsonl": (
        lambda d: write(d / "a.jsonl", '{"text": "a"}\n{"text": "b'),
        ValueError,
        r"a\.jsonl: line 2 is not JSON",
    ),
    "ragged csv": (lambda d: write(d / "a.csv", "text,n\nx,1\ny,1,2,3\n"), OSError, r"a\.csv: .*line 3"),
    "not parquet": (lambda d: write(d / "a.parquet", "PAR1 no"), OSError, r"cannot read .*a\.parquet"),
    "empty file": (
        lambda d: write(d / "a.txt", ""),
        ValueError,
        r"split 'train' is empty, for .*a\.txt holds no bytes; name a file",
    ),
    "empty gzip": (lambda d: write(d / "a.jsonl.gz", ""), ValueError, "split 'train' is empty"),
    "a header alone": (
        lambda d: write(d / "a.csv", "text,n\n"),
        ValueError,
        "there is not one row in it, a header aside; name a file that has some",
    ),
    "mixed kinds": (lambda d: [write(d / n, "x") for n in ("a.txt", "b.csv")], ValueError, r"mixes \.txt and \.csv"),
    "a file of other columns": (
        lambda d: [write(d / "a.jsonl", '{"text": "a"}\n'), write(d / "b.jsonl", '{"text": "b", "n": 1}\n')],
        OSError,
        r"cannot read .*a\.jsonl.*column names don't match",
    ),
    "no text column": (
        lambda d: write(d / "a.csv", "q,a\nx,y\n"),
        ValueError,
        "several of the columns q, a hold strings",
    ),
}


@pytest.mark.parametrize("streaming", [False, True], ids=["loaded", "streamed"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_file_is_an_error_that_names_it_and_the_fault(tmp_path, fault, streaming):
    make, kind, message = FAULTS[fault]
    make(tmp_path)
    with pytest.raises(kind, match=message) as error:
        rows(Source(str(tmp_path)), streaming=streaming)
    assert "\n" not in str(error.value)


def test_a_fault_far_into_a_large_file_is_found_at_its_byte(tmp_path):
    line = ("é" * 50 + "\n").encode()
    write(tmp_path / "a.txt", line * 30_000 + b"\xff\n")  # 3 MB, several reads
    with pytest.raises(ValueError, match=r"byte 3,030,000 \(line 30,001"):
        rows(Source(str(tmp_path)), streaming=True)


def test_an_unreadable_file_is_named(tmp_path):
    file = write(tmp_path / "a.txt", "x\n")
    file.chmod(0)
    if os.access(file, os.R_OK):
        pytest.skip("this user reads everything")
    with pytest.raises(OSError, match=r"a\.txt"):
        rows(Source(str(tmp_path)))


@pytest.mark.parametrize("name", ["./missing", "/no/such/folder", "corpus.txt", "a/b/c", "*.jsonl.gz"])
def test_a_path_that_does_not_exist_is_not_taken_for_a_hub_id(name):
    for use in (load_source, fingerprint):
        with pytest.raises(FileNotFoundError, match="no file, folder or match"):
            use(Source(name))


@pytest.mark.parametrize("streaming", [False, True], ids=["loaded", "streamed"])
def test_an_unreachable_hub_is_an_error_that_names_the_local_way(streaming):
    with pytest.raises(ConnectionError, match=r"cannot reach the Hugging Face Hub .*'Salesforce/wikitext'.*local copy"):
        load_source(parse_sources("wikitext:wikitext-2-raw-v1")[0], streaming)
    with pytest.raises(ConnectionError, match="local copy"):
        fingerprint(Source("nyu-mll/glue", "cola"))


def test_an_error_of_ones_own_passes_unchanged():
    with pytest.raises(KeyError, match="mine"), clear_errors(Source("synthetic")):
        raise KeyError("mine")


def test_a_single_string_column_is_the_text_and_text_goes_before_others():
    assert text_column(Dataset.from_dict({"line": ["a"], "n": [1]})) == "line"
    assert text_column(Dataset.from_dict({"a": ["x"], "text": ["y"]})) == "text"
    with pytest.raises(ValueError, match="none of the columns n hold strings"):
        text_column(Dataset.from_dict({"n": [1]}))


def test_the_fingerprint_follows_content_and_place_of_the_files_and_not_their_time(tmp_path):
    file = write(tmp_path / "train.txt", "one\n")
    source = Source(str(tmp_path))
    before = fingerprint(source)
    assert fingerprint(Source(f"{tmp_path}/./")) == before
    os.utime(file, (1, 1))
    assert fingerprint(source) == before
    write(file, "two\n")
    changed = fingerprint(source)
    file.rename(tmp_path / "train2.txt")
    moved = fingerprint(source)
    write(tmp_path / "dev.txt", "two\n")
    assert len({before, changed, moved, fingerprint(source)}) == 4


def test_a_file_that_was_not_touched_is_not_read_again_for_its_fingerprint(tmp_path):
    file, known = write(tmp_path / "train.txt", "one\n"), {}
    before = fingerprint(Source(str(file)), known)
    assert fingerprint(Source(str(file)), known) == before == fingerprint(Source(str(file)))
    time = file.stat().st_mtime_ns
    for content, same in (("two\n", True), ("three\n", False)):  # of the same size and time: it was not looked into
        write(file, content)
        os.utime(file, ns=(time, time))
        assert (fingerprint(Source(str(file)), known) == before) is same


def test_a_file_replaced_by_another_is_read_anew(tmp_path):
    file = write(tmp_path / "train.txt.gz", "old\n")
    assert rows(Source(str(file))) == ["old"]
    write(file, "new\nlonger\n")
    assert rows(Source(str(file))) == ["new", "longer"]


@pytest.mark.skipif(not (DATA / "glue").is_dir(), reason="the real data are not here (S3BERT_DATA)")
def test_real_glue_and_text_load():
    cola = load_source(Source(str(DATA / "glue"), "cola"))
    assert {split: len(dataset) for split, dataset in cola.items()} == {"train": 8551, "validation": 1043}
    text = load_source(Source(str(DATA / "text/wikipedia-en-2015/validation.txt.gz")))
    assert len(text["validation"]) == 3338
