"""Compares kinds of causal attention as language models (FMMformer's Table 2).

    s3bert compare-clm --config clm/compare-wikitext-2 --output_dir runs/wikitext-2
    s3bert compare-clm --config clm/compare-wikitext-2 --attention softmax linear linear+band --bandwidth 5 --output_dir runs/band-5

Softmax attention, linear attention, fast weights, a band, and FMMformer's blends of them are trained alike: the same batches, and the same
first values of all parameters that they share. Each is scored on the whole held-out text with a sliding window; differences have intervals
over its documents, paired. The same command goes on after a kill. The output folder gets `all_results.json`, `results.md` and
`losses.png`, and a folder for each kind with its trained model.
"""

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from s3bert.arguments import Arguments, close_match, option, parse_arguments
from s3bert.commands import run
from s3bert.data.arguments import CausalCorpusArguments
from s3bert.experiments.arguments import ATTENTIONS, ModelArguments
from s3bert.training.arguments import GridConfig


logger = logging.getLogger(__name__)


@dataclass
class CompareArguments(Arguments):
    """What is compared, and how it is scored."""

    config_name: str = option(help="configuration of an FMMformer, without its attention: a file or a recipe")
    attention: list[str] = option(
        free=True,
        help=f"kinds to compare: {', '.join(ATTENTIONS)}; all by default",
        default_factory=lambda: list(ATTENTIONS),
    )
    bandwidth: int = option(
        least=1, help="of the bands: a token reads itself and so many before it less one", default=20
    )
    config_overrides: str | None = option(help="changes to the configuration, as `hidden_size=256`", default=None)
    stride: int = option(
        least=1, help="tokens that the window slides by; those behind the one before are scored", default=64
    )
    document_start: str | None = option(
        help="pattern of the first row of a document, over which intervals are, such as '^ = [^=].* = $'; a row by default",
        default=None,
    )
    max_eval_blocks: int | None = option(
        least=1, help="held-out blocks to evaluate on while training; all of them by default", default=None
    )

    def __post_init__(self):
        super().__post_init__()
        for name in self.attention:
            if name not in ATTENTIONS:
                raise ValueError(f"attention: unknown {name!r}.{close_match(name, ATTENTIONS)}")
        if len(set(self.attention)) < len(self.attention):
            raise ValueError(f"attention = {' '.join(self.attention)}: one is named twice.")


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Runs the command; returns the content of `all_results.json`."""
    arguments, data, grid = parse_arguments((CompareArguments, CausalCorpusArguments, GridConfig), argv, __doc__)
    if data.streaming:
        raise ValueError(
            "streaming: the models read the same blocks in the same order; give a text that fits the disk."
        )
    from s3bert.training.processes import locked_for_run

    with locked_for_run(Path(grid.output_dir)):
        return _compare(arguments, data, grid)


def _compare(arguments: CompareArguments, data: CausalCorpusArguments, grid: GridConfig) -> dict[str, Any]:
    import numpy as np

    from s3bert.data.corpus import Corpus, corpus_parts, prepare_corpus
    from s3bert.experiments.causal_comparison import (
        Scoring,
        attention_config,
        attention_folder,
        compared,
        run_attention,
    )
    from s3bert.experiments.objectives import CAUSAL
    from s3bert.experiments.perplexity import read_text, text_of
    from s3bert.experiments.pretraining import corpus_name
    from s3bert.experiments.starting_model import fit_config, read_config
    from s3bert.reports.causal_comparison import write_report
    from s3bert.tasks.perplexity import Windows
    from s3bert.training.grid import grid_results, read_report
    from s3bert.training.processes import main_process_first
    from s3bert.training.settings import settings_of

    top = Path(grid.output_dir)
    with main_process_first():
        corpus = Corpus.open(prepare_corpus(data, top / "corpus"))
    model = ModelArguments(config_name=arguments.config_name, config_overrides=arguments.config_overrides)
    base = read_config(CAUSAL, model)
    fit_config(CAUSAL, base, corpus.tokenizer, corpus.block_size)
    if base.model_type != "fmmformer":
        raise ValueError(f"config_name = {arguments.config_name} is of a {base.model_type}: give an FMMformer's.")
    configs = {name: attention_config(base, name, arguments.bandwidth) for name in arguments.attention}
    held_out = data.validation_file or (data.dataset_name if corpus.folder != top / "corpus" else None)
    if held_out:
        text = read_text(held_out, None, corpus.tokenizer, arguments.document_start)
    else:  # the rows that the corpus was not trained on
        parts = [part for part in corpus_parts(data) if part.split == "validation"]
        rows = (batch for part in parts for batch in part.texts())
        text = text_of(rows, corpus.tokenizer, arguments.document_start)
    documents = len(np.unique(text.document_ids[1:]))
    if documents < 2:
        raise ValueError(
            f"The held-out text is {documents} document, and intervals are over documents: give a --validation_file of more rows, or a "
            "--document_start that several of its rows have."
        )
    lengths = (len(text.ids), corpus.block_size)
    settings = settings_of(arguments)
    scoring = Scoring(
        text,
        Windows(*lengths, arguments.stride),
        Windows(*lengths, corpus.block_size),
        grid.per_device_eval_batch_size,
        settings | {"text": text.digest},
    )
    what = {
        "title": f"language models of {corpus_name(corpus)}",
        "description": f"{base.num_hidden_layers} layers, width {base.hidden_size}, a vocabulary of {corpus.vocab_size:,}; segments of "
        f"{corpus.block_size} tokens. Perplexities are those of {len(text.ids):,} held-out tokens in windows of {corpus.block_size} that "
        f"slide by {arguments.stride}, with 95% intervals over {documents} documents. Bands are of {arguments.bandwidth}.",
        "bandwidth": arguments.bandwidth,
    }
    results: dict[str, dict[str, Any]] = {}
    for name, config in configs.items():
        logger.info("%s", name)
        own_grid = replace(grid, output_dir=str(attention_folder(top, name)))
        how = (corpus, arguments.max_eval_blocks, scoring, own_grid, settings)
        results[name] = grid_results(run_attention(config, *how))
        compared(top, results, scoring)
        write_report(top, what, results, len(configs), arguments, data, grid)
    return read_report(top)


if __name__ == "__main__":
    run("compare-clm")
