"""A warm start: a BERT-like checkpoint as an S3BERT, with its tokenizer and a record of what was taken, new and left out."""

import json
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from s3bert.arguments import override_config
from s3bert.data.arguments import CorpusArguments
from s3bert.data.corpus import Corpus, prepare_corpus
from s3bert.files import reading, table, write_text
from s3bert.models.conversion import (
    check_size,
    converted_config,
    fit_attention,
    measure_attention,
    start_near_identity,
    take_weights,
)
from s3bert.models.modeling_s3bert import S3BertForMaskedLM
from s3bert.tasks.mlm import Masking, MlmEvaluation
from s3bert.training.checkpoints import check_finite, check_own_folder
from s3bert.training.finetuning import weights_digest
from s3bert.training.pretrained import check_vocabulary


RECORD = "conversion.json"
_SEED = 0  # of what is new
# Blocks of text: to fit attention to, to measure it on, and of a batch.
_FITTED, _MEASURED, _BATCH = 64, 64, 8


def convert(
    name: str,
    folder: Path,
    tokenizer_name: str | None = None,
    config_overrides: str | None = None,
    dataset_name: str | None = None,
    max_seq_length: int | None = None,
) -> dict[str, Any]:
    """Writes the S3BERT, its tokenizer and `conversion.json` into a folder; returns the record, as the command's docstring says.

    Raises:
        ValueError: the checkpoint is of another architecture or size, or damaged; there is no tokenizer, or not the checkpoint's; the folder
            has a model; the text is of another vocabulary, or its blocks are too long.
    """
    check_own_folder(folder, RECORD)
    if (folder / RECORD).exists():
        raise ValueError(f"{folder} has a converted model: name another --output_dir, or remove it.")
    source, missing, unread = _source(name)
    tokenizer = _tokenizer(tokenizer_name or name, source)
    config = converted_config(source.config)
    override_config(config, config_overrides or "")
    check_size(config, source.config)
    set_seed(_SEED)
    model = S3BertForMaskedLM(config).eval()
    taken, new, left_out = take_weights(model, source, missing)
    start_near_identity(model)
    pooler = _pooler(name) if any("pooler.dense" in weight for weight in unread) else {}
    taken |= {weight: weight.removeprefix("s3bert.") for weight in pooler}
    left_out += [weight for weight in unread if "pooler.dense" not in weight]
    record: dict[str, Any] = {
        "checkpoint": name,
        "model_type": source.config.model_type,
        "weights": weights_digest(name, source.config),
        "taken": taken,
        "new": new,
        "left_out": left_out,
    }
    if dataset_name:
        length = max_seq_length or config.max_position_embeddings
        _check_length(name, length, config.max_position_embeddings)
        text = CorpusArguments(dataset_name, tokenizer_name=tokenizer_name or name, max_seq_length=length)
        corpus = Corpus.open(prepare_corpus(text, folder / "corpus"))
        record |= _fit(model, source, corpus, tokenizer, name)
    # The pooler is for classifiers; a masked LM has none.
    state = {
        weight: tensor for weight, tensor in model.state_dict().items() if weight not in model.all_tied_weights_keys
    }
    model.save_pretrained(folder, state_dict=state | pooler)
    tokenizer.save_pretrained(folder)
    write_text(folder / RECORD, json.dumps(record, indent=1) + "\n")
    return record


def in_words(record: dict[str, Any]) -> str:
    """What was taken, new and left out, and how near the model is to its source."""
    new = sorted({".".join(part for part in weight.split(".") if not part.isdigit()) for weight in record["new"]})
    lines = [
        f"Taken from {record['checkpoint']} ({record['model_type']}): {len(record['taken'])} tensors.",
        f"New: {len(record['new'])} tensors{': ' * bool(new)}{', '.join(new)}.",
        f"Left out: {', '.join(record['left_out']) or 'nothing'}.",
    ]
    if "layers" in record:
        rows = [
            [str(number), f"{layer['explained']:.2f}", f"{layer['correlation']:.2f}"]
            for number, layer in enumerate(record["layers"])
        ]
        lines += ["", "Attention beside the checkpoint's, on held-out text:", ""]
        lines += [table(["layer", "variance explained", "correlation"], rows), ""]
        before, after = (record["eval_loss"][which] for which in ("checkpoint", "converted"))
        lines.append(f"Held-out loss: {before:.3f} nats of the checkpoint, {after:.3f} converted.")
    return "\n".join(lines)


