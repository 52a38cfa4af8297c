"""`s3bert benchmark` from a clone; see `s3bert.commands.benchmark`."""

from s3bert.commands import run


if __name__ == "__main__":
    run("benchmark")
