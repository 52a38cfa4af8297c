"""`s3bert finetune` from a clone; see `s3bert.commands.run_finetuning`."""

from s3bert.commands import run


if __name__ == "__main__":
    run("finetune")
