"""A factor that crosses the clients, of other responses than gaussian: Laplace's approximation of all effects."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import gammaln
from support.crossed import aggression

from hierfl import mixed_model
from hierfl.data.formula.federate import from_formula
from hierfl.errors import UserError
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.method.initial import InitialWeights
from hierfl.models.mixed_effects.likelihood.quadrature.crossed import cells_at
from hierfl.models.mixed_effects.likelihood.quadrature.stencil import derivatives, size, stencil
from hierfl.models.mixed_effects.method import MixedEffects

FORMULA = "yes ~ anger + (1 | person) + (1 | item)"
#: glmer(FORMULA, aggression(), family = binomial) with optimizer = "bobyqa", rhoend = 1e-8: log likelihood,
#: coefficients and sds, standard errors, ranef(m)$item[1:6, ]
GLMER = (
    -1326.0049109, [-1.5060101881, 0.0557935019, 1.39894713, 0.92793195], [0.6296699248, 0.0281671955],
    [1.31826683, -0.11906786, 0.63619473, 1.72600512, -0.11906786, 0.43526327],
)  # fmt: skip


def few(persons: int = 25, items: int = 6) -> pd.DataFrame:
    df = aggression()
    return df[df.person.isin(df.person.unique()[:persons]) & df.item.isin(df.item.unique()[:items])].reset_index(
        drop=True
    )


@pytest.mark.cpu(8, "a climb of some sixteen rounds, 2,400 rows at thirteen points each")
def test_aggression_as_glmer_says() -> None:
    height, estimates, errors, modes = GLMER
    how: dict = {"client": "person", "family": "binomial", "nodes": 1, "population": "ml", "draws": 0}
    fitted = mixed_model(aggression(), FORMULA, **how)
    table = fitted.summary().table
    assert fitted.log_likelihood == pytest.approx(height, abs=1e-3)
    assert (np.abs(table.estimate[:2] - estimates[:2]) < 0.01 * np.array(errors)).all()
    np.testing.assert_allclose(table.estimate[2:], estimates[2:], rtol=0.01)
    np.testing.assert_allclose(table.standard_error[:2], errors, rtol=0.01)
    np.testing.assert_allclose(fitted.run.shared["effects.crossed"][1:7, 0], modes, atol=2e-3)


def laplace(theta: np.ndarray, df: pd.DataFrame, family: str) -> float:
    """Of all effects at once, densely: theta = [intercept, slope, log sd of persons, log sd of items]."""
    person, item = (pd.get_dummies(df[name]).to_numpy(dtype=float) for name in ("person", "item"))
    z = np.hstack([np.exp(theta[2]) * person, np.exp(theta[3]) * item])
    fixed, y = theta[0] + theta[1] * df.anger.to_numpy(), df.yes.to_numpy(dtype=float)

    def terms(eta: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        if family == "poisson":
            rate = np.exp(eta)
            return y * eta - rate - gammaln(y + 1), y - rate, rate
        p = 1 / (1 + np.exp(-eta))
        return y * eta - np.logaddexp(0, eta), y - p, p * (1 - p)

    u = np.zeros(z.shape[1])
    for _ in range(50):
        _, slope, weight = terms(fixed + z @ u)
        curvature = np.eye(len(u)) + (z.T * weight) @ z
        step = np.linalg.solve(curvature, z.T @ slope - u)
        u += step
    value, _, weight = terms(fixed + z @ u)
    curvature = np.eye(len(u)) + (z.T * weight) @ z
    return float(value.sum() - 0.5 * u @ u - 0.5 * np.linalg.slogdet(curvature)[1])


@pytest.mark.parametrize("family", ["binomial", pytest.param("poisson", marks=pytest.mark.slow)])
@pytest.mark.cpu(8, "a climb, and a referee's")
def test_with_one_node_it_is_laplaces_approximation_of_all_effects(family: str) -> None:
    df = few()
    df["yes"] *= 1 if family == "binomial" else 1 + np.arange(len(df)) % 4
    how: dict = {"client": "person", "family": family, "nodes": 1, "population": "ml", "draws": 0}
    fitted = mixed_model(df, FORMULA, **how)
    table = fitted.summary().table
    at = np.concatenate([table.estimate[:2], np.log(table.estimate[2:])])
    assert fitted.log_likelihood == pytest.approx(laplace(at, df, family), abs=1e-6)
    best = minimize(lambda theta: -laplace(theta, df, family), at + 0.01, method="Nelder-Mead", options={
        "xatol": 1e-7, "fatol": 1e-10, "maxiter": 4000, "maxfev": 4000,
    })  # fmt: skip
    assert fitted.log_likelihood == pytest.approx(-best.fun, abs=1e-6)
    assert (np.abs(best.x - at)[:2] < 0.01 * table.standard_error[:2].to_numpy()).all()
    np.testing.assert_allclose(np.exp(best.x[2:]), table.estimate[2:], rtol=2e-3)


def test_standard_errors_are_of_the_curvature() -> None:
    df = few()
    how: dict = {"client": "person", "family": "binomial", "nodes": 1, "population": "ml", "draws": 0}
    table = mixed_model(df, FORMULA, **how).summary().table
    at = np.concatenate([table.estimate[:2], np.log(table.estimate[2:])])
    unit, hessian = np.concatenate([table.standard_error[:2], [0.2, 0.4]]) * 0.05, np.zeros((4, 4))

    def height(i: int, k: int, a: int, b: int) -> float:
        move = np.zeros(4)
        move[i] += a * unit[i]
        move[k] += b * unit[k]
        return laplace(at + move, df, "binomial")

    for i in range(4):
        for k in range(4):
            corners = height(i, k, 1, 1) - height(i, k, 1, -1) - height(i, k, -1, 1) + height(i, k, -1, -1)
            hessian[i, k] = -corners / (4 * unit[i] * unit[k])
    errors = np.sqrt(np.linalg.inv(hessian).diagonal())
    np.testing.assert_allclose(table.standard_error[:2], errors[:2], rtol=2e-3)


@pytest.mark.parametrize("nodes", [1, 15])
@pytest.mark.parametrize("formula", [FORMULA, "yes ~ anger + (1 | person) + (1 + anger | item)"])
def test_derivatives_in_items_effects(nodes: int, formula: str) -> None:
    """With one node they are those of the height at the mode, which follows; of no other number."""
    federation, design = from_formula(few(5, 3), formula, family="binomial", client="person")
    method = MixedEffects(design, nodes=nodes)
    begin = InitialWeights.for_network(design, 0)
    shared = {k: v.double() for k, v in method.shared(begin).items()}
    own = {k: v.expand(5, 1, *v.shape) for k, v in method.personal(begin).items()}
    chunk = ClientChunk(method, federation.to("cpu", torch.float64), range(5), 1, 0, shared, own)
    m, step = method.above[0].columns, 1e-4
    middle = 0.3 * torch.sin(torch.arange(m, dtype=torch.float64))
    w = torch.cat([middle[None], middle + step * torch.eye(m), middle - step * torch.eye(m)])
    points = {k: v.expand(len(w), *v.shape) for k, v in method.parts(shared["effects.at"]).items()}
    cells = cells_at(method, chunk, points, w)  # (S, M, cells)
    up, down = cells[:, 1 : 1 + m], cells[:, 1 + m :]
    if nodes > 1:
        numeric = (up[..., 0] - down[..., 0]) / (2 * step)
        torch.testing.assert_close(cells[:, 0, 1 : 1 + m], numeric, rtol=1e-4, atol=1e-6)
    rows, columns = torch.triu_indices(m, m)
    bend = -(up[..., 1 : 1 + m] - down[..., 1 : 1 + m]) / (2 * step)
    torch.testing.assert_close(cells[:, 0, 1 + m :], bend[:, rows, columns], rtol=1e-3, atol=1e-5)


def test_a_stencil_knows_parabolas_and_more() -> None:
    steps = stencil(3)
    assert len(steps) == size(3)
    a, b, c = steps.unbind(-1)
    value, slope, bend = derivatives(2 + a - 3 * b + 4 * a * c - 5 * c**2 + b**2 + 7 * a**4, 3)
    assert float(value) == 2
    torch.testing.assert_close(slope, torch.tensor([1.0, -3.0, 0.0]).double(), rtol=0, atol=1e-9)
    expected = torch.tensor([[0.0, 0.0, 4.0], [0.0, 2.0, 0.0], [4.0, 0.0, -10.0]]).double()
    torch.testing.assert_close(bend, expected, rtol=0, atol=1e-3)


@pytest.mark.cpu(20, "a climb, restricted errors and an exploration")
def test_draws_and_what_follows() -> None:
    df = few()
    how: dict = {"client": "person", "family": "binomial"}
    fitted = mixed_model(df, FORMULA, draws=400, **how)
    at = fitted.run.shared["effects.crossed"][1:, 0].numpy()
    effects: Any = fitted.ranef("item")
    assert (np.abs(effects["mean"] - at) < 0.5 * effects["sd"]).all()
    assert ((effects["sd"] > 0.2) & (effects["sd"] < 1.5)).all()
    rows = df.head(2).assign(item=["i00", "new"])
    predicted = fitted.predict(rows)
    assert predicted["mean"].between(0, 1).all()
    assert len(fitted.predict(rows, level="new")) == 2
    with pytest.raises(UserError, match="or that cross them"):
        mixed_model(df, FORMULA, population="reml", **how)


@pytest.mark.cpu(6, "a fit with draws")
def test_draws_are_of_points_that_were_reached() -> None:
    """Of items that hardly differ: far from the mode a parabola of their effects says any height."""
    rng = np.random.default_rng(3)
    df = pd.DataFrame({"site": np.repeat([f"s{k}" for k in range(6)], 40), "x": rng.normal(size=240)})
    df["k"] = rng.poisson(np.exp(0.3 + 0.4 * df.x + np.repeat(rng.normal(size=6) * 0.5, 40)))
    df["item"] = rng.integers(1, 13, 240)
    fit = mixed_model(df, "k ~ x + (1 | site) + (1 | item)", family="poisson", draws=20, nodes=1)
    table, numbers = fit.summary().table.set_index("effect"), fit.summary().numbers
    assert table.upper["sd(Intercept | item)"] < 1
    assert numbers["effective_points"] > 100
    assert fit.ranef("item")["mean"].abs().max() < 1
