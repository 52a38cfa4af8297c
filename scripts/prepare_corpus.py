"""`s3bert prepare-corpus` from a clone; see `s3bert.commands.prepare_corpus`."""

from s3bert.commands import run


if __name__ == "__main__":
    run("prepare-corpus")
