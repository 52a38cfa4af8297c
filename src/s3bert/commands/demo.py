"""Goes the whole way in a few minutes: corpus, pretraining, finetuning.

    s3bert demo --output_dir runs/demo                         # synthetic text, no files needed
    s3bert demo --output_dir runs/demo --data path/to/data     # real text and a real GLUE task

A data folder holds `text/`, with text files or folders of them, and `glue/sst2/` as JSON lines. It ends with a filled mask and a table; it is `make demo`.
"""

import json
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from s3bert.arguments import Arguments, option, parse_arguments
from s3bert.commands import pretrain_mlm, run, run_glue
from s3bert.files import table


@dataclass
class DemoArguments(Arguments):
    """Data, and where the demo goes."""

    output_dir: str = option(help="folder of the demo; a second call goes on or starts from what is there")
    data: str = option(help="`synthetic`, or a folder with text/ and glue/sst2/", default="synthetic")


def main(argv: list[str] | None = None) -> None:
    """Runs the demo and prints its table."""
    (arguments,) = parse_arguments((DemoArguments,), argv, __doc__)
    from transformers import pipeline

    from s3bert.tasks.glue import load_task

    output_dir, started = Path(arguments.output_dir) / Path(arguments.data).name, time.time()
    if arguments.data == "synthetic":
        text, rows, task, glue = "synthetic", [], "synthetic_acceptability", "synthetic"
        sentences = [
            "george is an actor at the square . anna is his friend from the gallery . he praises [MASK] mask .",
            "helen is a baker at the mill . the singers near the tower [MASK] the bread every week .",
        ]
    else:
        folder = Path(arguments.data)
        sources = sorted(path for path in (folder / "text").glob("*") if not path.name.startswith("."))
        if not sources:
            raise FileNotFoundError(
                f"{folder / 'text'} holds no text: put files or folders of text there, or use synthetic."
            )
        text, rows = " + ".join(map(str, sources)), ["--max_train_samples", "20000"]
        task, glue = "sst2", str(folder / "glue")
        sentences = ["the capital of france is [MASK] .", "he opened the [MASK] and went out ."]

    pretrained, finetuned = output_dir / "pretrained", output_dir / "finetuned"
    where = ["--config", "demo/pretrain"]
    how = ["--dataset_name", text, *rows, "--resume_from_checkpoint", "latest"]
    pretraining = pretrain_mlm.main([*where, *how, "--output_dir", str(pretrained)])
    where = ["--config", "demo/glue", "--model_name_or_path", str(pretrained)]
    how = ["--task_name", task, "--dataset_name", glue]
    finetuning = run_glue.main([*where, *how, "--output_dir", str(finetuned)])

    fill = pipeline("fill-mask", model=str(pretrained))
    print("\nfill-mask")
    for sentence in sentences:
        guesses = ", ".join(f"{guess['token_str']} ({guess['score']:.0%})" for guess in fill(sentence, top_k=4))
        print(f"  {sentence}  ->  {guesses}")
    unigram = json.loads((pretrained / "all_results.json").read_text())["unigram_entropy"]
    labels = load_task(task, glue)["validation"]["label"]
    majority = max(Counter(labels).values()) / len(labels)
    without_skill = {"accuracy": majority, "matthews_correlation": 0.0}[finetuning["score_is"]]
    rows = [
        ["masked-LM loss on held-out text, nats", f"{pretraining.metrics['loss']:.3f}", f"{unigram:.3f}"],
        ["masked-LM accuracy", f"{pretraining.metrics['accuracy']:.1%}", ""],
        [f"{task}, {finetuning['score_is']}", f"{finetuning['score_mean']:.3f}", f"{without_skill:.3f}"],
    ]
    print("\n" + table(["what", "measured", "knowing nothing but frequencies"], rows))
    print(f"\n{time.time() - started:.0f} seconds; models, logs and curves are in {output_dir}")


if __name__ == "__main__":
    run("demo")
