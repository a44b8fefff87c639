"""Guides with skewed marginals beside the optimum of their family, and beside posteriors that are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy import optimize, special, stats
from support.any_models import counts, normal, poisson
from support.gallery import load

import hierfl
from hierfl.data.column_batch import ColumnBatch
from hierfl.errors import UserError
from hierfl.models.any_model.names import BOUND, MEAN, PHASE, PRECISION, SHAPE, Phase

RARE = pd.DataFrame({"site": ["a", "a", "b", "c"], "y": [0.0, 1.0, 0.0, 0.0]})
#: the posterior of the rate is Gamma(A, B)
A, B = 2.0, 4.5
#: nodes and weights of a normal number
U = np.linspace(-10, 10, 4001)
W = stats.norm.pdf(U) / stats.norm.pdf(U).sum()
QUIET: dict[str, Any] = {"progress": False, "group": "site"}


def rate(batch: ColumnBatch) -> None:
    """A rate of few events."""
    of = pyro.sample("rate", dist.Gamma(1.0, 0.5))
    with batch.clients(), batch.data():
        pyro.sample("y", dist.Poisson(of), obs=batch["y"])


def bound(parameters: np.ndarray, centre: float, scale: float) -> float:
    """Of the family with these centre and scale, by quadrature of its own: mean, log sd, skew and tail."""
    mean, log_sd, skew, tail = parameters
    x, d = mean + np.exp(log_sd) * U, np.exp(tail)
    u = (x - centre) / scale
    taken = np.sinh(d * np.arcsinh(U) + skew)  # mean and sd under N(0, 1)
    mu = W @ taken
    sigma = np.sqrt(W @ taken**2 - mu**2)
    grown = d * np.arcsinh(u) + skew
    z = centre + scale * (np.sinh(grown) - mu) / sigma
    slope = tail + np.log(np.cosh(grown)) - 0.5 * np.log1p(u**2) - np.log(sigma)
    return float(W @ (A * z - B * np.exp(z) + slope) + log_sd + 0.5 * np.log(2 * np.pi * np.e))


@pytest.mark.cpu(4, "a fit of many draws")
def test_one_skewed_global_is_at_the_optimum_of_its_family() -> None:
    """To 1e-4 of the bound, and of the evidence to a twentieth of what a Gaussian is off."""
    fitted = hierfl.fit_model(rate, RARE, **QUIET, transforms="on", reweigh=False, fine_draws=4096, draws=4000)
    shape = fitted.run.shared[SHAPE][:, 0].tolist()
    log_sd = -0.5 * float(fitted.run.shared[PRECISION][0, 0].log())
    mine = np.array([float(fitted.run.shared[MEAN][0]), log_sd, *shape[2:]])
    best = optimize.minimize(lambda at: -bound(at, *shape[:2]), mine, method="BFGS", options={"gtol": 1e-9})
    assert bound(mine, *shape[:2]) == pytest.approx(-best.fun, abs=1e-5)
    np.testing.assert_allclose(mine, best.x, atol=3e-3)
    evidence = special.gammaln(A) - A * np.log(B)
    assert evidence + best.fun < 0.0413 / 14  # a Gaussian's is 0.0413 below
    constant = np.log(0.5) - special.gammaln(RARE["y"] + 1).sum()
    assert float(fitted.run.shared[BOUND]) - constant == pytest.approx(-best.fun, abs=1e-4)
    known, draws = stats.gamma(A, scale=1 / B), fitted.globals["rate"]
    assert draws.mean() == pytest.approx(known.mean(), abs=0.06 * known.std())
    assert draws.std() == pytest.approx(known.std(), rel=0.05)
    assert known.cdf(np.quantile(draws, [0.05, 0.95])) == pytest.approx([0.05, 0.95], abs=0.012)
    assert "largest skew -0.3" in str(fitted.summary())


def test_where_all_is_gaussian_nothing_is_transformed() -> None:
    """Two rounds, and the bits of a fit without."""
    transformed, other = (
        hierfl.fit_model(normal, counts((7, 4, 9)), **QUIET, transforms=of, reweigh=False) for of in ("on", "off")
    )
    assert transformed.run.rounds == other.run.rounds == 2
    assert SHAPE not in other.run.shared
    assert not transformed.run.shared[SHAPE][2:].any()
    for name, value in other.run.shared.items():
        assert torch.equal(value, transformed.run.shared[name]), name
    assert "sinh" not in str(transformed.summary())


def test_the_first_climb_has_the_bits_of_a_fit_without() -> None:
    df = counts((7, 4, 9))
    transformed, other = (
        hierfl.fit_model(poisson, df, **QUIET, transforms=of, reweigh=False, rounds=3) for of in ("on", "off")
    )
    assert int(transformed.run.shared[PHASE]) == Phase.ROUGH
    for name, value in other.run.shared.items():
        assert torch.equal(value, transformed.run.shared[name]), name


@pytest.mark.cpu(15, "three fits, one of many points")
@pytest.mark.slow
@pytest.mark.parametrize("name", ["eight_schools", "eight_schools_noncentred"])
def test_eight_schools_have_a_standard_deviation_near_zero(name: str) -> None:
    """The 5 % quantile of tau, 0.24 by NUTS, before anything is reweighted; and the posterior with transforms on."""
    page, how = load(name), {"progress": False, "draws": 4000}
    off, on = (
        hierfl.fit_model(page.model, page.data(), group=page.GROUP, transforms=of, reweigh=False, **how)
        for of in ("off", "on")
    )
    low = [np.quantile(fitted.globals["tau"], 0.05) for fitted in (off, on)]
    assert low[0] > 0.7
    assert low[1] < 0.55
    assert float(on.run.shared[BOUND]) > float(off.run.shared[BOUND]) + 0.03
    whole = hierfl.fit_model(page.model, page.data(), group=page.GROUP, transforms="on", worth=4000, points=2000, **how)
    tau = whole.globals["tau"]
    assert tau.mean() == pytest.approx(3.60, rel=0.05)
    assert tau.std() == pytest.approx(3.22, rel=0.08)
    assert whole.globals["mu"].mean() == pytest.approx(4.40, abs=0.2)
    theta = whole.clients["theta"].std(0)
    np.testing.assert_allclose(theta, [5.6, 4.6, 5.3, 4.8, 4.6, 4.8, 5.0, 5.3], rtol=0.1)


@pytest.mark.parametrize(
    ("how", "line"),
    [
        ({"guide": "low-rank"}, "transforms='on' is of a guide of full covariance"),
        ({"guide": "point"}, "gives globals' posteriors a shape"),
        ({"transforms": "maybe"}, "transforms"),
    ],
)
def test_what_has_no_transforms_is_one_line(how: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError, match=line) as raised:
        hierfl.fit_model(rate, RARE, **QUIET, **{"transforms": "on", **how})
    assert "\n" not in str(raised.value)


def test_by_default_what_is_not_reweighted_is_transformed() -> None:
    for how, shaped in (
        ({}, False), ({"reweigh": False}, True), ({"guide": "diagonal", "most_globals": 0}, True),
        ({"guide": "point"}, False), ({"guide": "low-rank", "reweigh": False}, False),
    ):  # fmt: skip
        fitted = hierfl.fit_model(rate, RARE, **QUIET, rounds=1, **how)
        assert (SHAPE in fitted.run.shared) == shaped, how
