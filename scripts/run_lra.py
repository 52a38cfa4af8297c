"""`s3bert lra` from a clone; see `s3bert.commands.run_lra`."""

from s3bert.commands import run


if __name__ == "__main__":
    run("lra")
