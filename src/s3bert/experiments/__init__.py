"""Where a model meets a task: what the commands run, one module an experiment."""
