"""Turns text into a corpus folder for pretrain_mlm.py: trains or takes a WordPiece tokenizer, tokenises, packs blocks.

    python scripts/prepare_corpus.py --dataset_name "Salesforce/wikitext:wikitext-103-raw-v1 + rojagtap/bookcorpus" \\
        --output_dir corpora/wiki-books
    python scripts/prepare_corpus.py --dataset_name path/to/text --vocab_size 8192 --max_seq_length 128 --output_dir corpora/small

The same call again reuses the folder.
"""

from dataclasses import dataclass
from pathlib import Path

from transformers.hf_argparser import HfArg

from s3bert.arguments import parse_arguments, run_as_script
from s3bert.data.corpus import Corpus, CorpusArguments, prepare_corpus


@dataclass
class OutputArguments:
    """Where the corpus goes."""

    output_dir: str = HfArg(help="folder of the prepared corpus")


def main(argv: list[str] | None = None) -> Path:
    """Prepares the corpus of the command line `argv`, prints what it holds, and returns its folder."""
    arguments, output = parse_arguments((CorpusArguments, OutputArguments), argv, description=__doc__)
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
    return folder


if __name__ == "__main__":
    run_as_script(main)
