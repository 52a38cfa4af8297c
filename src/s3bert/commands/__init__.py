"""One module a command, each with a `main(argv)`; `scripts/` holds wrappers of the same names."""
