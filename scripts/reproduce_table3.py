"""`s3bert table3` from a clone; see `s3bert.commands.reproduce_table3`."""

from s3bert.commands import run


if __name__ == "__main__":
    run("table3")
