"""Turns text into a corpus folder for pretrain_mlm.py: trains or takes a WordPiece tokenizer, tokenises, packs blocks. See `s3bert.commands.prepare_corpus`."""

from s3bert.arguments import run_as_script
from s3bert.commands.prepare_corpus import main


if __name__ == "__main__":
    run_as_script(main)
