"""`s3bert glue` from a clone; see `s3bert.commands.run_glue`."""

from s3bert.commands import run


if __name__ == "__main__":
    run("glue")
