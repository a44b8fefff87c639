"""Closed derivatives of marginal likelihoods beside autograd, which differentiates row by row."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from hierfl.data.formula.federate import from_formula
from hierfl.inference.clients.checks import check_rows
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.method.initial import InitialWeights
from hierfl.models.mixed_effects.likelihood.quadrature import integral
from hierfl.models.mixed_effects.likelihood.quadrature.derivatives import in_closed_form
from hierfl.models.mixed_effects.method import MixedEffects
from hierfl.models.mixed_effects.model.names import fixed_values


def rows() -> pd.DataFrame:
    """Five clients of 4 to 16 rows."""
    rng = np.random.default_rng(5)
    who = np.repeat(np.arange(5), [4, 7, 10, 13, 16])
    x, z = rng.normal(size=(2, len(who)))
    k, failures = rng.integers(0, 4, (2, len(who)))
    y = (k > 1).astype(float)
    return pd.DataFrame(
        {"site": [f"s{j}" for j in who], "x": x, "z": z, "k": k, "y": y, "n": k + failures + 1, "w": 1 + y}
    )


def asked(formula: str, family: str, nodes: int, entries: list[float], **more: str):
    """A method, its clients, and all shared values at numbers (k,) that are not the estimates."""
    federation, design = from_formula(rows(), formula, family=family, **more)
    method = MixedEffects(design, nodes=nodes)
    start = InitialWeights.for_network(design, 0)
    shared = {k: v.double() for k, v in method.shared(start).items()}
    everyone = list(range(federation.clients))[::-1]
    own = {k: v.expand(len(everyone), 1, *v.shape) for k, v in method.personal(start).items()}
    chunk = ClientChunk(method, federation.to(dtype=torch.float64), everyone, 1, 0, shared, own)
    numbers = torch.cat([torch.tensor(entries).double(), torch.linspace(-0.3, 0.4, len(design.fixed)).double()])
    assert in_closed_form(method, list(method.sizes))
    return method, chunk, lambda at: {**fixed_values(shared), **method.parts(at)}, numbers


@pytest.mark.parametrize(
    ("formula", "family", "nodes", "entries", "more"),
    [
        ("y ~ x + z + (1 | site)", "binomial", 1, [0.8], {}),
        ("y ~ x + (1 | site)", "binomial", 3, [0.0], {}),
        ("k ~ x + offset(z) + (1 | site) + (0 + z | site)", "poisson", 4, [0.5, 0.3], {"weights": "w"}),
    ],
)  # fmt: skip
def test_derivatives_of_sums_are_those_of_rows(
    formula: str, family: str, nodes: int, entries: list[float], more: dict[str, str]
) -> None:
    method, chunk, values, numbers = asked(formula, family, nodes, entries, **more)
    ways = (integral._closed_form, integral._by_autograd)
    closed, differentiated = (way(method, chunk, list(method.sizes), values(numbers)) for way in ways)
    for name, value in differentiated.items():
        assert torch.allclose(closed[name], value, rtol=1e-10, atol=1e-10), name


@pytest.mark.parametrize(
    ("formula", "entries"), [("y ~ x + (1 + x | site)", [0.8, -0.3, 0.5]), ("p(k, n) ~ x + (1 | site)", [0.8])]
)
def test_derivatives_are_those_of_heights(formula: str, entries: list[float]) -> None:
    """By differences: autograd of such densities, twice, loads torch's compiler, 5 CPU s."""
    method, chunk, values, numbers = asked(formula, "binomial", 3, entries)
    step = 1e-4 * torch.eye(len(numbers)).double()
    points = torch.cat([numbers[None], numbers + step, numbers - step])
    heights = integral.heights_at(method, chunk, values(points))  # (S, 1 + 2 k)
    expansion = integral.expansion(method, chunk, list(method.sizes), values(numbers))
    assert torch.allclose(expansion["height"], heights[:, 0], rtol=1e-9)
    up, down = (
        integral.expansion(method, chunk, list(method.sizes), values(numbers + sign * step[0])) for sign in (1, -1)
    )
    ahead, behind = heights[:, 1:].chunk(2, 1)
    assert torch.allclose(expansion["slope"], (ahead - behind) / 2e-4, atol=1e-6)
    assert torch.allclose(expansion["curvature"][:, 0], (down["slope"] - up["slope"]) / 2e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("formula", "family"), [("y ~ x + (1 + x | site)", "gaussian"), ("k ~ x + (1 | site)", "poisson")]
)
def test_a_formula_does_not_mix_clients(formula: str, family: str) -> None:
    """What a fit of another network asks before it begins."""
    federation, design = from_formula(rows(), formula, family=family)
    method = MixedEffects(design)
    start = InitialWeights.for_network(design, 0)
    shared = {k: v.double() for k, v in method.shared(start).items()}
    check_rows(method, federation.to(dtype=torch.float64), shared, method.personal(start))
