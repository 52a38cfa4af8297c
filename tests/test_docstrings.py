"""Every public class shows its own use, and what it shows runs."""

import doctest
import inspect

import pytest

import s3bert


@pytest.mark.parametrize("name", [name for name in s3bert.__all__ if inspect.isclass(getattr(s3bert, name))])
def test_every_public_class_has_a_short_example_that_runs(name):
    (docstring,) = doctest.DocTestFinder(recurse=False).find(getattr(s3bert, name), name, globs={})
    assert 2 <= len(docstring.examples) <= 5
    assert any(f"{name}(" in example.source or f"{name})" in example.source for example in docstring.examples)
    assert docstring.examples[-1].want
    assert doctest.DocTestRunner().run(docstring).failed == 0
