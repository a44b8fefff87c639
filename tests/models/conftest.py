"""Tests of methods by commands draw one figure of each folder, but where figures are what they are about."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.drawing import one_figure, unrendered


@pytest.fixture(autouse=True)
def few_figures(request: pytest.FixtureRequest) -> Iterator[None]:
    """Where a test has commands, unless it is marked ``figures``; ``figures("blank")`` draws all, and renders none."""
    marker = request.node.get_closest_marker("figures")
    if "hierfl" not in request.fixturenames or (marker and marker.args != ("blank",)):
        yield
    else:
        with unrendered() if marker else one_figure():
            yield
