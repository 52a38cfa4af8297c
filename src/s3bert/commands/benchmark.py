"""Measures speed and peak memory of S3BERT and other models against length.

    s3bert benchmark --config benchmark/cpu --output_dir runs/benchmark
    s3bert benchmark --models s3bert bert --lengths 512 4096 --dtype bfloat16 --device cuda --torch_compile

Models of the same size, as many tokens in every batch; language models also generate (`--modes generation`). Speeds are measured side by
side, round by round, and told as medians with quartiles; each memory number comes from a fresh process. The output folder gets
`results.json` (the seconds of every round), `results.md` (tables) and `speed.png`; with `--profile` also a `profile-<model>.md` for each
model. The same call again goes on where it was stopped; a call with more models, lengths or modes adds them.
"""

import logging
from pathlib import Path
from typing import Any

from s3bert.arguments import parse_arguments, save_arguments
from s3bert.benchmark.arguments import BenchmarkConfig
from s3bert.benchmark.encoder_size import EncoderSize
from s3bert.commands import run
from s3bert.files import write_text


logger = logging.getLogger(__name__)


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Runs the command; returns the content of `results.json`."""
    size, config = parse_arguments((EncoderSize, BenchmarkConfig), argv, __doc__)
    from s3bert.folder_lock import locked_folder

    with locked_folder(Path(config.output_dir)):
        return _measure(size, config)


def _measure(size: EncoderSize, config: BenchmarkConfig) -> dict[str, Any]:
    from s3bert.benchmark.encoders import UnsuitableError
    from s3bert.benchmark.report import plot_speeds, speed_report
    from s3bert.benchmark.run import profile_model, run_benchmark

    folder = Path(config.output_dir)
    results = run_benchmark(size, config)
    save_arguments(folder / "arguments.yaml", size, config)
    report = speed_report(results)
    write_text(folder / "results.md", report)
    plot_speeds(folder / "speed.png", {folder.name: results})
    print(f"\n{report}")
    for name in config.models if config.profile else []:
        try:
            write_text(folder / f"profile-{name}.md", profile_model(name, size, config))
        except UnsuitableError as error:
            logger.warning("%s has no profile: %s", name, error)
    print(f"Tables, seconds of every round and the plot are in {folder}.")
    return results


if __name__ == "__main__":
    run("benchmark")
