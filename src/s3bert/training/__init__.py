"""The training loop and what it needs: checkpoints, logs, grids of settings, jobs."""
