"""Makes an S3BERT of a BERT-like checkpoint's weights, to go on training.

    s3bert convert --model_name_or_path runs/bert --output_dir runs/warm
    s3bert convert --model_name_or_path runs/bert --output_dir runs/warm --dataset_name corpora/mine \\
        --config_overrides num_row_samples=64
    s3bert pretrain --config pretrain/small --model_name_or_path runs/warm --dataset_name corpora/mine --output_dir runs/continued

Embeddings, projections, feed-forward, LayerNorms, pooler and masked-LM head are the checkpoint's: a BERT, RoBERTa, XLM-RoBERTa, CamemBERT or
DistilBERT, with its head or without. The smoother begins as an identity, which the projections' weights and biases are rewritten for. With
--dataset_name the norms of the attention are fitted to the checkpoint's attention on text; without it they keep their first values. The output
folder gets model, tokenizer and `conversion.json`: every weight that was taken, is new or was left out.
"""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from s3bert.arguments import Arguments, option, parse_arguments
from s3bert.commands import run


@dataclass
class ConvertArguments(Arguments):
    """Checkpoint, and what becomes of it."""

    model_name_or_path: str = option(help="checkpoint of a BERT, RoBERTa or DistilBERT: a folder or a Hub id")
    output_dir: str = option(help="folder of the S3BERT")
    tokenizer_name: str | None = option(help="its tokenizer, where the checkpoint has none", default=None)
    config_overrides: str | None = option(
        help="settings that the checkpoint does not decide, as `num_segments=4,num_row_samples=64,smoother_norm=layer`",
        default=None,
    )
    dataset_name: str | None = option(
        help="text to fit the attention on, as in s3bert pretrain, or a folder that s3bert prepare-corpus or a pretraining made",
        default=None,
    )
    max_seq_length: int | None = option(
        least=8, help="tokens of that text's sequences; all that the checkpoint takes by default", default=None
    )


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Runs the command; returns what `conversion.json` holds."""
    (arguments,) = parse_arguments((ConvertArguments,), argv, __doc__)
    from s3bert.folder_lock import locked_folder

    with locked_folder(Path(arguments.output_dir)):
        return _convert(arguments)


def _convert(arguments: ConvertArguments) -> dict[str, Any]:
    from s3bert.experiments.conversion import convert, in_words

    folder = Path(arguments.output_dir)
    record = convert(
        arguments.model_name_or_path,
        folder,
        arguments.tokenizer_name,
        arguments.config_overrides,
        arguments.dataset_name,
        arguments.max_seq_length,
    )
    print(in_words(record))
    text = ["--dataset_name", arguments.dataset_name] if arguments.dataset_name else []
    words = ["--config", "pretrain/small", "--model_name_or_path", str(folder), *text]
    print(f"\nNext: {shlex.join(['s3bert', 'pretrain', *words, '--output_dir', f'{folder}-continued'])}")
    return record


if __name__ == "__main__":
    run("convert")
