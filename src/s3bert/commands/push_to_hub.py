"""Publishes the folder of a finished run, with its model card, on the Hub or in a folder.

    s3bert push --folder runs/base --dry_run           # checks everything, needs no network
    s3bert push --folder runs/base --hub_model_id me/s3bert-base
    s3bert push --folder runs/base --output_dir checkpoints/base --half_precision
    s3bert push --folder runs/table3/pretrained/s3bert --card runs/table3/report/s3bert.md --dry_run

The folder has to be one that others can use: whole and finite weights, tokenizer, modelling code, and a card whose metadata
the Hub reads. What a run keeps for itself (checkpoints, corpus, trials of a grid, hidden files) stays at home.
"""

from dataclasses import dataclass
from pathlib import Path

from s3bert.arguments import Arguments, option, parse_arguments
from s3bert.commands import run


@dataclass
class PushArguments(Arguments):
    """Folder, and where it goes."""

    folder: str = option(help="folder of a finished run")
    hub_model_id: str | None = option(
        help="repository; by default the folder's name in your own space, created when it is not there", default=None
    )
    card: str | None = option(
        help="a model card (Markdown) that becomes the folder's README.md, with the plots it shows", default=None
    )
    output_dir: str | None = option(
        help="a new folder to put the repository into, in place of the Hub; it can be pushed later", default=None
    )
    half_precision: bool = option(
        help="with output_dir: store the weights in float16, half the size; models still load and compute in the dtype they had",
        default=False,
    )
    dry_run: bool = option(help="check the folder and list what would be uploaded, and stop there", default=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.half_precision and not self.output_dir:
            raise ValueError("half_precision is for a copy: give --output_dir FOLDER too, and push that folder.")
        if self.output_dir and self.hub_model_id:
            raise ValueError(
                "output_dir is in place of the Hub: leave out hub_model_id, or push the new folder afterwards."
            )


def main(argv: list[str] | None = None) -> str | None:
    """Runs the command; returns the repository's id, None where nothing was uploaded.

    Raises:
        ValueError: the folder is not fit to be published; the message lists why.
    """
    (arguments,) = parse_arguments((PushArguments,), argv, __doc__)
    from s3bert.reports.repository import adopt_card, files_to_push, push_folder, validate_repository, write_repository

    folder, card = Path(arguments.folder), Path(arguments.card) if arguments.card else None
    if found := validate_repository(folder, card):
        raise ValueError(f"{folder} is not fit to be published:\n" + "\n".join(f"- {problem}" for problem in found))
    if arguments.output_dir and not arguments.dry_run:
        write_repository(folder, Path(arguments.output_dir), card, arguments.half_precision)
        folder = Path(arguments.output_dir)
    elif card and not arguments.dry_run:
        adopt_card(card, folder)
    files = files_to_push(folder)
    for file in files:
        print(f"{file.stat().st_size:>14,}  {file.relative_to(folder)}")
    print(f"{sum(file.stat().st_size for file in files):>14,}  bytes in {len(files)} files")
    if arguments.dry_run:
        if card:
            print(f"{card} would become README.md, with the plots it shows.")
        does = f"writes {arguments.output_dir}" if arguments.output_dir else "uploads it"
        print(f"{folder} is fit to be published; the same command without --dry_run {does}.")
        return None
    if arguments.output_dir:
        print(f"Next: s3bert push --folder {folder} --dry_run")
        return None
    repository = push_folder(folder, arguments.hub_model_id)
    print(f"https://huggingface.co/{repository}")
    return repository


if __name__ == "__main__":
    run("push")
