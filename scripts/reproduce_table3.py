"""Repeats the paper's Table 3 under one budget: BERT, FNet, PoNet and S3BERT pretrained alike, then finetuned on GLUE alike. See `s3bert.commands.reproduce_table3`."""

from s3bert.arguments import run_as_script
from s3bert.commands.reproduce_table3 import main


if __name__ == "__main__":
    run_as_script(main)
