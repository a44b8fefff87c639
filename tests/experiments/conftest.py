"""Tests of commands draw one figure of each folder, but where figures are what they are about."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.drawing import one_figure


@pytest.fixture(autouse=True)
def few_figures(request: pytest.FixtureRequest) -> Iterator[None]:
    """Unless a test is marked ``figures``."""
    if request.node.get_closest_marker("figures"):
        yield
        return
    with one_figure():
        yield
