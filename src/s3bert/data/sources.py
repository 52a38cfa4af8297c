"""Data sources: from a spec such as `Salesforce/wikitext:wikitext-103-raw-v1 + ./novels` to `datasets` splits.

A spec is PART (" + " PART)*, and PART = NAME[":" CONFIG]["=" WEIGHT]. NAME is a local file, glob or folder (CONFIG is
then a subfolder), the id of a Hugging Face Hub dataset, or `synthetic`. What exists on the disk comes before the Hub.
Nothing is ever replaced by something else: what cannot be read is an error that names the file or the way out.
"""

import glob
import gzip
import hashlib
import json
import os
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import datasets
from datasets import Dataset, DatasetDict, IterableDataset, IterableDatasetDict
from huggingface_hub.errors import HfHubHTTPError

from .synthetic import GENERATOR_VERSION, synthetic_corpus


# The names people know, which the Hub no longer answers to: script datasets died with datasets 4, bare names in 2026.
HUB_NAMES = {
    "wikitext": "Salesforce/wikitext",
    "glue": "nyu-mll/glue",
    "bookcorpus": "rojagtap/bookcorpus",
    "bookcorpus/bookcorpus": "rojagtap/bookcorpus",
}
# extension -> (builder of `datasets`, its options)
FORMATS: dict[str, tuple[str, dict]] = {
    "txt": ("text", {}),
    "jsonl": ("json", {}),
    "json": ("json", {}),
    "csv": ("csv", {}),
    "tsv": ("csv", {"sep": "\t"}),
    "parquet": ("parquet", {}),
}
SPLIT_FILE = re.compile(r"(train|validation|valid|dev|test)(?![A-Za-z])(.*)")
SHARD_NUMBER = re.compile(r"[-_.]?\d+(-of-\d+)?$")
READ_SIZE = 1 << 20  # bytes a read while looking for what is wrong with a file


COUNTED = "counted from 1, a header not among them"  # how rows are, in errors
_NO_ROWS = "there is not one row in it, a header aside; name a file that has some"


class NoTextColumnError(ValueError):
    """A split without a column of text that can be told from the others, or without rows."""


class RowWithoutTextError(ValueError):
    """A row whose text is missing or null."""


@dataclass(frozen=True)
class Source:
    """One part of a spec: what to read, which configuration of it, and its share of the mixture (None: unweighted)."""

    name: str
    config: str | None = None
    weight: float | None = None

    def __str__(self) -> str:
        config = f":{self.config}" if self.config else ""
        weight = f"={self.weight:g}" if self.weight is not None else ""
        return f"{self.name}{config}{weight}"

    @property
    def title(self) -> str:
        """What a reader elsewhere can make sense of: a Hub id, or the last part of a local path."""
        return Path(self.name).name if _looks_like_a_path(self.name) or _is_local(self.name) else str(self)


def parse_sources(spec: str) -> list[Source]:
    """Parts of `spec` in order; raises ValueError when a part or a weight is malformed or only some parts have one."""
    sources = [_parse_part(part.strip(), spec) for part in re.split(r"\s\+\s", spec)]
    weighted = [source for source in sources if source.weight is not None]
    if weighted and len(weighted) < len(sources):
        missing = next(source for source in sources if source.weight is None)
        raise ValueError(
            f"data source {spec!r}: {missing} has no weight; either all parts have one or none "
            f"(write NAME=WEIGHT for each, such as `{sources[0].name}=2 + {sources[-1].name}=1`)"
        )
    return sources


def _parse_part(part: str, spec: str) -> Source:
    if not part:
        raise ValueError(f"data source {spec!r} has an empty part; write NAME[:CONFIG][=WEIGHT] joined by ' + '")
    if _is_local(part):  # a path may itself hold ':' or '='
        return Source(part)
    name, weight = part, None
    if "=" in part:
        name, text = part.rsplit("=", 1)
        try:
            weight = float(text)
        except ValueError:
            raise ValueError(f"data source {part!r}: weight {text!r} is not a number (NAME=0.5)") from None
        if not 0 < weight < float("inf"):
            raise ValueError(f"data source {part!r}: weight {text} must be positive and finite")
    config = None
    if ":" in name and not _is_local(name):
        name, config = name.split(":", 1)
    if not name or config == "":
        raise ValueError(f"data source {part!r}: write NAME[:CONFIG][=WEIGHT]")
    if not _is_local(name):
        name = HUB_NAMES.get(name, name)
    return Source(name, config, weight)


