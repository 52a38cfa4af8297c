"""`s3bert prepare-lra` from a clone; see `s3bert.commands.prepare_lra`."""

from s3bert.commands import run


if __name__ == "__main__":
    run("prepare-lra")
