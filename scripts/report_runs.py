"""`s3bert report` from a clone; see `s3bert.commands.report_runs`."""

from s3bert.commands import run


if __name__ == "__main__":
    run("report")
