"""`s3bert pretrain-clm` from a clone; see `s3bert.commands.pretrain_clm`."""

from s3bert.commands import run


if __name__ == "__main__":
    run("pretrain-clm")
