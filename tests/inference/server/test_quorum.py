"""How likely a quorum is, and when it is refused."""

from __future__ import annotations

import math

import pytest
from scipy.optimize import brentq
from scipy.stats import binom

from hierfl import UserError
from hierfl.inference.server.participation import check_participation


@pytest.mark.parametrize(
    ("clients", "probability", "least"), [(10, 0.1, 2), (2, 0.1, 2), (100, 0.01, 1), (1000, 0.5, 500), (3, 1.0, 3)]
)
def test_participation_that_happens_is_let_in(clients: int, probability: float, least: int) -> None:
    check_participation(clients, probability, least)
    assert binom.sf(least - 1, clients, probability) > 1e-3  # what is let in happens within a run


def test_the_chance_of_a_quorum_is_the_binomials() -> None:
    """Refused just where 10,000 draws would fail more often than once in a hundred million rounds."""
    chance = -math.log(1e-8) / 10_000
    for clients, least in ((5, 5), (12, 3)):
        edge = brentq(lambda p, n=clients, k=least: binom.sf(k - 1, n, p) - chance, 1e-9, 0.9, xtol=1e-14)
        check_participation(clients, edge * 1.001, least)
        with pytest.raises(UserError, match="practically never report together"):
            check_participation(clients, edge * 0.999, least)