def _is_local(name: str) -> bool:
    path = Path(name).expanduser()
    return path.exists() or bool(glob.glob(str(path)))


def _looks_like_a_path(name: str) -> bool:
    """Whether a name that does not exist was meant as a path; a Hub id is NAME or OWNER/NAME, without an extension."""
    return (
        name.startswith((".", "/", "~"))
        or name.count("/") > 1
        or any(c in name for c in "*?[")
        or _extension(name) in FORMATS
    )


def _extension(path: str | Path) -> str:
    return str(path).removesuffix(".gz").rpartition(".")[2].lower()


def local_files(source: Source) -> list[Path]:
    """Data files of a local source, sorted; [] when the source is not on the disk. Raises ValueError on other formats."""
    if source.name == "synthetic" or not _is_local(source.name):
        return []
    path = Path(source.name).expanduser()
    if source.config:
        if not (path / source.config).is_dir():
            raise FileNotFoundError(
                f"data source {source}: {path} has no subfolder {source.config!r}; {_subfolders(path)}"
            )
        path = path / source.config
    if path.is_dir():
        files = [file for file in path.iterdir() if file.is_file() and _extension(file) in FORMATS]
        files = [file for file in files if not file.name.startswith(".")]
        if not files:
            raise FileNotFoundError(
                f"data source {source}: {path} holds no data file (.{', .'.join(FORMATS)}, each also .gz); {_subfolders(path)}"
            )
        named = [file for file in files if SPLIT_FILE.match(file.name)]
        return sorted(named or files)
    files = sorted(Path(file) for file in ([path] if path.exists() else glob.glob(str(path))))
    for file in files:
        if file.is_dir() or _extension(file) not in FORMATS:
            raise ValueError(
                f"{file}: unknown kind of data file; known are .{', .'.join(FORMATS)}, each also gzip-compressed as .gz"
            )
    return files


def _subfolders(path: Path) -> str:
    names = sorted(child.name for child in path.iterdir() if child.is_dir()) if path.is_dir() else []
    return f"its subfolders are {', '.join(names)} (write {path}:{names[0]})" if names else "it has no subfolders"


def _split_name(file: Path) -> str:
    """`valid.txt` -> validation, `train-00.txt.gz` -> train, `validation_matched.jsonl` -> validation_matched."""
    stem = file.name.removesuffix(".gz").rpartition(".")[0] or file.name
    match = SPLIT_FILE.match(stem)
    if match is None:
        return "train"
    split = "validation" if match[1] in ("valid", "dev") else match[1]
    rest = re.sub(r"\W", "_", SHARD_NUMBER.sub("", match[2])).strip("_")
    return f"{split}_{rest}" if rest else split


def load_source(source: Source, streaming: bool = False) -> DatasetDict | IterableDatasetDict:
    """All splits of one source.

    Local files whose names start with train, validation (valid, dev) or test make the split of that name
    (`validation_matched.jsonl` its own); if none does, all are `train`. A line of a .txt file is a row, column `text`.

    Raises: FileNotFoundError (no such file, folder or Hub dataset), ConnectionError (Hub out of reach; both are OSError),
    OSError (unreadable, truncated), ValueError (unknown format, not UTF-8, empty split). With `streaming=True` what is
    inside the files is read later; pass the iteration through `clear_errors(source)` to get the same errors.
    """
    if source.name == "synthetic":
        if source.config:
            raise ValueError(f"data source {source}: `synthetic` has no configurations")
        splits = DatasetDict({split: synthetic_corpus(split) for split in ("train", "validation", "test")})
        return IterableDatasetDict({k: v.to_iterable_dataset() for k, v in splits.items()}) if streaming else splits
    files = local_files(source)
    if files:
        by_split: dict[str, list[Path]] = {}
        for file in files:
            by_split.setdefault(_split_name(file), []).append(file)
        return load_files(by_split, source, streaming)
    if _looks_like_a_path(source.name):
        raise FileNotFoundError(
            f"data source {source}: no file, folder or match of that pattern (seen from {Path.cwd()}). Name files or a folder "
            "that are there, or a dataset of the Hub, owner/name."
        )
    with clear_errors(source):
        splits = datasets.load_dataset(source.name, source.config, streaming=streaming)
    if not streaming:
        for split, dataset in splits.items():
            if len(dataset) == 0:
                raise ValueError(f"data source {source}: split {split!r} is empty")
    return splits


