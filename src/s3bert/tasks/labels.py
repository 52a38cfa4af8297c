"""Labels of examples as files hold them, checked before anything is trained on them."""

import math
import reprlib
from collections.abc import Sequence
from typing import Any


def check_labels(
    labels: Sequence[Any],
    num_labels: int | None,
    where: str,
    lines: Sequence[int] | None = None,
    names: Sequence[str] = (),
    remedy: str = "Correct it, or take the row out.",
) -> None:
    """Makes sure that there are labels, and that a task has each of them.

    Args:
        labels: (N,), as read: Python's values, of which a class is an `int`, no `bool`, `float` or text.
        num_labels: classes, from 0 on; None for regression, where a label is any finite number.
        where: the file or split, which an error begins with. lines: (N,), of the labels in the file; without them, an error
            names a row, counted from 0. names: of the classes. remedy: of a wrong label, a sentence.

    Raises:
        ValueError: no example; a label that the task does not have, with its place.
    """
    if not len(labels):
        raise ValueError(f"{where} has no examples: it is empty or cut. Copy or generate it again.")
    for number, label in enumerate(labels):
        if num_labels is None:
            right = type(label) in (int, float) and math.isfinite(label)
        else:
            right = type(label) is int and 0 <= label < num_labels
        if not right:
            allowed = "a finite number" if num_labels is None else f"one of 0 to {num_labels - 1}"
            named = f" ({', '.join(names)})" if names else ""
            hint = "; -1 marks an unlabelled test set" if label == -1 and num_labels else ""
            place = f"row {number}" if lines is None else f"line {lines[number]}"
            raise ValueError(
                f"{where}, {place}: label {reprlib.repr(label)}, which must be {allowed}{named}{hint}. {remedy}"
            )
