"""Measures how close linear attentions come to softmax attention inside a trained BERT.

    s3bert pretrain --config pretrain/bert-wikitext-2 --output_dir runs/bert
    s3bert approximation --model_name_or_path runs/bert --dataset_name runs/bert/corpus --output_dir runs/approximation

The measurement of Skyformer's Figure 1 (Chen et al., NeurIPS 2021): how far the approximation of softmax attention's output is from the
output, in the spectral norm, against the approximation's size, with queries, keys and values that the model forms of held-out text. The
same is measured with the model's first values, before any training. The output folder gets `all_results.json`, `results.md` and `errors.png`.
"""

from dataclasses import dataclass
from pathlib import Path

from s3bert.arguments import Arguments, close_match, option, parse_arguments
from s3bert.commands import run
from s3bert.data.arguments import CorpusArguments
from s3bert.files import reading


@dataclass
class ErrorArguments(Arguments):
    """Model, text, and what to measure."""

    output_dir: str = option(help="folder of the results")
    model_name_or_path: str = option(help="a BERT with its tokenizer, as s3bert pretrain leaves it")
    dataset_name: str = option(
        help="text, as in s3bert pretrain, or a folder that s3bert prepare-corpus or a pretraining made; its held-out part is read"
    )
    approximations: list[str] = option(
        help="what to measure: skyformer, nystrom, performer, linformer, skeleton_rows (S3's row attention)",
        default_factory=lambda: ["skyformer", "nystrom", "performer", "linformer", "skeleton_rows"],
    )
    lengths: list[int] = option(least=2, help="tokens of a sequence", default_factory=lambda: [64, 128, 256])
    sizes: list[int] = option(
        least=2,
        help="landmarks, features or rows; even, and below the length",
        default_factory=lambda: [16, 32, 64, 128],
    )
    num_sequences: int = option(least=1, help="held-out sequences to measure on", default=8)
    seed: int = option(least=0, below=2**32, help="of the first values and of all that is drawn", default=0)

    def __post_init__(self):
        super().__post_init__()
        from s3bert.analysis.approximation import APPROXIMATIONS  # not at the top: `--help` has no need of torch

        for name in self.approximations:
            if name not in APPROXIMATIONS:
                raise ValueError(f"approximations: unknown {name!r}.{close_match(name, APPROXIMATIONS)}")
        if min(self.sizes) >= min(self.lengths):
            raise ValueError(
                f"sizes = {self.sizes}: none is below the length {min(self.lengths)}, where it would approximate."
            )
        if odd := [size for size in self.sizes if size % 2]:
            raise ValueError(f"sizes: {odd[0]} is odd; half of Skyformer's landmarks are queries. Give even numbers.")


def main(argv: list[str] | None = None) -> dict[str, dict[str, list[dict]]]:
    """Runs the command; returns the errors by weights and approximation."""
    (arguments,) = parse_arguments((ErrorArguments,), argv, __doc__)
    from s3bert.folder_lock import locked_folder

    with locked_folder(Path(arguments.output_dir)):
        return _measure(arguments)


def _measure(arguments: ErrorArguments) -> dict[str, dict[str, list[dict]]]:
    from accelerate.utils import set_seed
    from transformers import AutoModelForMaskedLM

    from s3bert.analysis.approximation import approximation_errors
    from s3bert.data.corpus import Corpus, prepare_corpus
    from s3bert.experiments.held_out import held_out_sequences
    from s3bert.experiments.pretraining import corpus_name
    from s3bert.reports.approximation import approximation_tables, plot_approximation
    from s3bert.reports.run_files import write_run

    folder, name, longest = Path(arguments.output_dir), arguments.model_name_or_path, max(arguments.lengths)
    text = CorpusArguments(arguments.dataset_name, tokenizer_name=name, max_seq_length=longest)
    corpus = Corpus.open(prepare_corpus(text, folder / "corpus"))
    with reading(f"The model {name}"):
        model = AutoModelForMaskedLM.from_pretrained(name, dtype="float32")
    input_ids = held_out_sequences(corpus, model.config, longest, arguments.num_sequences)
    errors = {}
    for weights in ("trained", "first values"):
        set_seed(arguments.seed)
        if weights == "first values":
            model = AutoModelForMaskedLM.from_config(model.config)
        errors[weights] = approximation_errors(
            model, input_ids, arguments.approximations, arguments.lengths, arguments.sizes
        )
    config = model.config
    content = {
        "title": "error of approximations",
        "description": f"|approximation - output| / |output| of softmax attention in the spectral norm, mean ± deviation over {len(input_ids)} sequences "
        f"of {corpus_name(corpus)}, {config.num_attention_heads} heads and {config.num_hidden_layers} layers of a BERT of width "
        f"{config.hidden_size}, by the approximation's size.",
        "errors": errors,
    }
    tables = "\n\n".join(approximation_tables(content))
    plot_approximation(folder / "errors.png", {content["title"]: content})
    write_run(folder, content, [content["description"], tables], arguments)
    print(f"{tables}\n\nTables, numbers and plot are in {folder}.")
    return errors


if __name__ == "__main__":
    run("approximation")
