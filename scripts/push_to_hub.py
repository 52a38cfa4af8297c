"""Publishes the folder of a finished run, with its model card, on the Hub. See `s3bert.commands.push_to_hub`."""

from s3bert.arguments import run_as_script
from s3bert.commands.push_to_hub import main


if __name__ == "__main__":
    run_as_script(main)
