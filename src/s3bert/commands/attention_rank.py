"""Measures the rank of a trained model's attention matrices without their band.

    s3bert pretrain-clm --config clm/wikitext-2-cpu --config_overrides bandwidth=null,kernels=[] --output_dir runs/softmax
    s3bert attention-rank --model_name_or_path runs/softmax --dataset_name runs/softmax/corpus --output_dir runs/attention-rank

The measurement of FMMformer's Figure 3 (Nguyen et al., NeurIPS 2021): how many singular values of an attention matrix are large once a
band of nearest tokens is taken away. The matrices are those of all heads and layers over sequences of held-out text, in a model with
softmax attention: an fmmformer with bandwidth = None, or one of Transformers, causal or not. The same is measured with the model's first
values, before any training. The output folder gets `all_results.json`, `results.md` and `ranks.png`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from s3bert.arguments import Arguments, option, parse_arguments
from s3bert.commands import run
from s3bert.data.arguments import CorpusArguments
from s3bert.files import reading


@dataclass
class RankArguments(Arguments):
    """Model, text, and what to measure."""

    output_dir: str = option(help="folder of the results")
    model_name_or_path: str = option(
        help="a model with softmax attention and its tokenizer, as a pretraining leaves it"
    )
    dataset_name: str = option(
        help="text, as in s3bert pretrain, or a folder that s3bert prepare-corpus or a pretraining made; its held-out part is read"
    )
    length: int = option(least=2, help="tokens of a sequence", default=256)
    bandwidths: list[int] = option(
        least=0,
        help="bands to take away, each a token itself and so many less one next to it, as `fmm`'s; 0 for none",
        default_factory=lambda: [0, 5, 10, 20],
    )
    thresholds: list[float] = option(
        least=0,
        below=1,
        help="what a singular value is above to count, in units of the whole matrix's largest",
        default_factory=lambda: [1e-6, 1e-2],
    )
    num_sequences: int = option(least=1, help="held-out sequences, whose heads and layers are all measured", default=8)
    seed: int = option(least=0, below=2**32, help="of the first values", default=0)

    def __post_init__(self):
        super().__post_init__()
        if max(self.bandwidths) >= self.length:
            raise ValueError(f"bandwidths = {self.bandwidths}: each must be below length = {self.length}.")


def main(argv: list[str] | None = None) -> dict[str, list[dict[str, Any]]]:
    """Runs the command; returns the ranks by weights."""
    (arguments,) = parse_arguments((RankArguments,), argv, __doc__)
    from s3bert.folder_lock import locked_folder

    with locked_folder(Path(arguments.output_dir)):
        return _measure(arguments)


def _measure(arguments: RankArguments) -> dict[str, list[dict[str, Any]]]:
    import torch
    from accelerate.utils import set_seed
    from transformers import AutoModel, AutoTokenizer

    from s3bert.analysis.attention_rank import attention_ranks
    from s3bert.data.corpus import Corpus, prepare_corpus
    from s3bert.experiments.held_out import held_out_sequences
    from s3bert.experiments.pretraining import corpus_name
    from s3bert.reports.attention_rank import plot_ranks, rank_tables
    from s3bert.reports.run_files import write_run

    folder, name = Path(arguments.output_dir), arguments.model_name_or_path
    with reading(f"The tokenizer {name}"):
        masked = AutoTokenizer.from_pretrained(name).mask_token is not None
    text = CorpusArguments(
        arguments.dataset_name, tokenizer_name=name, max_seq_length=arguments.length, add_special_tokens=masked
    )
    corpus = Corpus.open(prepare_corpus(text, folder / "corpus"))
    with reading(f"The model {name}"):
        model = AutoModel.from_pretrained(name, attn_implementation="eager", dtype="float64")
    input_ids = held_out_sequences(corpus, model.config, arguments.length, arguments.num_sequences)
    ranks = {}
    for weights in ("trained", "first values"):
        if weights == "first values":
            set_seed(arguments.seed)
            model = AutoModel.from_config(model.config, attn_implementation="eager", dtype=torch.float64)
        ranks[weights] = attention_ranks(model, input_ids, arguments.bandwidths, arguments.thresholds)
    config = model.config
    content = {
        "title": "rank of attention without its band",
        "description": f"Singular values of A - D above a share of A's largest. A: {len(ranks['trained'][0]['ranks']):,} softmax attention "
        f"matrices of {arguments.length} tokens, all heads and layers of {config.model_type} ({config.num_hidden_layers} layers, width "
        f"{config.hidden_size}) over {len(input_ids)} sequences of {corpus_name(corpus)}. D: A's band, where tokens are less than a "
        "bandwidth apart.",
        "model_type": config.model_type,
        "length": arguments.length,
        "ranks": ranks,
    }
    tables = "\n\n".join(rank_tables(content))
    plot_ranks(folder / "ranks.png", {content["title"]: content})
    write_run(folder, content, [content["description"], tables], arguments)
    print(f"{tables}\n\nTables, numbers and plot are in {folder}.")
    return ranks


if __name__ == "__main__":
    run("attention-rank")
