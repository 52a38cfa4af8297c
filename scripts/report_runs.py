"""Makes one page of several runs: an overview of all tasks or series, then each run's own table and pictures. See `s3bert.commands.report_runs`."""

from s3bert.arguments import run_as_script
from s3bert.commands.report_runs import main


if __name__ == "__main__":
    run_as_script(main)
