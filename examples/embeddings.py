"""Finds the lines of a text file that are nearest to a query, by embeddings: the mean over each sentence's tokens.

python examples/embeddings.py --model checkpoints/s3bert-small-en --file sentences.txt --query "a baker at the mill"
"""

import argparse
from pathlib import Path

from sentence_transformers import SentenceTransformer

import s3bert  # noqa: F401  (registers S3BERT with Transformers)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="checkpoint: a folder or a Hub id")
    parser.add_argument("--file", required=True, help="text file, a sentence per line")
    parser.add_argument("--query", required=True)
    parser.add_argument("--top", type=int, default=3, help="lines to show")
    arguments = parser.parse_args()

    lines = [line for line in Path(arguments.file).read_text(encoding="utf-8").splitlines() if line.strip()]
    model = SentenceTransformer(arguments.model)
    if hasattr(model[0].auto_model, "fold_filters"):  # S3BERT's: faster; the weights are final
        model[0].auto_model.fold_filters()
    similarities = model.similarity(model.encode([arguments.query]), model.encode(lines))[0]
    for similarity, index in zip(*similarities.topk(min(arguments.top, len(lines))), strict=True):
        print(f"{similarity:.3f}  {lines[index]}")


if __name__ == "__main__":
    main()
