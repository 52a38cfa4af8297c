"""Forecasts a CSV file: dates in the first column, numbers in the others. See `s3bert.commands.forecast`."""

from s3bert.arguments import run_as_script
from s3bert.commands.forecast import main


if __name__ == "__main__":
    run_as_script(main)