def _source(name: str) -> tuple[PreTrainedModel, set[str], set[str]]:
    """The checkpoint under a masked-LM head in float32; that head's weights which it has not, and its own which have no place there."""
    with reading(f"The checkpoint {name}"):
        config = AutoConfig.from_pretrained(name)
        try:
            converted_config(config)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
        model, found = AutoModelForMaskedLM.from_pretrained(name, dtype="float32", output_loading_info=True)
    missing = {*found["missing_keys"]}
    if absent := sorted(weight for weight in missing if weight.startswith(f"{model.base_model_prefix}.")):
        raise ValueError(
            f"The checkpoint {name} has no weights for {', '.join(absent[:3])}{' and others' * (len(absent) > 3)}: it is damaged, or not "
            f"of a {config.model_type}. Fetch it again, or name another one."
        )
    check_finite(model, name)
    return model.eval(), missing, {*found["unexpected_keys"]}


def _tokenizer(name: str, source: PreTrainedModel) -> PreTrainedTokenizerBase:
    remedy = "give --tokenizer_name the tokenizer that the checkpoint was trained with."
    try:
        with reading(f"The tokenizer {name}"):
            tokenizer = AutoTokenizer.from_pretrained(name)
    except (OSError, ImportError, ValueError) as error:
        raise ValueError(
            f"{name} has no tokenizer that can be read ({str(error).splitlines()[0]}): {remedy}"
        ) from error
    if len(tokenizer) <= len(tokenizer.all_special_ids):  # what Transformers makes of a missing vocabulary
        raise ValueError(f"{name} has no tokenizer: {remedy}")
    if len(tokenizer) > source.config.vocab_size:
        raise ValueError(
            f"The tokenizer {name} has {len(tokenizer):,} entries, the checkpoint {source.config.vocab_size:,}: {remedy}"
        )
    return tokenizer


def _pooler(name: str) -> dict[str, torch.Tensor]:
    model = AutoModel.from_pretrained(name, dtype="float32")
    check_finite(model, name)
    return {f"s3bert.pooler.{weight}": tensor for weight, tensor in model.pooler.state_dict().items()}


def _check_length(name: str, length: int, longest: int) -> None:
    if length > longest:
        raise ValueError(
            f"Text in sequences of {length} tokens is too long for {name}, which takes up to {longest}: give --max_seq_length {longest}, or "
            "a corpus that was prepared with it."
        )


def _fit(
    model: S3BertForMaskedLM, source: PreTrainedModel, corpus: Corpus, tokenizer: PreTrainedTokenizerBase, name: str
) -> dict[str, Any]:
    """Fits the attention on training blocks; how near it is, and both models' losses, on held-out ones."""
    remedy = f"prepare the corpus with --tokenizer_name {name}."
    check_vocabulary(name, tokenizer, corpus.tokenizer, f"the blocks of {corpus.folder}", remedy)
    _check_length(name, corpus.block_size, model.config.max_position_embeddings)
    blocks = corpus.split("train")
    tokens = torch.stack(
        [torch.from_numpy(blocks[i].astype("int64")) for i in range(0, len(blocks), -(-len(blocks) // _FITTED))]
    )
    fit_attention(model, source, tokens.split(_BATCH))
    masking = Masking.for_tokenizer(tokenizer)
    held_out = MlmEvaluation(corpus.split("validation"), masking, _BATCH, _MEASURED)
    accelerator = Accelerator(cpu=True)
    inputs = [batch["input_ids"] for batch in held_out.batches]
    return {
        "layers": [layer._asdict() for layer in measure_attention(model, source, inputs)],
        "eval_loss": {
            "checkpoint": held_out(source, accelerator)["loss"],
            "converted": held_out(model, accelerator)["loss"],
        },
    }
