"""`s3bert demo` from a clone; see `s3bert.commands.demo`."""

from s3bert.commands import run


if __name__ == "__main__":
    run("demo")
