"""ListOps of the Long Range Arena: nested lists of digits and operators to be worked out, generated from a seed.

Source: the expressions of Nangia and Bowman (2018) in the lengths and the file format of Tay et al. (2021), "Long Range
Arena", whose own files cannot be had: the distribution is theirs, the draws are ours. A node is an operator with
probability 1/4 and otherwise a digit, always a digit at the greatest depth; an operator takes 2 to 10 arguments. Only
expressions of more than 500 and less than 2,000 tokens are kept, each once.
"""

import hashlib
from collections.abc import Iterator, Mapping
from itertools import accumulate, islice, pairwise
from pathlib import Path

import numpy as np
from tqdm.auto import tqdm

from s3bert.files import replacing

from .labels import check_labels


OPERATORS = ("MIN", "MAX", "MED", "SM")
# The operators, the digits, the closing bracket, in this order; the benchmark leaves the order open.
TOKENS = {
    token: number
    for number, token in enumerate([*(f"[{operator}" for operator in OPERATORS), *"0123456789", "]"], start=1)
}
PADDING, UNKNOWN = 0, 16
OFFICIAL_SIZES = {"train": 96_000, "val": 2_000, "test": 2_000}  # rows
HEADER = "Source\tTarget"

OPERATOR_PROBABILITY = 0.25
FEWEST_ARGUMENTS, MOST_ARGUMENTS = 2, 10
DRAWS_AT_ONCE = 4096  # part of what a seed means: another number gives other rows
FRUITLESS_DRAWS = 1_000_000  # the official bounds bring a new row every dozen draws

_NAMES = ["", *TOKENS]
_CLOSING = TOKENS["]"]
_VALUES = {str(value): value for value in range(10)}


def _draw_shapes(
    generator: np.random.Generator, draws: int, min_length: int, max_length: int, max_depth: int
) -> list[np.ndarray]:
    """Draws trees without digits and operators, and keeps those of an allowed length.

    Level by level, for all trees at once: the draws of the nodes are independent, so that their order is free, and most
    trees are out before anything else of them is drawn.

    Returns:
        For each depth from the root, (nodes,) the number of arguments of the nodes from left to right, tree after tree,
        0 for a digit. The first has one node a tree; none is empty; no tree at all is an empty list.
    """
    levels = []
    lengths = np.zeros(draws, np.int64)
    tree = np.arange(draws)
    for depth in range(1, max_depth + 1):
        arguments = np.zeros(tree.size, np.int64)
        if depth < max_depth:
            operators = np.flatnonzero(generator.random(tree.size) < OPERATOR_PROBABILITY)
            arguments[operators] = generator.integers(FEWEST_ARGUMENTS, MOST_ARGUMENTS + 1, operators.size)
        # A digit is one token, an operator two: the one that opens with its name, and the bracket that closes.
        lengths += np.bincount(tree, minlength=draws) + np.bincount(tree[arguments > 0], minlength=draws)
        arguments[lengths[tree] >= max_length] = 0  # abandoned: it can only grow
        levels.append((tree, arguments))
        tree = np.repeat(tree, arguments)
    kept = (min_length < lengths) & (lengths < max_length)
    return [arguments[kept[tree]] for tree, arguments in levels if kept[tree].any()]


