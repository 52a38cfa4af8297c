"""Measures a causal language model's perplexity on a text, with windows that slide over it.

    s3bert eval-perplexity --model_name_or_path runs/fmm --dataset_name wikitext-2/validation.txt.gz --output_dir runs/fmm-perplexity
    s3bert eval-perplexity --model_name_or_path runs/fmm --dataset_name wikitext-2 --split test --max_seq_length 256 --stride 1 \\
        --document_start "^ = [^=].* = $" --output_dir runs/fmm-test

The model is any that AutoModelForCausalLM loads. The text's rows are joined, each with the tokenizer's end after it. A window reads
`max_seq_length` tokens, each of which predicts the next; the next window begins `stride` tokens later and counts only what it predicts first.
By default windows lie side by side; a stride of 1 is FMMformer's measure. The same command goes on after a kill. The output folder
gets `all_results.json`, `results.md`, each token's loss in `token_losses.safetensors`, and of windows side by side `loss_by_context.png`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from s3bert.arguments import Arguments, option, parse_arguments
from s3bert.commands import run


@dataclass
class PerplexityArguments(Arguments):
    """Model, text and windows."""

    model_name_or_path: str = option(free=True, help="a causal language model: a folder or a Hub id")
    dataset_name: str = option(free=True, help="text, as in s3bert pretrain: files, folders, globs or Hub ids")
    output_dir: str = option(free=True, help="folder of the results")
    split: str | None = option(
        free=True, help="split to measure on; by default validation, or the only one there is", default=None
    )
    tokenizer_name: str | None = option(
        free=True, help="folder or Hub id of a tokenizer; the model's by default", default=None
    )
    document_start: str | None = option(
        free=True,
        help="regular expression of the first row of each document, over which the interval is; by default each row is a document",
        default=None,
    )
    max_seq_length: int | None = option(
        least=1,
        help="tokens that a window reads; by default all that the model was made for, at most 1,024",
        default=None,
    )
    stride: int | None = option(
        least=1, help="tokens from a window to the next; by default windows lie side by side", default=None
    )
    per_device_eval_batch_size: int = option(free=True, least=1, help="windows at once", default=8)
    trust_remote_code: bool = option(help="run modelling code that comes with a checkpoint", default=False)


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Runs the command; returns the content of `all_results.json`."""
    (arguments,) = parse_arguments((PerplexityArguments,), argv, __doc__)
    from s3bert.folder_lock import locked_folder

    with locked_folder(Path(arguments.output_dir)):
        return _measure(arguments)


def _measure(arguments: PerplexityArguments) -> dict[str, Any]:
    from s3bert.data.sources import parse_sources
    from s3bert.data.wordpiece import load_tokenizer
    from s3bert.experiments.perplexity import (
        LOSSES,
        check_fit,
        load_config,
        load_model,
        measure,
        read_text,
        results_of,
        window_length,
    )
    from s3bert.reports.perplexity import perplexity_tables, plot_loss_by_context
    from s3bert.reports.run_files import write_run
    from s3bert.tasks.perplexity import Windows
    from s3bert.training.finetuning import weights_digest
    from s3bert.training.processes import process_state
    from s3bert.training.settings import model_settings, settings_of

    folder, name = Path(arguments.output_dir), arguments.model_name_or_path
    config = load_config(name, arguments.trust_remote_code)
    tokenizer = load_tokenizer(arguments.tokenizer_name or name, causal=True)
    text = read_text(arguments.dataset_name, arguments.split, tokenizer, arguments.document_start)
    settings = {"weights": weights_digest(name, config), "model": model_settings(config), "text": text.digest}
    model = load_model(name, config, arguments.trust_remote_code).to(process_state().device)
    length = window_length(name, model, arguments.max_seq_length)
    windows = Windows(len(text.ids), length, arguments.stride or length)
    check_fit(name, model, text.ids, length)
    settings |= settings_of(arguments) | {"max_seq_length": windows.length, "stride": windows.stride}
    size = arguments.per_device_eval_batch_size
    losses = measure(model, text, windows, size, folder / LOSSES, settings)
    text_name = " + ".join(source.title for source in parse_sources(arguments.dataset_name))
    content = {
        "title": f"perplexity of {Path(name).name} on {text_name}",
        "description": f"Windows of {windows.length:,} tokens, each {windows.stride:,} after the one before it.",
        "max_seq_length": windows.length,
        "stride": windows.stride,
        **results_of(losses, text, windows),
    }
    tables = "\n\n".join(perplexity_tables(content))
    if windows.stride == windows.length:
        plot_loss_by_context(folder / "loss_by_context.png", {Path(name).name: content})
    write_run(folder, content, [content["description"], tables], arguments)
    print(f"{tables}\n\nTables and numbers are in {folder}, and each token's loss in {folder / LOSSES}.")
    return content


if __name__ == "__main__":
    run("eval-perplexity")
