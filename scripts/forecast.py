"""`s3bert forecast` from a clone; see `s3bert.commands.forecast`."""

from s3bert.commands import run


if __name__ == "__main__":
    run("forecast")
