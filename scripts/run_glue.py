"""Finetunes a checkpoint on GLUE: one task, several, or all of the paper's Table 3, over a grid of settings and seeds. See `s3bert.commands.run_glue`."""

from s3bert.arguments import run_as_script
from s3bert.commands.run_glue import main


if __name__ == "__main__":
    run_as_script(main)
