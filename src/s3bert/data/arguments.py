"""Which corpus: arguments of commands, which import nothing of `datasets`."""

from dataclasses import dataclass

from s3bert.arguments import option


@dataclass
class CorpusArguments:
    """Corpus: where the text comes from and how it is cut; the names are those of run_mlm.py."""

    dataset_name: str | None = option(
        help="text: Hub ids, local folders, files or globs, or `synthetic`, joined by ' + ', each NAME[:CONFIG][=WEIGHT]; or a "
        "folder that `s3bert prepare-corpus` made",
        default=None,
    )
    dataset_config_name: str | None = option(
        help="configuration of the dataset, as NAME:CONFIG in dataset_name", default=None
    )
    train_file: str | None = option(help="file or glob of training text, in place of dataset_name", default=None)
    validation_file: str | None = option(
        help="file or glob of held-out text, in place of the source's own", default=None
    )
    validation_split_percentage: int = option(
        help="share of the training rows held out, from the start, where a source has no validation split",
        default=5,
    )
    tokenizer_name: str | None = option(help="folder or Hub id of a tokenizer; by default one is trained", default=None)
    vocab_size: int = option(help="pieces of the uncased WordPiece tokenizer to train", default=30522)
    max_seq_length: int = option(help="tokens of a block, [CLS] and [SEP] included", default=512)
    max_train_samples: int | None = option(help="use only the first so many training rows of each source", default=None)
    max_eval_samples: int | None = option(help="use only the first so many held-out rows of each source", default=None)
    preprocessing_num_workers: int | None = option(help="threads that tokenise; all cores by default", default=None)
    overwrite_cache: bool = option(help="prepare again, in place of a folder made from other inputs", default=False)
    streaming: bool = option(
        help="do not store training blocks but tokenise while training, for text larger than the disk; only the tokenizer and "
        "the held-out blocks are prepared",
        default=False,
    )

    def __post_init__(self) -> None:
        if self.max_seq_length < 8:
            raise ValueError(
                f"max_seq_length {self.max_seq_length} must be at least 8 ([CLS] and [SEP] are part of it)"
            )
        if not 0 <= self.validation_split_percentage < 100:
            raise ValueError(f"validation_split_percentage {self.validation_split_percentage} must be in 0..99")
        for name in ("max_train_samples", "max_eval_samples", "preprocessing_num_workers"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)} must be at least 1")
