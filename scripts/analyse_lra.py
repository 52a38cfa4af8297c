"""`s3bert analyse-lra` from a clone; see `s3bert.commands.analyse_lra`."""

from s3bert.commands import run


if __name__ == "__main__":
    run("analyse-lra")
