"""ListOps: values against an evaluator of its own, the exact distribution of lengths, repeatability, and damaged files."""

import random
import statistics
from pathlib import Path

import numpy as np
import pytest

from s3bert.tasks.listops import TOKENS, _draw_shapes, encode, listops_rows, read_listops, write_listops


SHORT = {"min_length": 4, "max_length": 60, "max_depth": 5}
SIZES = {"train": 60, "val": 20, "test": 20}


def evaluated(expression: str) -> int:
    """The value by recursion over the tokens, from the words of the description."""
    tokens = iter(expression.split())

    def node(token: str) -> int:
        if token.isdigit():
            return int(token)
        arguments = []
        while (following := next(tokens)) != "]":
            arguments.append(node(following))
        assert 2 <= len(arguments) <= 10
        if token == "[MED":
            return int(statistics.median(arguments))
        return {"[MIN": min, "[MAX": max, "[SM": lambda values: sum(values) % 10}[token](arguments)

    value = node(next(tokens))
    assert next(tokens, None) is None
    return value


def depth(expression: str) -> int:
    deepest = open_brackets = 0
    for token in expression.split():
        open_brackets += token.startswith("[")
        deepest = max(deepest, open_brackets)
        open_brackets -= token == "]"
    return deepest


def nested_pairs(expression: str) -> str:
    """The form of the original files: an operator with arguments a, b reads ( ( ( [MAX a ) b ) ] )."""
    done: list[list[str]] = [[]]
    for token in expression.split():
        if token.startswith("["):
            done.append([token])
            continue
        done[-1].append(token)
        if token == "]":
            head, *others = done.pop()
            for other in others:
                head = f"( {head} {other} )"
            done[-1].append(head)
    return done[0][0]


def exact_lengths(longest: int, max_depth: int = 10) -> np.ndarray:
    """The probability of each length below `longest`, exact: sums of independent lengths are convolutions."""
    lengths = np.zeros(longest)
    lengths[1] = 1
    for _ in range(max_depth - 1):
        several, operator = lengths, np.zeros(longest)
        for _ in range(2, 11):
            several = np.convolve(several, lengths)[:longest]
            operator[2:] += several[:-2] / 9
        lengths = 0.25 * operator
        lengths[1] += 0.75
    return lengths


@pytest.fixture(scope="module")
def rows() -> list[tuple[str, int]]:
    """Rows at the official bounds; two thousand make the sampling errors below."""
    return list(listops_rows(2000, seed=1))


def test_every_value_is_what_the_description_gives(rows):
    for expression, value in [*rows[:100], *listops_rows(3000, seed=2, **SHORT)]:
        assert evaluated(expression) == value, expression


def test_the_median_of_an_even_number_is_truncated_and_the_sum_is_modulo_ten():
    # All of the 4 (100 + 1,000) operators over two or three digits.
    values = dict(listops_rows(4400, seed=0, min_length=1, max_length=6))
    assert values["[MED 2 5 ]"] == values["[MED 5 2 ]"] == 3
    assert values["[MED 8 1 3 ]"] == 3
    assert values["[SM 7 8 ]"] == 5
    assert values["[SM 9 9 9 ]"] == 7
    assert values["[MIN 3 4 ]"] == 3
    assert values["[MAX 3 4 ]"] == 4


def test_lengths_and_depths_stay_within_the_bounds_and_reach_them(rows):
    assert all(500 < len(expression.split()) < 2000 for expression, _ in rows)
    short = [expression for expression, _ in listops_rows(3000, seed=0, **SHORT)]
    lengths = [len(expression.split()) for expression in short]
    assert (min(lengths), max(lengths)) == (5, 59)
    # Digits may stand at the greatest depth, so operators nest one less.
    assert max(map(depth, short)) == 4
    assert max(depth(expression) for expression, _ in rows) == 9


def test_lengths_are_distributed_as_the_description_makes_them(rows):
    """Exact figures: 8.28 % of the draws kept, mean length 1035, median 954; 4 standard errors are allowed."""
    exact = exact_lengths(2000)
    exact[:501] = 0
    accepted, exact = exact.sum(), exact / exact.sum()
    draws = 20_000
    shapes = _draw_shapes(np.random.default_rng(0), draws, 500, 2000, 10)
    assert accepted == pytest.approx(0.0828, abs=5e-5)
    assert shapes[0].size / draws == pytest.approx(accepted, abs=4 * (accepted / draws) ** 0.5)

    lengths = np.array([len(expression.split()) for expression, _ in rows])
    places = np.arange(exact.size)
    mean = exact @ places
    deviation = (exact @ (places - mean) ** 2) ** 0.5
    assert lengths.mean() == pytest.approx(mean, abs=4 * deviation / len(rows) ** 0.5)
    for quantile in (0.1, 0.5, 0.9):
        below = (lengths <= np.searchsorted(exact.cumsum(), quantile)).mean()
        assert below == pytest.approx(quantile, abs=4 * (quantile * (1 - quantile) / len(rows)) ** 0.5)


def test_labels_and_operators_are_as_frequent_as_the_description_says(rows):
    frequencies = np.bincount([value for _, value in rows], minlength=10) / len(rows)
    allowed = 4 * (0.17 * 0.83 / len(rows)) ** 0.5
    assert frequencies[0] == pytest.approx(0.17, abs=allowed)
    assert frequencies[9] == pytest.approx(0.175, abs=allowed)
    assert np.all(np.abs(frequencies[1:9] - 0.085) < 0.01 + allowed)
    roots = [expression.split()[0] for expression, _ in rows]
    for operator, most_frequent, share in (("[MIN", 0, 0.56), ("[MAX", 9, 0.60)):
        values = [value for root, (_, value) in zip(roots, rows) if root == operator]
        assert len(values) / len(rows) == pytest.approx(0.25, abs=4 * (0.25 * 0.75 / len(rows)) ** 0.5)
        assert values.count(most_frequent) / len(values) == pytest.approx(share, abs=4 * (0.25 / len(values)) ** 0.5)


