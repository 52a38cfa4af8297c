"""`s3bert convert` from a clone; see `s3bert.commands.convert`."""

from s3bert.commands import run


if __name__ == "__main__":
    run("convert")
