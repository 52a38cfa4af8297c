"""Measures what S3 makes of Long Range Arena's inputs: how much hangs on its landmark tokens, new or trained.

    s3bert analyse-lra --task_name image --data_dir path/to/lra --output_dir runs/analysis \\
        --mixer s3 s3:use_row_attention=false s3:num_row_samples=32
    s3bert analyse-lra --task_name image --data_dir path/to/lra --output_dir runs/analysis-trained \\
        --model_name_or_path runs/lra-image/s3/trials/lr0.001-batch32-steps500-seed1

For each mixer with its first values, at several seeds, and for each trained model: the share of the pooled vector's variance over inputs
that hangs on the tokens that row attention reads, and on as many others; what row attention is made of; the share of the Fourier branch in
the stem; effective ranks. `s3bert.analysis.variance_shares` has the definitions. A new model's norms get the statistics of the inputs. Inputs are
cut to one length, the median of the validation examples'. The output folder gets `all_results.json` and `results.md`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from s3bert.arguments import Arguments, close_match, named_settings, option, parse_arguments
from s3bert.commands import run
from s3bert.files import reading


@dataclass
class AnalysisArguments(Arguments):
    """Task and models."""

    task_name: str = option(help="listops, text, retrieval, image or pathfinder")
    output_dir: str = option(help="folder of the results")
    data_dir: str = option(help="folder that holds a folder of the task's name", default="data/lra")
    mixer: list[str] = option(
        help="S3 with first values, with settings after a colon, as in s3bert lra", default_factory=list
    )
    model_name_or_path: list[str] = option(
        help="folders of trained models: trials or checkpoints", default_factory=list
    )
    hidden_size: int = option(least=1, help="width of a new model", default=64)
    num_hidden_layers: int = option(least=1, help="layers of a new model", default=2)
    num_attention_heads: int = option(least=1, help="heads of a new model", default=2)
    max_seq_length: int | None = option(
        least=1, help="tokens that a new model takes; the task's length by default", default=None
    )
    zero_is_padding: bool = option(help="as the models were trained: black pixels have padding's id", default=True)
    num_inputs: int = option(least=2, help="validation examples to measure on", default=256)
    per_device_eval_batch_size: int = option(least=2, help="examples of a batch", default=64)
    seed: list[int] = option(least=0, below=2**32, help="of first values", default_factory=lambda: [1, 2, 3])

    def __post_init__(self):
        super().__post_init__()
        from s3bert.tasks.lra import LRA_TASKS  # not at the top: `--help` has no need of torch

        if self.task_name not in LRA_TASKS:
            raise ValueError(f"Unknown task {self.task_name!r}.{close_match(self.task_name, LRA_TASKS)}")
        if not self.mixer and not self.model_name_or_path:
            raise ValueError("Name what to measure: --mixer s3, or --model_name_or_path FOLDER of a trained model.")
        if wrong := [text for text in self.mixer if named_settings(text)[0] != "s3"]:
            raise ValueError(f"mixer = {wrong[0]}: only S3 has landmark tokens; give s3 with any settings.")


def main(argv: list[str] | None = None) -> dict[str, list[dict]]:
    """Runs the command; returns the measures by model, of each seed."""
    (arguments,) = parse_arguments((AnalysisArguments,), argv, __doc__)
    from s3bert.folder_lock import locked_folder

    with locked_folder(Path(arguments.output_dir)):
        return _analyse(arguments)


def _analyse(arguments: AnalysisArguments) -> dict[str, list[dict]]:
    import numpy as np
    from accelerate.utils import set_seed

    from s3bert.analysis.variance_shares import settle_statistics, variance_shares
    from s3bert.experiments.lra import build_config
    from s3bert.models.modeling_lra import LraForSequenceClassification
    from s3bert.reports.run_files import write_run
    from s3bert.reports.variance_shares import variance_tables
    from s3bert.tasks.lra import LRA_TASKS

    task = LRA_TASKS[arguments.task_name]
    longest, size = arguments.max_seq_length or task.max_length, arguments.per_device_eval_batch_size
    sizes = {name: getattr(arguments, name) for name in ("hidden_size", "num_hidden_layers", "num_attention_heads")}
    rest = (arguments.zero_is_padding, False, sizes)
    configs = {
        text: build_config(arguments.task_name, longest, *named_settings(text), *rest) for text in arguments.mixer
    }
    trained = {}
    for name in arguments.model_name_or_path:
        with reading(f"The model {name}"):
            trained[name], found = LraForSequenceClassification.from_pretrained(name, output_loading_info=True)
        if absent := sorted(found["missing_keys"]):
            raise ValueError(
                f"The model {name} has no weights for {', '.join(absent[:3])}{' and others' * (len(absent) > 3)}: name a folder that s3bert "
                "lra trained."
            )
    examples = task.read(Path(arguments.data_dir) / arguments.task_name, longest)["validation"]
    if not arguments.zero_is_padding:
        examples = examples.shifted()
    length = int(np.median(examples.lengths))
    # In random order, for some tasks' files are sorted.
    order = np.random.default_rng(0).permutation(np.flatnonzero(examples.lengths >= length))[: arguments.num_inputs]
    input_ids = examples.batch(order)["input_ids"].long()
    input_ids = input_ids.flatten(0, -2)[:, :length]
    results: dict[str, list[dict]] = {}
    for label, config in configs.items():
        results[label] = []
        for seed in arguments.seed:
            set_seed(seed)
            encoder = LraForSequenceClassification(config).encoder
            settle_statistics(encoder, input_ids[:size])
            results[label].append(variance_shares(encoder, input_ids, size))
    for label, model in trained.items():
        results[label] = [variance_shares(model.encoder, input_ids, size)]
    content: dict[str, Any] = {
        "title": f"{arguments.task_name}: shares of variance",
        "description": f"{len(input_ids)} validation inputs of {length:,} tokens; means and deviations over seeds.",
        "measures": results,
    }
    folder = Path(arguments.output_dir)
    tables = "\n\n".join(variance_tables(content))
    write_run(folder, content, [tables], arguments)
    print(f"{tables}\n\nTables and numbers are in {folder}.")
    return results


if __name__ == "__main__":
    run("analyse-lra")
