"""The whole way in a few minutes on a CPU: corpus, pretraining, finetuning, a filled mask, a table. See `s3bert.commands.demo`."""

from s3bert.arguments import run_as_script
from s3bert.commands.demo import main


if __name__ == "__main__":
    run_as_script(main)
