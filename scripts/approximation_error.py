"""`s3bert approximation` from a clone; see `s3bert.commands.approximation_error`."""

from s3bert.commands import run


if __name__ == "__main__":
    run("approximation")
