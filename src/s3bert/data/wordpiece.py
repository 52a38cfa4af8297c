"""Tokenizers of a corpus: training an uncased WordPiece, opening one that exists, and turning texts into ids in bulk."""

import hashlib
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

import numpy as np
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer, BertTokenizer, PreTrainedTokenizerBase

from s3bert.files import reading

from .causal_tokenizers import causal_tokenizer, counts_every_row


# More text changes hardly a piece of the vocabulary, and costs time and memory in proportion.
SAMPLE_CHARACTERS = 64_000_000
CALL_CHARACTERS = 1 << 20  # tokenised at once: an encoding takes some hundred bytes per token
STRETCH_CHARACTERS = 1 << 16  # of a longer text: threads share them out
_BEFORE_A_WORD = re.compile(r"[\s\u2e80-\u9fff]")
LONGEST_WORD = 100  # characters, BERT's; the tokenizer gives [UNK] for a longer one
SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_STRANGE = "\u2603"  # a vocabulary without [UNK] is found out by it
# Each character kept costs up to two pieces (alone and ##continuing); words with any other become [UNK].
ALPHABET_SHARE = 32  # one character for so many pieces, as in BERT's own vocabulary, within
SMALLEST_ALPHABET, LARGEST_ALPHABET = 128, 1000


def spread_sample(
    batches: Iterable[list[str]], characters: int = SAMPLE_CHARACTERS, stop_when_full: bool = False
) -> list[str]:
    """Texts spread evenly over all of `batches`, at most about `characters` long together, in one pass; long ones in stretches.

    Every `stride`-th text or stretch is kept; whenever they outgrow the limit, every other one is let go and the stride doubles.
    With `stop_when_full` the first texts up to the limit are taken and the rest, which may not end, is not read.
    """
    kept: list[str] = []
    size, stride = 0, 1
    for number, text in enumerate(stretch for batch in batches for row in batch if row for stretch in _stretches(row)):
        if number % stride == 0:
            kept.append(text)
            size += len(text)
            if stop_when_full and size > characters:
                break
            while size > characters and len(kept) > 1:
                kept, stride = kept[::2], 2 * stride
                size = sum(map(len, kept))
    return kept