def load_files(
    files: dict[str, list[Path]], source: Source, streaming: bool = False
) -> DatasetDict | IterableDatasetDict:
    """Splits made of the given local files, whatever their names; errors as in `load_source`."""
    everything = [file for group in files.values() for file in group]
    formats = sorted({_extension(file) for file in everything}, key=list(FORMATS).index)
    if len({FORMATS[extension][0] + str(FORMATS[extension][1]) for extension in formats}) > 1:
        raise ValueError(
            f"data source {source} mixes .{' and .'.join(formats)} files; name one kind, such as {everything[0].parent}/*.{formats[0]}*"
        )
    for split, group in files.items():
        if all(_is_empty(file) for file in group):
            hold = "holds" if len(group) == 1 else "hold"
            raise ValueError(
                f"data source {source}: split {split!r} is empty, for {', '.join(map(str, group))} {hold} no bytes; name a file that has "
                "some"
            )
    builder, options = FORMATS[formats[0]]
    # an empty shard among full ones has no columns, which the readers take for a fault
    data_files = {
        split: [glob.escape(str(file.resolve())) for file in group if not _is_empty(file)]
        for split, group in files.items()
    }
    with clear_errors(source, everything):
        return datasets.load_dataset(builder, data_files=data_files, streaming=streaming, **options)


def _is_empty(file: Path) -> bool:
    if file.stat().st_size == 0:
        return True
    if file.suffix != ".gz":
        return False
    try:
        with gzip.open(file) as stream:
            return not stream.read(1)
    except (OSError, EOFError, zlib.error):
        return False  # damaged, which is for the reading to say


@contextmanager
def clear_errors(source: Source, files: list[Path] | None = None) -> Iterator[None]:
    """Turns what the readers of `datasets` raise inside the block into an error that names the file or the remedy."""
    try:
        yield
    except NoTextColumnError as error:
        raise NoTextColumnError(f"data source {source}: {error}") from None
    except RowWithoutTextError:
        raise
    except Exception as error:
        if isinstance(error, datasets.exceptions.DatasetNotFoundError):
            raise FileNotFoundError(
                f"data source {source}: neither a local file or folder (seen from {Path.cwd()}) nor a dataset you can "
                f"read on the Hugging Face Hub ({error})"
            ) from error
        files = files if files is not None else local_files(source)
        for file in files:
            _raise_what_is_wrong(file)
        if files and "corresponds to no data" in str(error):  # of `datasets`, on tables without rows
            raise ValueError(f"data source {source}: {_NO_ROWS}") from error
        if files:
            cause = " ".join(str(error.__cause__ or error).split())
            raise OSError(f"data source {source}: cannot read {', '.join(map(str, files[:3]))}: {cause}") from error
        if isinstance(error, (ConnectionError, TimeoutError, HfHubHTTPError)):
            raise ConnectionError(
                f"cannot reach the Hugging Face Hub for the dataset {source.name!r} ({error}). No file or folder has that name here; name a local copy "
                "instead: a folder with train.txt.gz and validation.txt.gz (or .jsonl, .csv, .parquet), or `synthetic`"
            ) from error
        if "script" in str(error) and isinstance(error, RuntimeError):
            raise ValueError(
                f"data source {source}: this Hub dataset is a loading script, which datasets 4 and later do not run; use a copy "
                "in parquet (for BooksCorpus `rojagtap/bookcorpus`) or local files"
            ) from error
        if "Config name is missing" in str(error):
            raise ValueError(f"data source {source}: {error}\nHere it is written {source.name}:CONFIG") from error
        raise


def _raise_what_is_wrong(file: Path) -> None:
    """Reads one local file to its end; raises naming the place of the first fault, returns when there is none."""
    opened = gzip.open if file.suffix == ".gz" else open
    text = _extension(file) != "parquet"
    position, line, rest = 0, 1, b""
    try:
        with opened(file, "rb") as stream:
            while chunk := stream.read(READ_SIZE):
                chunk = rest + chunk
                # cut at a line end (byte 10 is never inside a UTF-8 character), so that a chunk decodes by itself
                end = chunk.rfind(b"\n") + 1 if text else len(chunk)
                whole, rest = chunk[:end], chunk[end:]
                if text:
                    _check_lines(file, whole, position, line)
                position, line = position + len(whole), line + whole.count(b"\n")
            if rest:
                _check_lines(file, rest, position, line)
    except EOFError as error:
        raise OSError(
            f"{file}: truncated gzip file, the data end after {position + len(rest):,} unpacked bytes; copy it again"
        ) from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise OSError(
            f"{file}: not a valid gzip file ({error}); unpacked data are read from a name without .gz"
        ) from error
    except OSError as error:
        raise OSError(f"{file}: cannot be read ({error})") from error


