"""`s3bert copy-task` from a clone; see `s3bert.commands.run_copy_task`."""

from s3bert.commands import run


if __name__ == "__main__":
    run("copy-task")