def train_wordpiece(texts: list[str], vocab_size: int) -> BertTokenizer:
    """An uncased WordPiece tokenizer of at most `vocab_size` pieces; the same texts give the same vocabulary.

    Raises ValueError when `vocab_size` leaves no room for pieces, or the texts hold no word.
    """
    normalizer, splitter = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    limit = min(LARGEST_ALPHABET, max(SMALLEST_ALPHABET, vocab_size // ALPHABET_SHARE))
    alphabet = _frequent_characters(texts, normalizer, splitter, limit)
    # The trainer numbers ##characters in the order of a hash map, differently each time, and breaks ties by number.
    # Named beforehand, as if they were special tokens, they keep one order and the vocabulary is reproducible.
    continuations = [f"##{one}" for one in alphabet if len(splitter.pre_tokenize_str("a" + one)) == 1]
    if not alphabet:
        raise ValueError("cannot train a tokenizer: the texts hold no word")
    fewest = len(SPECIAL_TOKENS + alphabet + continuations)
    if vocab_size < fewest:
        raise ValueError(f"vocab_size {vocab_size} is too small for the characters of this text: at least {fewest}")
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        show_progress=False,
        special_tokens=SPECIAL_TOKENS + alphabet + continuations,
        limit_alphabet=len(alphabet),
        initial_alphabet=alphabet,
    )
    trained = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    # A word that is never looked up is worth no piece, and one of a million characters would take minutes.
    without_long_words = pre_tokenizers.Split(Regex(rf"\S{{{LONGEST_WORD + 1},}}"), "removed")
    trained.normalizer, trained.pre_tokenizer = normalizer, pre_tokenizers.Sequence([splitter, without_long_words])
    trained.train_from_iterator(texts, trainer)
    return BertTokenizer(vocab=trained.get_vocab(with_added_tokens=True), do_lower_case=True)


def _frequent_characters(texts: list[str], normalizer, splitter, limit: int) -> list[str]:
    """The `limit` most frequent characters after normalisation, spaces aside, in code point order."""
    counts = np.zeros(0x110000, dtype=np.int64)
    for text in texts:
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
        found, times = np.unique(codes, return_counts=True)
        counts[found] += times
    normalised: dict[str, int] = {}
    for code in np.flatnonzero(counts):
        if not 0xD800 <= code < 0xE000:
            for character in normalizer.normalize_str(chr(code)):
                normalised[character] = normalised.get(character, 0) + int(counts[code])
    visible = [one for one in normalised if splitter.pre_tokenize_str(one)]
    return sorted(sorted(visible, key=lambda one: (-normalised[one], one))[:limit])


def load_tokenizer(name: str, causal: bool = False) -> PreTrainedTokenizerBase:
    """A fast tokenizer from a folder (vocab.txt alone will do) or the Hub, with the tokens that blocks need: [CLS], [SEP], [MASK] and
    [PAD], or where they are `causal` one that ends a text.

    Raises FileNotFoundError, ConnectionError or ValueError naming what is missing.
    """
    folder = Path(name).expanduser()
    if folder.is_file():
        raise ValueError(f"tokenizer {name!r} is a file; name the folder that holds it")
    try:
        with reading(f"tokenizer {name!r}"):
            if (folder / "vocab.txt").is_file() and not (folder / "tokenizer_config.json").is_file():
                tokenizer = BertTokenizer.from_pretrained(folder)
            elif folder.is_dir() and not any(folder.glob("tokenizer*.json")):
                raise FileNotFoundError(f"{folder} holds no tokenizer: neither vocab.txt nor tokenizer.json")
            else:
                tokenizer = AutoTokenizer.from_pretrained(str(folder) if folder.is_dir() else name)
            tokenizer(_STRANGE)
    except OSError as error:
        if folder.is_dir():
            raise
        raise ConnectionError(
            f"no tokenizer {name!r}: there is no such folder (seen from {Path.cwd()}), and the Hugging Face Hub has none "
            f"or is out of reach ({str(error).splitlines()[0]}). Name a folder that holds one; s3bert prepare-corpus trains one where "
            "tokenizer_name is left out"
        ) from error
    if not tokenizer.is_fast:
        raise ValueError(
            f"tokenizer {name!r} is not a fast one (of the tokenizers library); save it with tokenizer.json"
        )
    if causal:
        if tokenizer.eos_token_id is None and tokenizer.sep_token_id is None:
            raise ValueError(f"tokenizer {name!r} has neither an eos nor a sep token, with which a text would end")
        return causal_tokenizer(tokenizer)
    for kind in ("cls", "sep", "mask", "pad"):
        number = getattr(tokenizer, f"{kind}_token_id")
        if number is None or not 0 <= number < len(tokenizer):
            raise ValueError(f"tokenizer {name!r} has no {kind} token, which masked-language-model blocks need")
    return tokenizer


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """Changes when the tokenizer would give other ids."""
    return hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest()[:16]


def plain_backend(tokenizer: PreTrainedTokenizerBase) -> Tokenizer:
    """A copy of its backend that reads whole texts, and special tokens written in them as plain text: they cannot counterfeit a border."""
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.encode_special_tokens = True
    backend.no_truncation()
    backend.no_padding()
    return backend


def encode_rows(
    batches: Iterable[list[str]], tokenizer: PreTrainedTokenizerBase, dtype: np.dtype, separator: int
) -> Iterator[tuple[np.ndarray, int]]:
    """For batches of texts: the ids of some rows in one array, the separator's after each, and how many rows had any; an empty row has none,
    but for words, where it has the separator alone."""
    backend = plain_backend(tokenizer)
    every_row = counts_every_row(tokenizer)
    begun = False  # whether the row that is read has ids in earlier portions
    for portion in _portions(batches):
        encodings = backend.encode_batch_fast([stretch for stretch, _ in portion], add_special_tokens=False)
        parts, rows = [], 0
        for encoding, (_, ends_row) in zip(encodings, portion, strict=True):
            ids = encoding.ids
            parts.append(ids)
            begun = begun or bool(ids)
            if ends_row:
                if begun or every_row:
                    parts.append([separator])
                    rows += begun
                begun = False
        yield np.fromiter(chain.from_iterable(parts), dtype=dtype), rows


def _portions(batches: Iterable[list[str]]) -> Iterator[list[tuple[str, bool]]]:
    """The same texts in stretches, each with whether it ends its text, in lists of bounded length."""
    portion: list[tuple[str, bool]] = []
    size = 0
    for text in chain.from_iterable(batches):
        left = len(text)
        for stretch in _stretches(text):
            if portion and size + len(stretch) > CALL_CHARACTERS:
                yield portion
                portion, size = [], 0
            left -= len(stretch)
            portion.append((stretch, left == 0))
            size += len(stretch)
    if portion:
        yield portion


def _stretches(text: str) -> Iterator[str]:
    """A text cut into stretches of about `STRETCH_CHARACTERS`, only before spaces and ideographs: words stay whole."""
    start = 0
    while cut := _BEFORE_A_WORD.search(text, start + STRETCH_CHARACTERS):
        yield text[start : cut.start()]
        start = cut.start()
    yield text[start:]


def block_frame(tokenizer: PreTrainedTokenizerBase, special_tokens: bool) -> tuple[list[int], list[int], int]:
    """The ids that begin a block, those that end it, and the one that ends a row."""
    if special_tokens:
        return [tokenizer.cls_token_id], [tokenizer.sep_token_id], tokenizer.sep_token_id
    return [], [], tokenizer.eos_token_id


def pack(
    tokens: Iterable[np.ndarray], block_size: int, first: list[int] | None = None, last: list[int] | None = None
) -> Iterator[np.ndarray]:
    """Cuts a stream of ids into blocks of exactly `block_size`, yielded as arrays (blocks, block_size).

    Each begins with the ids `first` and ends with `last`, [CLS] and [SEP] or none. What does not fill the last block is dropped.
    """
    first, last = first or [], last or []
    start, stop = len(first), block_size - len(last)
    content = stop - start
    rest = np.empty(0, dtype=np.int64)
    for ids in tokens:
        ids = np.concatenate([rest.astype(ids.dtype), ids])
        count = len(ids) // content
        blocks = np.empty((count, block_size), dtype=ids.dtype)  # (blocks, S)
        blocks[:, :start], blocks[:, stop:] = first, last
        blocks[:, start:stop] = ids[: count * content].reshape(count, content)
        rest = ids[count * content :]
        if count:
            yield blocks
