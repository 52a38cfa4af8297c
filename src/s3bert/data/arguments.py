"""Which corpus: arguments of commands, which import nothing of `datasets`."""

from dataclasses import dataclass

from s3bert.arguments import Arguments, option


_VOCABULARIES = ("wordpiece", "words")


@dataclass
class CorpusArguments(Arguments):
    """Corpus: where the text comes from and how it is cut; the names are those of run_mlm.py."""

    dataset_name: str | None = option(
        free=True,
        one_of="text",
        help="text: Hub ids, local folders, files or globs, or `synthetic`, joined by ' + ', each NAME[:CONFIG][=WEIGHT]; or a "
        "folder that `s3bert prepare-corpus` made",
        default=None,
    )
    dataset_config_name: str | None = option(
        free=True, help="configuration of the dataset, as NAME:CONFIG in dataset_name", default=None
    )
    train_file: str | None = option(
        free=True, one_of="text", help="file or glob of training text, in place of dataset_name", default=None
    )
    validation_file: str | None = option(
        free=True, help="file or glob of held-out text, in place of the source's own", default=None
    )
    validation_split_percentage: int = option(
        free=True,
        least=0,
        below=100,
        help="share of the training rows held out, from the start, where a source has no validation split",
        default=5,
    )
    tokenizer_name: str | None = option(
        free=True,
        help="folder or Hub id of a tokenizer; by default that of the checkpoint which a pretraining goes on from, or else one is trained",
        default=None,
    )
    vocab_size: int = option(
        free=True, least=1, most=1_000_000, help="entries of the vocabulary to train", default=30522
    )
    vocabulary: str = option(
        free=True,
        help="what to train: wordpiece; or words, the most frequent ones between spaces as they are written, for causal models",
        default="wordpiece",
    )
    max_seq_length: int = option(free=True, least=8, help="tokens of a block, [CLS] and [SEP] included", default=512)
    add_special_tokens: bool = option(
        free=True,
        help="begin a block with [CLS] and end it with [SEP], as masked models read it; without them blocks are cuts of one text, as causal "
        "models read it",
        default=True,
    )
    max_train_samples: int | None = option(
        free=True, least=1, help="use only the first so many training rows of each source", default=None
    )
    max_eval_samples: int | None = option(
        free=True, least=1, help="use only the first so many held-out rows of each source", default=None
    )
    preprocessing_num_workers: int | None = option(
        free=True, least=1, most=1024, help="threads that tokenise; all cores by default", default=None
    )
    overwrite_cache: bool = option(
        free=True, help="prepare again, in place of a folder made from other inputs", default=False
    )
    streaming: bool = option(
        help="do not store training blocks but tokenise while training, for text larger than the disk; only the tokenizer and "
        "the held-out blocks are prepared",
        default=False,
    )

    def __post_init__(self):
        super().__post_init__()
        if self.vocabulary not in _VOCABULARIES:
            raise ValueError(f"vocabulary = {self.vocabulary}: give one of {', '.join(_VOCABULARIES)}.")
        if self.vocabulary == "words" and self.add_special_tokens:
            raise ValueError(
                "vocabulary = words has no [CLS], [SEP] and [MASK]: give add_special_tokens = false, for a causal model, or "
                "vocabulary = wordpiece."
            )


@dataclass
class CausalCorpusArguments(CorpusArguments):
    """Corpus: where the text comes from and how it is cut; the names are those of run_clm.py."""

    max_seq_length: int = option(free=True, least=8, help="tokens of a block", default=256)
    add_special_tokens: bool = option(
        free=True, help="as masked models read blocks; a causal one reads them without", default=False
    )
