"""Teaches causal mixers to copy a word: softmax, linear attention, FMMformer with any band and kernels (its Figures 4 and 5). See `s3bert.commands.run_copy_task`."""

from s3bert.arguments import run_as_script
from s3bert.commands.run_copy_task import main


if __name__ == "__main__":
    run_as_script(main)
