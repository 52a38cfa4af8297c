"""Trains any token mixer on a task of the Long Range Arena: S3, softmax, FMMformer, Skyformer, PoNet, ... See `s3bert.commands.run_lra`."""

from s3bert.arguments import run_as_script
from s3bert.commands.run_lra import main


if __name__ == "__main__":
    run_as_script(main)
