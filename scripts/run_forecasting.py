"""`s3bert forecasting` from a clone; see `s3bert.commands.run_forecasting`."""

from s3bert.commands import run


if __name__ == "__main__":
    run("forecasting")
