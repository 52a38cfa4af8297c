"""`s3bert attention-rank` from a clone; see `s3bert.commands.attention_rank`."""

from s3bert.commands import run


if __name__ == "__main__":
    run("attention-rank")