def test_the_same_seed_gives_the_same_rows_and_another_seed_others():
    first = list(listops_rows(200, seed=3, **SHORT))
    assert first == list(listops_rows(200, seed=3, **SHORT))
    assert first[:50] == list(listops_rows(50, seed=3, **SHORT))
    assert first != list(listops_rows(200, seed=4, **SHORT))


def test_the_nested_pairs_of_the_original_files_encode_as_the_flat_form_does(rows):
    assert nested_pairs("[MAX 2 [MIN 4 7 ] ]") == "( ( ( [MAX 2 ) ( ( ( [MIN 4 ) 7 ) ] ) ) ] )"
    for expression, _ in rows[:50]:
        np.testing.assert_array_equal(encode(nested_pairs(expression)), encode(expression))


def test_ids_run_from_1_to_15_and_an_unknown_token_is_16():
    assert list(TOKENS) == ["[MIN", "[MAX", "[MED", "[SM", *"0123456789", "]"]
    assert list(TOKENS.values()) == list(range(1, 16))
    ids = encode("[MIN 0 9 [AVG 5 ] ]")
    assert ids.dtype == np.uint8
    assert ids.tolist() == [1, 5, 14, 16, 10, 15, 15]


def test_written_files_are_read_back_and_no_expression_is_in_two_splits(tmp_path):
    write_listops(tmp_path, SIZES, seed=5, **SHORT)
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "basic_test.tsv", "basic_train.tsv", "basic_val.tsv",
    ]  # fmt: skip
    expected = iter(listops_rows(100, seed=5, **SHORT))
    seen = set()
    for split, size in SIZES.items():
        file = tmp_path / f"basic_{split}.tsv"
        assert file.read_text().startswith("Source\tTarget\n")
        ids, labels = read_listops(file)
        assert len(ids) == size
        for row, label in zip(ids, labels, strict=True):
            expression, value = next(expected)
            np.testing.assert_array_equal(row, encode(expression))
            assert label == value
            seen.add(expression)
    assert len(seen) == 100


def test_bounds_that_no_or_too_few_expressions_meet_are_errors_that_leave_no_file(tmp_path):
    with pytest.raises(ValueError, match="longer than 5 and shorter than 6"):
        next(listops_rows(1, seed=0, min_length=5, max_length=6))
    with pytest.raises(ValueError, match="at most 0 deep"):
        next(listops_rows(1, seed=0, max_depth=0))
    with pytest.raises(ValueError, match="only 10 of 11 expressions found"):
        write_listops(tmp_path, {"train": 11}, min_length=0, max_length=2)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("[MAX 2 9 ]", "1 columns, which must be 2"),
        ("[MAX 2 9 ]\t9\t9", "3 columns"),
        ("[MAX 2 9 ]\t", "label '', which must be one of 0 to 9"),
        ("[MAX 2 9 ]\t10", "label '10'"),
        ("[MAX 2 9 ]\tx", "label 'x'"),
        ("[MAX 2 9 ]\t-1", "label '-1'"),
        ("[MAX 2 [MIN 9 3 ]\t3", "unclosed brackets"),
        ("\t3", "an expression that is empty"),
        ("[MAX 2 \xff ]\t2", "not plain ASCII"),
    ],
)
def test_a_malformed_line_is_an_error_with_file_line_and_reason(tmp_path, line, reason):
    file = tmp_path / "basic_train.tsv"
    file.write_text(f"Source\tTarget\n[MIN 1 2 ]\t1\n{line}\n", encoding="latin-1")
    with pytest.raises(ValueError, match=rf"basic_train.tsv, line 3: .*{reason}"):
        read_listops(file)


def test_a_file_cut_anywhere_within_a_line_is_an_error_for_that_line(tmp_path):
    write_listops(tmp_path, {"train": 5}, **SHORT)
    file: Path = tmp_path / "basic_train.tsv"
    whole = file.read_bytes()
    begin = whole[:-1].rindex(b"\n") + 1
    for cut in random.Random(0).sample(range(begin + 1, len(whole) - 2), 10):
        file.write_bytes(whole[:cut])
        with pytest.raises(ValueError, match="line 6"):
            read_listops(file)


def test_words_and_a_file_of_a_header_alone_are_errors(tmp_path):
    (tmp_path / "basic_val.tsv").write_text("Source\tTarget\nhello world\t2\n")
    with pytest.raises(ValueError, match=r"basic_val.tsv, line 2: 'hello world' has tokens that are no operator"):
        read_listops(tmp_path / "basic_val.tsv")
    (tmp_path / "basic_val.tsv").write_text("Source\tTarget\n")
    with pytest.raises(ValueError, match=r"basic_val.tsv has no examples: it is empty or cut"):
        read_listops(tmp_path / "basic_val.tsv")


def test_a_missing_header_is_an_error(tmp_path):
    for text in ("", "[MIN 1 2 ]\t1\n"):
        (tmp_path / "basic_val.tsv").write_text(text)
        with pytest.raises(ValueError, match=r"basic_val.tsv, line 1: the header .* is missing"):
            read_listops(tmp_path / "basic_val.tsv")
