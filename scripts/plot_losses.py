"""Draws the losses of pretraining runs on one picture, training and held out, against optimiser steps. See `s3bert.commands.plot_losses`."""

from s3bert.arguments import run_as_script
from s3bert.commands.plot_losses import main


if __name__ == "__main__":
    run_as_script(main)
