"""First steps of a climb, and the server's derivatives, beside what they stand for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from hierfl import mixed_model
from hierfl.models.mixed_effects.likelihood.gaussian.likelihood import Gaussian
from hierfl.models.mixed_effects.search import early_steps
from hierfl.models.mixed_effects.search.criterion import Surface
from hierfl.models.mixed_effects.search.phases import to_estimates


def rows(clients: int = 5, each: int = 12, seed: int = 4) -> pd.DataFrame:
    """Intercepts and slopes vary."""
    rng = np.random.default_rng(seed)
    who, x = np.repeat(np.arange(clients), each), rng.normal(size=clients * each)
    b = rng.normal(size=(clients, 2)) * [0.8, 0.4]
    y = 1 + 0.5 * x + b[who, 0] + b[who, 1] * x + rng.normal(size=len(who))
    return pd.DataFrame({"site": [f"s{j}" for j in who], "x": x, "y": y, "seen": (y > 1).astype(float)})


def points(monkeypatch: pytest.MonkeyPatch, formula: str, **how: Any) -> tuple[list[Tensor], Any]:
    """Where a climb looked, and the fit."""
    seen: list[Tensor] = []
    ask = to_estimates.ToEstimates.ask
    with monkeypatch.context() as patch:
        patch.setattr(to_estimates.ToEstimates, "ask", lambda own: seen.append(ask(own)["at"]) or ask(own))
        return seen, mixed_model(rows(), formula, draws=0, **how)


def test_the_first_step_has_the_posteriors_second_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    """E b b^T and E |residual|^2 of dense matrices, with flat coefficients among what is not known."""
    (at, *_), fit = points(monkeypatch, "y ~ x + (1 + x | site)", population="reml")
    df, design = rows(), fit.method.network
    units = design.fixed_units
    x = np.column_stack([np.ones(len(df)), (df.x - units.centre[1]) / units.scale[1]])
    first = fit.method.first_sd().numpy()
    s2 = float((2 * fit.method.response_family.starts["log_noise"]).exp())
    z = np.zeros((len(df), 10))
    for k, site in enumerate(df.site.str[1:].astype(int)):
        z[k, 2 * site : 2 * site + 2] = x[k]
    w, prior = np.hstack([x, z]), np.concatenate([[0.0, 0.0], np.tile(first**-2, 5)])
    covariance = np.linalg.inv(w.T @ w / s2 + np.diag(prior))
    mean = covariance @ w.T @ (df.y - design.offset) / s2
    b, spread = mean[2:].reshape(5, 2), covariance[2:, 2:].reshape(5, 2, 5, 2)
    moments = sum(np.outer(b[j], b[j]) + spread[j, :, j] for j in range(5)) / 5
    left = ((df.y - design.offset - w @ mean) ** 2).sum() + np.trace(w @ covariance @ w.T)
    root = fit.method.covariance.matrix(at[:3]).numpy()
    np.testing.assert_allclose(root @ root.T, moments, rtol=1e-9)
    assert float(at[3]) == pytest.approx(0.5 * np.log(left / len(df)), rel=1e-9)


@pytest.mark.parametrize(
    ("formula", "how"),
    [("y ~ x + (1 | site)", {}), ("y ~ x + (1 + x | site)", {}), ("seen ~ x + (1 | site)", {"family": "binomial"})],
)
def test_estimates_are_those_of_newtons_steps_alone(
    formula: str, how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, fit = points(monkeypatch, formula, **how)
    monkeypatch.setattr(to_estimates, "early", lambda method, climb, counts: climb)
    alone, other = points(monkeypatch, formula, **how)
    assert len(seen) <= len(alone)
    assert fit.log_likelihood == pytest.approx(other.log_likelihood, abs=1e-10)
    # Either climb ends where 1e-6 standard errors are left at most.
    torch.testing.assert_close(fit.run.shared["effects.root"], other.run.shared["effects.root"], rtol=0, atol=2e-6)


def test_a_logarithms_change_is_its_derivative(monkeypatch: pytest.MonkeyPatch) -> None:
    """dL / dx by differences, L T(x) at x = 0."""
    _, fit = points(monkeypatch, "y ~ x + (1 + x | site)")
    covariance, at = fit.method.covariance, torch.tensor([0.7, 0.2, 0.5]).double()

    def moved(x: Tensor) -> Tensor:
        change = covariance.matrix(x)
        return covariance.of_matrix(covariance.matrix(at) @ (change.tril(-1) + change.diagonal().exp().diag()))

    wanted = torch.autograd.functional.jacobian(moved, torch.zeros(3).double())
    torch.testing.assert_close(early_steps.turn(covariance, at), wanted)


@pytest.mark.parametrize("population", ["ml", "reml"])
def test_the_servers_derivatives_are_those_of_its_heights(population: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gaps: list[float] = []
    own = Surface.expansion

    def both(surface: Surface, *given: Any, **more: Any) -> Any:
        exact = own(surface, *given, **more)
        with monkeypatch.context() as patch:
            patch.setattr(Gaussian, "derivatives", lambda *_: None)
            derived = own(surface, *given, **more)
        gaps.extend(float(((a - b).abs() / (1 + b.abs())).max()) for a, b in zip(exact, derived, strict=True))
        return exact

    monkeypatch.setattr(Surface, "expansion", both)
    mixed_model(rows(), "y ~ x + (1 + x | site)", draws=0, population=population)
    assert gaps
    assert max(gaps) < 1e-11