def _check_lines(file: Path, data: bytes, position: int, line: int) -> None:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{file}: not UTF-8 at byte {position + error.start:,} (line {line + data.count(10, 0, error.start):,}, "
            f"{error.reason}); convert it, for example `iconv -f latin1 -t utf-8`"
        ) from error
    if _extension(file) != "jsonl":
        return
    for number, row in enumerate(text.split("\n"), line):
        if row.strip():
            try:
                json.loads(row)
            except json.JSONDecodeError as error:
                raise ValueError(
                    f"{file}: line {number:,} is not JSON ({error.msg}); is the file cut short?"
                ) from error


def text_column(dataset: Dataset | IterableDataset) -> str:
    """Name of the column to read: `text`, or else the only column of strings; NoTextColumnError listing the columns otherwise.

    One of nulls alone, as far as it is known, may be of strings.
    """
    if dataset.features is not None:
        columns = list(dataset.features)
        types = {name: getattr(feature, "dtype", None) for name, feature in dataset.features.items()}
        strings = [name for name in columns if types[name] in ("string", "large_string")]
        nulls = [name for name in columns if types[name] == "null"]
    else:  # streamed, the types are known only from the first row
        first = next(iter(dataset), None)
        if first is None:
            raise NoTextColumnError(_NO_ROWS)
        columns = list(first)
        strings = [name for name in columns if isinstance(first[name], str)]
        nulls = [name for name in columns if first[name] is None]
    if "text" in strings + nulls:
        return "text"
    if len(strings) == 1:
        return strings[0]
    raise NoTextColumnError(
        f"no column `text`, and {'none' if not strings else 'several'} of the columns {', '.join(columns)} hold strings"
        f"{' (' + ', '.join(strings) + ')' if strings else ''}; rename the one to read to `text`"
    )


def text_batches(source: Source, dataset: Dataset | IterableDataset, batch_size: int = 512) -> Iterator[list[str]]:
    """Texts of one split in order, in lists of up to `batch_size` rows, whatever its size on the disk.

    Raises RowWithoutTextError where one is missing or null, which '' is not.
    """
    with clear_errors(source):
        column, rows = text_column(dataset), 0
        for table in dataset.select_columns([column]).with_format("arrow").iter(batch_size=batch_size):
            texts = table.column(column).to_pylist()
            if None in texts:
                where = (
                    _row_without_text(source, column) or f"data source {source}, row {rows + texts.index(None) + 1:,}"
                )
                raise RowWithoutTextError(
                    f"{where} ({COUNTED}) has no text in column {column!r} (an empty cell, or NA and the like in a CSV): fill it in, or "
                    "take the row out."
                )
            yield texts
            rows += len(texts)


def _row_without_text(source: Source, column: str) -> str:
    """File and number of a local source's first row without a text; '' where no file is here."""
    for file in local_files(source):
        rows = load_files({"train": [file]}, source, streaming=True)["train"] if not _is_empty(file) else []
        for number, row in enumerate(rows, 1):
            if row.get(column) is None:
                return f"{file}, row {number:,}"
    return ""


def fingerprint(source: Source, known: dict[str, list] | None = None) -> str:
    """Changes when the data behind `source` do: the files' paths and contents, or the Hub revision.

    Args:
        known: size, time and checksum of files that were read before, by a hash of their paths. A file whose size and time are
            noted there is not read again; what is read is noted.
    """
    known = {} if known is None else known
    if source.name == "synthetic":
        facts: list = ["synthetic", GENERATOR_VERSION]
    elif files := local_files(source):
        facts = [[str(file.resolve()), _checksum(file, known)] for file in files]
    else:
        if _looks_like_a_path(source.name):
            load_source(source, streaming=True)  # raises
        with clear_errors(source):
            facts = [
                source.name,
                source.config,
                datasets.load_dataset_builder(source.name, source.config).hash,
            ]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def _checksum(file: Path, known: dict[str, list]) -> str:
    key = hashlib.sha256(os.fsencode(file.resolve())).hexdigest()[:16]
    status = file.stat()
    noted = [status.st_size, status.st_mtime_ns]
    if known.get(key, [])[:2] != noted:
        with open(file, "rb") as stream:
            known[key] = [*noted, hashlib.file_digest(stream, "sha256").hexdigest()]
    return known[key][2]
