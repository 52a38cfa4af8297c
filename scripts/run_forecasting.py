"""Trains forecasters on a series of the long-term forecasting benchmark: S3, PatchTST, DLinear, and naive forecasts. See `s3bert.commands.run_forecasting`."""

from s3bert.arguments import run_as_script
from s3bert.commands.run_forecasting import main


if __name__ == "__main__":
    run_as_script(main)