def _operator_values(operators: np.ndarray, arguments: np.ndarray, values: np.ndarray) -> np.ndarray:
    """What operators make of their arguments.

    Args:
        operators: (n,) places in `OPERATORS`. arguments: (n,) how many each has, at least 1.
        values: (arguments.sum(),) the arguments, one operator's after the other's, from 0 to 9.
    """
    first = np.cumsum(arguments) - arguments
    owner = np.repeat(np.arange(arguments.size), arguments)
    ordered = np.sort(10 * owner + values) % 10  # each operator's arguments in ascending order, in their places
    lower, upper = ordered[first + (arguments - 1) // 2], ordered[first + arguments // 2]
    outcomes = {
        "MIN": ordered[first],
        "MAX": ordered[first + arguments - 1],
        "MED": (lower + upper) // 2,  # of an even number: the mean of the middle two, truncated
        "SM": np.add.reduceat(values, first) % 10,
    }
    return np.choose(operators, [outcomes[name] for name in OPERATORS])


def _fill(generator: np.random.Generator, shapes: list[np.ndarray]) -> Iterator[tuple[np.ndarray, int]]:
    """Draws digits and operators into the trees of `_draw_shapes`; gives each as ids (length,) with its value."""
    # From the leaves to the root: the token, the length and the value of every node.
    tokens, lengths, values = ([np.empty(0, np.int64)] * len(shapes) for _ in range(3))
    for depth in reversed(range(len(shapes))):
        arguments = shapes[depth]
        values[depth] = generator.integers(0, 10, arguments.size)
        tokens[depth] = values[depth] + TOKENS["0"]
        lengths[depth] = np.ones(arguments.size, np.int64)
        is_operator = arguments > 0
        if is_operator.any():
            counts = arguments[is_operator]
            operators = generator.integers(0, len(OPERATORS), counts.size)
            values[depth][is_operator] = _operator_values(operators, counts, values[depth + 1])
            tokens[depth][is_operator] = operators + TOKENS[f"[{OPERATORS[0]}"]
            lengths[depth][is_operator] = 2 + np.add.reduceat(lengths[depth + 1], np.cumsum(counts) - counts)

    # From the root to the leaves: where every node begins when the trees stand one after the other. What no node
    # begins at is a closing bracket.
    ids = np.full(lengths[0].sum(), _CLOSING, np.uint8)
    begins = np.cumsum(lengths[0]) - lengths[0]
    ids[begins] = tokens[0]
    for depth, arguments in enumerate(shapes[:-1]):
        counts = arguments[arguments > 0]
        before = np.cumsum(lengths[depth + 1]) - lengths[depth + 1]
        before -= np.repeat(before[np.cumsum(counts) - counts], counts)  # of the siblings only
        begins = np.repeat(begins[arguments > 0] + 1, counts) + before
        ids[begins] = tokens[depth + 1]
    ends = accumulate(lengths[0].tolist(), initial=0)
    for (begin, end), value in zip(pairwise(ends), values[0].tolist()):
        yield ids[begin:end], value


def listops_rows(
    count: int, seed: int, min_length: int = 500, max_length: int = 2000, max_depth: int = 10
) -> Iterator[tuple[str, int]]:
    """Distinct expressions such as `[MAX 2 9 [MIN 4 7 ] 0 ]`, each with its value from 0 to 9.

    The same arguments give the same rows, and a smaller `count` the first of them.

    Args:
        min_length, max_length: in tokens, both excluded. max_depth: of the deepest digit, the root counted as 1.

    Raises:
        ValueError: no length lies between the bounds, or a million draws in a row brought no expression that was new.
    """
    if max_depth < 1 or max_length - min_length < 2 or max_length < 2:
        raise ValueError(
            f"no expression is longer than {min_length} and shorter than {max_length} tokens and at most {max_depth} deep;"
            " the bounds are excluded, and a lone digit has length and depth 1"
        )
    generator = np.random.default_rng(seed)
    seen: set[bytes] = set()
    fruitless = 0
    while len(seen) < count:
        fruitless += DRAWS_AT_ONCE
        shapes = _draw_shapes(generator, DRAWS_AT_ONCE, min_length, max_length, max_depth)
        for ids, value in _fill(generator, shapes) if shapes else ():
            # Distinct digests come from distinct expressions only, at a hundredth of the memory.
            digest = hashlib.blake2b(ids.tobytes(), digest_size=16).digest()
            if digest not in seen and len(seen) < count:
                seen.add(digest)
                fruitless = 0
                yield " ".join([_NAMES[token] for token in ids.tolist()]), value
        if fruitless > FRUITLESS_DRAWS:
            raise ValueError(
                f"only {len(seen)} of {count} expressions found: {FRUITLESS_DRAWS:,} draws brought no new one of more than "
                f"{min_length} and less than {max_length} tokens at most {max_depth} deep; widen the bounds"
            )


def encode(expression: str) -> np.ndarray:
    """The ids of an expression's tokens, (length,) uint8, as in `TOKENS`; what is no token gets 16.

    Round brackets are deleted first, so that the nested pairs of the original files, `( ( ( [MAX 2 ) 9 ) ] )`, read as
    `[MAX 2 9 ]` does.
    """
    tokens = expression.replace("(", "").replace(")", "").split()
    return np.array([TOKENS.get(token, UNKNOWN) for token in tokens], np.uint8)


def write_listops(
    folder: Path,
    sizes: Mapping[str, int] = OFFICIAL_SIZES,
    seed: int = 0,
    **bounds: int,
) -> None:
    """Writes `basic_train.tsv`, `basic_val.tsv` and `basic_test.tsv` as the benchmark names and lays them out.

    Args:
        sizes: rows by split; no expression is in two of them. bounds: as in `listops_rows`.

    Raises:
        ValueError: as `listops_rows`.
    """
    rows = listops_rows(sum(sizes.values()), seed, **bounds)
    with tqdm(total=sum(sizes.values()), desc="ListOps", unit=" rows") as bar:
        for split, size in sizes.items():
            with replacing(folder / f"basic_{split}.tsv") as aside, aside.open("w", encoding="ascii") as stream:
                stream.write(HEADER + "\n")
                for expression, value in islice(rows, size):
                    stream.write(f"{expression}\t{value}\n")
                    bar.update()


def read_listops(file: Path) -> tuple[list[np.ndarray], np.ndarray]:
    """Reads a file of `write_listops`, or of the original release.

    Returns:
        The ids of each row as `encode` gives them, and the labels, (rows,) int64 from 0 to 9.

    Raises:
        ValueError: with file, line and reason: no header, no rows, a line that is cut or is not an expression, a tab and a digit.
    """
    rows, labels = [], []
    with file.open(encoding="utf-8", errors="replace") as stream:
        if stream.readline().rstrip("\n") != HEADER:
            raise ValueError(f"{file}, line 1: the header 'Source<tab>Target' is missing")
        for number, line in enumerate(stream, start=2):
            if not line.isascii():
                raise ValueError(f"{file}, line {number}: not plain ASCII")
            expression, *columns = line.rstrip("\n").split("\t")
            if len(columns) != 1:
                raise ValueError(f"{file}, line {number}: {1 + len(columns)} columns, which must be 2; is it cut?")
            if not expression.strip() or expression.count("[") != expression.count("]"):
                raise ValueError(f"{file}, line {number}: an expression that is empty or has unclosed brackets")
            row = encode(expression)
            if (row == UNKNOWN).any():
                raise ValueError(
                    f"{file}, line {number}: {expression[:40]!r} has tokens that are no operator, digit or bracket"
                )
            rows.append(row)
            labels.append(_VALUES.get(columns[0], columns[0]))
    check_labels(labels, len(_VALUES), str(file), range(2, len(labels) + 2))
    return rows, np.array(labels, np.int64)
