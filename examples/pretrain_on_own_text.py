"""Pretrains a small S3BERT on a text file or a folder of them, and fills a mask with it.

    python examples/pretrain_on_own_text.py --text my_text.txt --output_dir runs/mine

The recipe is `pretrain/small` at your number of steps: 4 layers of 256, 512 tokens. The same call goes on after a kill.
"""

import argparse

from transformers import pipeline

import s3bert  # noqa: F401  (registers S3BERT with Transformers)
from s3bert.commands import main as run_command


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", required=True, help="a text file, a folder or a glob")
    parser.add_argument("--output_dir", required=True, help="folder of the model")
    parser.add_argument("--vocab_size", default="8192", help="word pieces of the tokenizer trained on the text")
    parser.add_argument("--max_seq_length", default="128", help="tokens of a block")
    parser.add_argument("--max_train_steps", default="2000", help="optimiser steps")
    parser.add_argument("--prompt", default="the [MASK] is here .", help="a sentence with a [MASK]")
    arguments = parser.parse_args()

    words = ["--config", "pretrain/small", "--dataset_name", arguments.text, "--output_dir", arguments.output_dir]
    for name in ("vocab_size", "max_seq_length", "max_train_steps"):
        words += [f"--{name}", getattr(arguments, name)]
    run_command(["pretrain", *words, "--resume_from_checkpoint", "latest"])

    for guess in pipeline("fill-mask", arguments.output_dir)(arguments.prompt):
        print(f"{guess['score']:.1%}  {guess['token_str']}")


if __name__ == "__main__":
    main()
