"""Tokenizers of a corpus: training an uncased WordPiece, opening one that exists, and turning texts into ids in bulk."""

import hashlib
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer, BertTokenizer, PreTrainedTokenizerBase


# More text changes hardly a piece of the vocabulary, and costs time and memory in proportion.
SAMPLE_CHARACTERS = 64_000_000
CALL_CHARACTERS = 1 << 20  # tokenised at once: an encoding takes some hundred bytes per token
SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
# Each character kept costs up to two pieces (alone and ##continuing); words with any other become [UNK].
ALPHABET_SHARE = 32  # one character for so many pieces, as in BERT's own vocabulary, within
SMALLEST_ALPHABET, LARGEST_ALPHABET = 128, 1000


def spread_sample(
    batches: Iterable[list[str]], characters: int = SAMPLE_CHARACTERS, stop_when_full: bool = False
) -> list[str]:
    """Texts spread evenly over all of `batches`, at most about `characters` long together, in one pass.

    Every `stride`-th text is kept; whenever they outgrow the limit, every other one is let go and the stride doubles.
    With `stop_when_full` the first texts up to the limit are taken and the rest, which may not end, is not read.
    """
    kept: list[str] = []
    size, stride = 0, 1
    for number, text in enumerate(text for batch in batches for text in batch if text):
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
    trained.normalizer, trained.pre_tokenizer = normalizer, splitter
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


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """A fast tokenizer with [CLS], [SEP], [MASK] and [PAD] from a folder (vocab.txt alone will do) or the Hub.

    Raises FileNotFoundError, ConnectionError or ValueError naming what is missing.
    """
    folder = Path(name).expanduser()
    if folder.is_file():
        raise ValueError(f"tokenizer {name!r} is a file; name the folder that holds it")
    try:
        if (folder / "vocab.txt").is_file() and not (folder / "tokenizer_config.json").is_file():
            tokenizer = BertTokenizer.from_pretrained(folder)
        elif folder.is_dir() and not any(folder.glob("tokenizer*.json")):
            raise FileNotFoundError(f"{folder} holds no tokenizer: neither vocab.txt nor tokenizer.json")
        else:
            tokenizer = AutoTokenizer.from_pretrained(str(folder) if folder.is_dir() else name)
    except OSError as error:
        if folder.is_dir():
            raise
        raise ConnectionError(
            f"no tokenizer {name!r}: there is no such folder (seen from {Path.cwd()}), and the Hugging Face Hub has none "
            f"or is out of reach ({str(error).splitlines()[0]}). Leave tokenizer_name out to train one on the corpus"
        ) from error
    if not tokenizer.is_fast:
        raise ValueError(
            f"tokenizer {name!r} is not a fast one (of the tokenizers library); save it with tokenizer.json"
        )
    for kind in ("cls", "sep", "mask", "pad"):
        number = getattr(tokenizer, f"{kind}_token_id")
        if number is None or not 0 <= number < len(tokenizer):
            raise ValueError(f"tokenizer {name!r} has no {kind} token, which masked-language-model blocks need")
    return tokenizer


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """Changes when the tokenizer would give other ids."""
    return hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest()[:16]


def encode_rows(
    batches: Iterable[list[str]], tokenizer: PreTrainedTokenizerBase, dtype: np.dtype
) -> Iterator[tuple[np.ndarray, int]]:
    """For batches of texts: the ids of some rows in one array, a separator after each, and how many rows had any."""
    # a copy, in which "[SEP]" written in a text is plain text and cannot counterfeit a border
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.encode_special_tokens = True
    backend.no_truncation()
    backend.no_padding()
    separator = [tokenizer.sep_token_id]
    for texts in _portions(batches):
        encodings = backend.encode_batch_fast(texts, add_special_tokens=False)
        rows = [row for row in (encoding.ids for encoding in encodings) if row]
        yield np.fromiter(chain.from_iterable(row + separator for row in rows), dtype=dtype), len(rows)


def _portions(batches: Iterable[list[str]]) -> Iterator[list[str]]:
    """The same texts in lists of bounded length, however long a batch of whole books may be."""
    portion: list[str] = []
    size = 0
    for text in chain.from_iterable(batches):
        if portion and size + len(text) > CALL_CHARACTERS:
            yield portion
            portion, size = [], 0
        portion.append(text)
        size += len(text)
    if portion:
        yield portion


def pack(tokens: Iterable[np.ndarray], tokenizer: PreTrainedTokenizerBase, block_size: int) -> Iterator[np.ndarray]:
    """Cuts a stream of ids into blocks [CLS] ids [SEP] of exactly `block_size`, yielded as arrays (blocks, block_size).

    What does not fill the last block is dropped.
    """
    content = block_size - 2
    rest = np.empty(0, dtype=np.int64)
    for ids in tokens:
        ids = np.concatenate([rest.astype(ids.dtype), ids])
        count = len(ids) // content
        blocks = np.empty((count, block_size), dtype=ids.dtype)  # (blocks, S)
        blocks[:, 0], blocks[:, -1] = tokenizer.cls_token_id, tokenizer.sep_token_id
        blocks[:, 1:-1] = ids[: count * content].reshape(count, content)
        rest = ids[count * content :]
        if count:
            yield blocks
