"""Tests of commands draw one figure of each folder, but where figures are what they are about."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.drawing import one_figure, unrendered
from support.once import Once
from support.run_folders import Finished


@pytest.fixture(autouse=True)
def few_figures(request: pytest.FixtureRequest) -> Iterator[None]:
    """Unless a test is marked ``figures``; ``figures("blank")`` draws all, and renders none."""
    if (marker := request.node.get_closest_marker("figures")) is None:
        with one_figure():
            yield
    elif marker.args == ("blank",):
        with unrendered():
            yield
    else:
        yield


@pytest.fixture
def finished(once: Once) -> Finished:
    """Finished small runs, made once in a session, of which each test has a copy."""
    return Finished(once)
