"""Turns text into a corpus folder: tokenizer, tokens, packed blocks.

    s3bert prepare-corpus --dataset_name "Salesforce/wikitext:wikitext-103-raw-v1 + rojagtap/bookcorpus" \\
        --output_dir corpora/wiki-books
    s3bert prepare-corpus --dataset_name path/to/text --vocab_size 8192 --max_seq_length 128 --output_dir corpora/small

A WordPiece tokenizer is trained on the text, or taken. The same call again reuses the folder.
"""

from dataclasses import dataclass
from pathlib import Path

from s3bert.arguments import Arguments, option, parse_arguments
from s3bert.commands import run
from s3bert.data.arguments import CorpusArguments


@dataclass
class OutputArguments(Arguments):
    """Output: where the corpus goes."""

    output_dir: str = option(help="folder of the prepared corpus")


def main(argv: list[str] | None = None) -> Path:
    """Prepares the corpus of the command line `argv`, prints what it holds, and returns its folder."""
    arguments, output = parse_arguments((CorpusArguments, OutputArguments), argv, description=__doc__)
    from s3bert.data.corpus import Corpus, prepare_corpus

    folder = prepare_corpus(arguments, Path(output.output_dir))
    corpus = Corpus.open(folder)
    print(f"{folder}: {corpus.vocab_size:,} pieces, blocks of {corpus.block_size}")
    for record in corpus.manifest["files"]:
        share = "" if record["weight"] is None else f", weight {record['weight']:g}"
        print(
            f"  {record['split']} of {record['source']}: {record['rows']:,} rows, {record['tokens']:,} tokens, "
            f"{record['blocks']:,} blocks, {record['bytes'] / 1e6:.1f} MB{share}"
        )
    for split, entropy in corpus.manifest["unigram_entropy"].items():
        print(f"  unigram entropy of {split}: {entropy:.3f} nats")
    print(f"Next: s3bert pretrain --config pretrain/small --dataset_name {folder} --output_dir runs/small")
    return folder


if __name__ == "__main__":
    run("prepare-corpus")
