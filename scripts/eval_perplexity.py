"""`s3bert eval-perplexity` from a clone; see `s3bert.commands.eval_perplexity`."""

from s3bert.commands import run


if __name__ == "__main__":
    run("eval-perplexity")
