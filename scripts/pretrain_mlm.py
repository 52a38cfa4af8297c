"""Pretrains a masked language model: S3BERT, PoNet, BERT, FNet, or any other that Transformers has, from scratch or continued. See `s3bert.commands.pretrain_mlm`."""

from s3bert.arguments import run_as_script
from s3bert.commands.pretrain_mlm import main


if __name__ == "__main__":
    run_as_script(main)
