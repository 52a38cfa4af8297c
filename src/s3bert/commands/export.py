"""Writes a model for other runtimes: ONNX, int8 ONNX, and a `torch.export` program.

    s3bert export --folder runs/mine --output_dir exported/mine
    s3bert export --folder runs/mine --output_dir exported/mine --formats onnx --max_seq_length 512

Each file takes any batch size and length, padding and all, and is compared with the model before it is kept. int8 rounds: how far off
it is on random tokens is told, and no more. The output folder gets the files and `export.md`, the table of sizes that is also printed.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from s3bert.arguments import Arguments, option, parse_arguments
from s3bert.commands import run
from s3bert.files import write_text


if TYPE_CHECKING:
    from s3bert.experiments.exporting import File


@dataclass
class ExportArguments(Arguments):
    """Folder, and what becomes of it."""

    folder: str = option(help="folder of a finished run, or of another model of Transformers, with any head")
    output_dir: str = option(help="folder of the files")
    formats: list[Literal["pt2", "onnx", "int8"]] = option(
        help="model.pt2 for PyTorch alone, model.onnx, model-int8.onnx", default_factory=lambda: ["pt2", "onnx", "int8"]
    )
    max_seq_length: int | None = option(
        least=2, help="tokens of the longest sequence; all that the model takes by default", default=None
    )


def main(argv: list[str] | None = None) -> "list[File]":
    """Runs the command; returns the files, behind the original."""
    (arguments,) = parse_arguments((ExportArguments,), argv, __doc__)
    from s3bert.folder_lock import locked_folder

    with locked_folder(Path(arguments.output_dir)):
        return _export(arguments)


def _export(arguments: ExportArguments) -> "list[File]":
    from s3bert.experiments.exporting import export_folder, size_table

    folder = Path(arguments.output_dir)
    files = export_folder(Path(arguments.folder), folder, arguments.formats, arguments.max_seq_length)
    sizes = size_table(files)
    write_text(folder / "export.md", sizes)
    print(sizes)
    print(f"The files and this table, export.md, are in {folder}.")
    return files


if __name__ == "__main__":
    run("export")
