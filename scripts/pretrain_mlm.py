"""`s3bert pretrain` from a clone; see `s3bert.commands.pretrain_mlm`."""

from s3bert.commands import run


if __name__ == "__main__":
    run("pretrain")
