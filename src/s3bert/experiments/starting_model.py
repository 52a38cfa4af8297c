"""The model that a pretraining begins with, checked against what was asked for and the corpus it will read."""

import logging
from pathlib import Path

from transformers import CONFIG_MAPPING, AutoConfig, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.activations import ACT2FN

import s3bert  # noqa: F401  (registers its models with the auto classes)
from s3bert.arguments import close_match, find_recipe, override_config
from s3bert.data.corpus import Corpus
from s3bert.data.streaming import StreamingCorpus
from s3bert.files import reading
from s3bert.models.configuration_checks import CheckedConfig
from s3bert.models.sparse_baselines import SPARSE_BASELINES
from s3bert.training.checkpoints import check_finite
from s3bert.training.finetuning import longest_input
from s3bert.training.pretrained import check_model_type, check_no_decoder, check_vocabulary, own_tokenizer

from .arguments import ModelArguments
from .longer_positions import lengthen, lengthening
from .objectives import CAUSAL, MASKED, Objective


logger = logging.getLogger(__name__)


def _file_or_name(config_name: str) -> Path | str:
    """The recipe of that name where no such file or folder is there; else the name, of a folder or on the Hub."""
    try:
        return config_name if Path(config_name).exists() else find_recipe(config_name, ".json")
    except FileNotFoundError:
        return config_name


def read_config(objective: Objective, arguments: ModelArguments) -> PreTrainedConfig:
    """The configuration that the arguments name, with its overrides, of a model that can be trained for the objective.

    Raises:
        ValueError: not exactly one source of a model; one of another kind; an override that the configuration does not have, or a value
            that cannot be.
    """
    sources = {name: getattr(arguments, name) for name in ("model_name_or_path", "config_name", "model_type")}
    given = [f"{name} = {source}" for name, source in sources.items() if source is not None]
    if len(given) != 1:
        raise ValueError(
            f"Give exactly one of {', '.join('--' + name for name in sources)}; there is {' and '.join(given) or 'none'}."
        )
    start, model_type = arguments.model_name_or_path, arguments.model_type
    if model_type is not None:
        source: Path | str = f"--model_type {model_type}"
        try:
            config = AutoConfig.for_model(model_type)
        except ValueError as error:
            raise ValueError(f"Unknown {source}.{close_match(model_type, CONFIG_MAPPING.keys())}") from error
    else:
        source = start or _file_or_name(str(arguments.config_name))
        with reading(f"The configuration {source}"):
            config = AutoConfig.from_pretrained(source, trust_remote_code=arguments.trust_remote_code)
    if objective is MASKED:
        check_no_decoder(source, config)
    kind = "causal language model" if objective is CAUSAL else "masked language model"
    check_model_type(str(source), config, objective.auto_class, kind, arguments.trust_remote_code)
    if arguments.config_overrides:
        override_config(config, arguments.config_overrides)
    if start is None or arguments.config_overrides:
        _check_values(config)
    return config


def build_model(
    objective: Objective,
    config: PreTrainedConfig,
    tokenizer: PreTrainedTokenizerBase,
    block_size: int,
    arguments: ModelArguments,
    whole: bool = False,
) -> PreTrainedModel:
    """The model to train, from a checkpoint or new, checked against the corpus it will read. A checkpoint of fewer positions than the
    corpus's blocks have is lengthened.

    Args:
        config: what `read_config` gave for the arguments; a new model's takes the corpus's vocabulary. tokenizer, block_size: the
            corpus's. whole: whether a checkpoint must have the objective's head; a new one is drawn otherwise.

    Raises:
        ValueError: as `fit_config`; a checkpoint that is damaged or lacks weights, whose vocabulary does not fit the corpus, or which has too few
            positions and cannot be lengthened.
    """
    remote = {"trust_remote_code": arguments.trust_remote_code}
    start = arguments.model_name_or_path
    if start is None:
        fit_config(objective, config, tokenizer, block_size)
        if objective is MASKED and config.model_type in SPARSE_BASELINES:
            return SPARSE_BASELINES[config.model_type](config)
        return objective.auto_class.from_config(config, **remote)
    auto_class = objective.auto_class
    if objective is MASKED:
        auto_class = SPARSE_BASELINES.get(config.model_type, auto_class)
    how = {"output_loading_info": True, "ignore_mismatched_sizes": True}
    with reading(f"The checkpoint {start}"):
        model, found = auto_class.from_pretrained(start, config=config, dtype="float32", **how, **remote)
    absent = {name for name in found["missing_keys"] if whole or name.startswith(f"{model.base_model_prefix}.")}
    if absent := sorted(absent | {name for name, *_ in found["mismatched_keys"]}):
        settings = f" with {arguments.config_overrides}" if arguments.config_overrides else ""
        raise ValueError(
            f"{start}{settings} has no weights of their shape for {', '.join(absent[:3])}{' and others' * (len(absent) > 3)}, which would "
            f"stay random: name a checkpoint with its head for {objective.name}, or leave out overrides that change weights."
        )
    check_finite(model, start)
    remedy = f"prepare the corpus with --tokenizer_name {start}, or name another checkpoint."
    if config.vocab_size < len(tokenizer):
        raise ValueError(
            f"The corpus's tokenizer has {len(tokenizer)} entries, {start} knows {config.vocab_size}: {remedy}"
        )
    if (own := own_tokenizer(start, **remote)) is not None:
        check_vocabulary(start, own, tokenizer, "the corpus", remedy)
    if longer := lengthening(start, longest_input(config), block_size):
        logger.info("%s", longer)
        lengthen(model, block_size)
    return model


