"""Speed and peak memory against length: S3BERT in each of its forms beside other encoders of the same size. See `s3bert.commands.benchmark`."""

from s3bert.arguments import run_as_script
from s3bert.commands.benchmark import main


if __name__ == "__main__":
    run_as_script(main)
