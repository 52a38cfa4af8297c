"""`s3bert export` from a clone; see `s3bert.commands.export`."""

from s3bert.commands import run


if __name__ == "__main__":
    run("export")
