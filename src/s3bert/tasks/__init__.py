"""Data and metrics of the tasks the scripts train on: no file here imports a model."""