def load_teacher(
    arguments: ModelArguments, config: PreTrainedConfig, corpus: Corpus | StreamingCorpus, vocab_size: int
) -> PreTrainedModel:
    """The masked LM to distil from, for a student of `vocab_size` on a corpus; `arguments` name its checkpoint, `config` is what
    `read_config` gave for them.

    Raises:
        ValueError: as `build_model`; it was made for shorter sequences; its tokenizer is not the corpus's, or its logits are more or
            fewer than the student's.
    """
    name = arguments.model_name_or_path
    if corpus.block_size > (longest := longest_input(config)):
        raise ValueError(
            f"The corpus has blocks of {corpus.block_size} tokens, the teacher {name} takes up to {longest}: pretrain it further on this "
            "corpus first, or prepare the corpus with a shorter --max_seq_length."
        )
    teacher = build_model(MASKED, config, corpus.tokenizer, corpus.block_size, arguments, whole=True)
    if own_tokenizer(name, arguments.trust_remote_code) is None:
        raise ValueError(
            f"The teacher {name} has no tokenizer, so whether its vocabulary is the corpus's is not known: put the one that it was trained "
            "with into its folder, or name another teacher."
        )
    if teacher.config.vocab_size != vocab_size:
        raise ValueError(
            f"The teacher {name} has {teacher.config.vocab_size:,} logits, the model {vocab_size:,}: name a teacher of as many."
        )
    return teacher


def fit_config(
    objective: Objective, config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase, block_size: int
) -> None:
    """Gives a new model's configuration the vocabulary and the special tokens of a corpus.

    Args:
        tokenizer, block_size: the corpus's.

    Raises:
        ValueError: the corpus's blocks are longer than what such a model takes; its padding token is none of the vocabulary.
    """
    _take_token_ids(config, tokenizer, objective)
    vocab_size = len(tokenizer)
    if config.vocab_size != vocab_size:
        logger.info("The model gets the tokenizer's vocabulary: %d entries, not %d.", vocab_size, config.vocab_size)
        config.vocab_size = vocab_size
    if block_size > (longest := longest_input(config)):
        positions = config.max_position_embeddings + block_size - longest
        raise ValueError(
            f"The corpus has blocks of {block_size} tokens, the model takes up to {longest}: "
            f"set --config_overrides max_position_embeddings={positions}, or prepare the corpus with a shorter "
            "--max_seq_length."
        )
    CheckedConfig.validate_padding(config)


def _take_token_ids(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase, objective: Objective) -> None:
    """The special tokens of a new model are its tokenizer's."""
    names = ["cls_token_id", "sep_token_id"]  # PoNet's segments, for one, lie between them
    if objective is CAUSAL:
        names = ["eos_token_id"]
        config.bos_token_id = tokenizer.eos_token_id  # a text begins where another ends
        padded = tokenizer.pad_token_id != tokenizer.eos_token_id  # else the end would have no embedding
        config.pad_token_id = tokenizer.pad_token_id if padded else None
    for name in names:
        if hasattr(config, name):
            setattr(config, name, getattr(tokenizer, name))


def _check_values(config: PreTrainedConfig) -> None:
    """What our own configurations check themselves, of one of Transformers' own too.

    Raises:
        ValueError: a count below 1, a scale or an activation that is none.
    """
    counts = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "type_vocab_size")
    CheckedConfig.check_counts(config, *(name for name in counts if isinstance(getattr(config, name, None), int)))
    CheckedConfig.validate_scales(config)
    activation = getattr(config, "hidden_act", None)
    if isinstance(activation, str) and activation not in ACT2FN:
        raise ValueError(f"hidden_act = {activation!r}: give one of {', '.join(sorted(ACT2FN))}.")
