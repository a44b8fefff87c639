"""Labels that one client alone has are named where data are loaded."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from hierfl import Federation


def loaded(y: list[str], client: list[str], caplog: pytest.LogCaptureFixture) -> list[str]:
    """What loading such rows says."""
    caplog.clear()
    with caplog.at_level(logging.WARNING, "hierfl"):
        x = np.linspace(0, 1, len(y))[:, None]
        Federation.from_arrays(x, np.array(y), client, test=0.0, validation=0.0, name="photos")
    return [record.getMessage() for record in caplog.records]


def test_a_label_at_one_client_alone(caplog: pytest.LogCaptureFixture) -> None:
    y, client = ["cat", "dog"] * 6, [name for name in "abc" for _ in range(4)]
    assert loaded(y, client, caplog) == []
    assert loaded([*y, "dgo"], [*client, "b"], caplog) == ["photos: label 'dgo' occurs at client 'b' alone"]
    # Two clients, or labels that are mostly one client's own, are no slip.
    assert loaded(["cat", "dog", "cat", "cat"], ["a", "a", "b", "b"], caplog) == []
    assert loaded(["x", "y", "z"] * 2, ["a", "b", "c"] * 2, caplog) == []
