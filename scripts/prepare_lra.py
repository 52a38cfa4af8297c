"""Makes the data of the Long Range Arena tasks that are generated: ListOps and Pathfinder. See `s3bert.commands.prepare_lra`."""

from s3bert.arguments import run_as_script
from s3bert.commands.prepare_lra import main


if __name__ == "__main__":
    run_as_script(main)
