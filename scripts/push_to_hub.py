"""`s3bert push` from a clone; see `s3bert.commands.push_to_hub`."""

from s3bert.commands import run


if __name__ == "__main__":
    run("push")
