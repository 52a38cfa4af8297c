"""`s3bert compare-clm` from a clone; see `s3bert.commands.compare_clm`."""

from s3bert.commands import run


if __name__ == "__main__":
    run("compare-clm")
