"""How close linear attentions come to the matrix they stand for: spectral-norm error against sketch size and length. See `s3bert.commands.approximation_error`."""

from s3bert.arguments import run_as_script
from s3bert.commands.approximation_error import main


if __name__ == "__main__":
    run_as_script(main)
