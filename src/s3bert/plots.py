"""Plots without pyplot: no window, no global figure, and the caller's backend stays as it is."""

from io import BytesIO
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from PIL import Image  # matplotlib's own way to PNG

from .files import replacing


def subplots(rows: int = 1, columns: int = 1, *, figsize: tuple[float, float], **options: Any) -> tuple[Figure, Any]:
    """A figure in inches and its axes, as `matplotlib.pyplot.subplots` gives them; `options` are those of `Figure.subplots`."""
    figure = Figure(figsize=figsize, layout="constrained")
    return figure, figure.subplots(rows, columns, **options)


def save(figure: Figure, file: Path, dpi: int = 150) -> None:
    """Writes a figure as a PNG of 256 colours, a third of the bytes, atomically."""
    drawn = BytesIO()
    figure.savefig(drawn, dpi=dpi, format="png")
    with replacing(file) as aside, Image.open(drawn) as image:
        image.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(aside, format="png", optimize=True)


def wrapped(name: str, width: int = 30) -> str:
    """A name with settings, as `s3:num_segments=64,stem=pointwise`, over lines of about `width` characters."""
    lines = [""]
    for part in name.replace(" (", " \n(").replace(",", ",\n").split("\n"):
        if len(lines[-1]) + len(part) > width and lines[-1]:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)
