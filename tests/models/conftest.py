"""What the tests of S3Attention's forms share."""

from collections.abc import Callable

import pytest

from s3bert.models import mixer_s3


@pytest.fixture
def pick_forms(monkeypatch) -> Callable[[str | None, str | None], None]:
    """Makes "auto" pick these forms of attention and smoother at any size, where they are exact; None leaves its rule."""

    def pick(attention: str | None, smoother: str | None) -> None:
        if attention is not None:
            monkeypatch.setattr(mixer_s3, "cheapest_attention_form", lambda *sizes: attention)
        if smoother is not None:
            monkeypatch.setattr(mixer_s3, "cheapest_smoother_form", lambda *sizes: smoother)

    return pick
