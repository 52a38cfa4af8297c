"""Tokenizers of causal corpora: a vocabulary of words, and one of pieces that puts nothing around a text."""

from collections.abc import Iterable

from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast


END, UNKNOWN = "<eos>", "<unk>"  # as WikiText's files and the programs that read them write them
_INPUTS = ["input_ids", "attention_mask"]  # causal models know no segments


def train_words(batches: Iterable[list[str]], vocab_size: int) -> PreTrainedTokenizerFast:
    """The `vocab_size` most frequent of the words between spaces, as they are written, after <eos> and <unk>; the rest is <unk>.

    Ids ascend from frequent to rare, as an adaptive softmax wants them; words that are equally frequent are in the order of code points.

    Raises ValueError when `vocab_size` leaves no room for words, or the texts hold none.
    """
    special = [END, UNKNOWN]
    if vocab_size <= len(special):
        raise ValueError(f"vocab_size {vocab_size} leaves no room for words: give at least {len(special) + 1}")
    words = Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    # Two more than are needed: a text may have the special ones among its words.
    words.train_from_iterator(batches, trainers.WordLevelTrainer(vocab_size=vocab_size + 2, show_progress=False))
    found = words.get_vocab()
    ranked = special + [word for word in sorted(found, key=found.__getitem__) if word not in special]
    if len(ranked) == len(special):
        raise ValueError("cannot train a vocabulary: the texts hold no word")
    words.model = models.WordLevel({word: i for i, word in enumerate(ranked[:vocab_size])}, unk_token=UNKNOWN)
    return PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token=UNKNOWN, eos_token=END, pad_token=END, model_input_names=_INPUTS
    )


def causal_tokenizer(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """A tokenizer whose texts end with its end token; one that has [SEP] alone, as BERT's, gets that as its end, and puts no [CLS] and
    [SEP] around a text."""
    if tokenizer.eos_token_id is not None:
        return tokenizer
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.post_processor = None
    names = {f"{kind}_token": getattr(tokenizer, f"{kind}_token") for kind in ("unk", "pad")}
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token=tokenizer.sep_token, model_input_names=_INPUTS, **names
    )


def counts_every_row(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether an empty row is an end too: word-level perplexities, as WikiText's, count every line's."""
    return isinstance(tokenizer.backend_tokenizer.model, models.WordLevel)
