"""Log likelihoods by Laplace's approximation: the summary says so, and none is compared with one by quadrature."""

from __future__ import annotations

from typing import Any

import pytest
from support.mixed_families import counts

from hierfl import mixed_model


def test_models_are_compared_by_one_approximation() -> None:
    df = counts("binomial", 8)
    how: dict[str, Any] = {"family": "binomial", "draws": 0}
    intercepts, both = "y ~ x + (1 | site)", "y ~ x + (1 + x | site)"
    laplace = mixed_model(df, intercepts, nodes=1, **how)
    mixed = laplace.compare(mixed_model(df, both, **how))
    alike = laplace.compare(mixed_model(df, both, nodes=1, **how))
    assert mixed.statistic[1] == pytest.approx(alike.statistic[1], abs=1e-6)
    assert mixed.reference[1] == alike.reference[1] + "; both by Laplace's approximation"


def test_more_effects_than_have_nodes_are_said_to_be_approximated() -> None:
    """Quadrature is over up to three effects of a client."""
    df = counts("poisson", 8).assign(z=lambda d: d.x**2, w=lambda d: d.x**3)
    notes = [
        mixed_model(df, f"y ~ x + ({effects} || site)", family="poisson", draws=0, rounds=1).summary().notes
        for effects in ("1 + x + z", "1 + x + z + w")
    ]
    assert ["Laplace" in " ".join(lines) for lines in notes] == [False, True]
