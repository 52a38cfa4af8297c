"""Tables, plots and model cards, made of results files."""
