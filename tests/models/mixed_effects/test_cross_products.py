"""The likelihood of a gaussian response from sums over rows, and arithmetic with derivatives."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.mixed import covariance, estimates, fitted, log_likelihood, table

from hierfl.data.formula.federate import from_formula
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.objective.elbo import elbo
from hierfl.inference.server.rules.base import AggregationContext
from hierfl.models.mixed_effects.likelihood.gaussian.closed import eliminated
from hierfl.models.mixed_effects.likelihood.gaussian.cross_products import at_points, polynomial
from hierfl.models.mixed_effects.likelihood.gaussian.elimination import eliminate
from hierfl.models.mixed_effects.likelihood.gaussian.entrywise import Entrywise
from hierfl.models.mixed_effects.likelihood.gaussian.row_sums import RowSums, clients_last
from hierfl.models.mixed_effects.likelihood.gaussian.taylor import Taylor
from hierfl.models.mixed_effects.likelihood.posterior import Conditional
from hierfl.models.mixed_effects.method import MixedEffects
from hierfl.models.mixed_effects.model.covariance import Covariance
from hierfl.models.mixed_effects.report.coefficients import satterthwaite
from hierfl.models.mixed_effects.report.summary import effects_table, standard_errors
from hierfl.models.mixed_effects.search.criterion import Surface
from hierfl.models.mixed_effects.search.loop import PopulationSearch
from hierfl.ppl.sigma_points import SigmaPoints
from hierfl.rng import generator


def rows_of(df, formula: str, **how) -> ClientChunk:
    """All clients as they begin, with their sums."""
    federation, design = from_formula(df, formula, **how)
    method, fed = MixedEffects(design), federation.to("cpu", torch.float64)
    begin, clients = InitialWeights.for_network(design, 0), federation.clients
    shared = {k: v.double() for k, v in method.shared(begin).items()}
    own = {k: v.expand(clients, 1, *v.shape) for k, v in method.personal(begin).items()}
    order = sorted(range(clients), key=lambda j: -len(fed.train[j]))
    chunk = RowSums(method).run(ClientChunk(method, fed, order, 1, 0, shared, own), 0)
    return Conditional(method).run(chunk, 0)


def sums_of(chunk: ClientChunk) -> tuple[torch.Tensor, torch.Tensor]:
    """G (m, m, S), and [n, sum log W, region] (3, S)."""
    return clients_last(chunk.values["gram"]), chunk.values["rows"].squeeze(1).mT.contiguous()


def test_arithmetic_knows_its_derivatives() -> None:
    at = torch.rand(4, generator=generator("taylor"), dtype=torch.float64) + 1

    def f(a, b, c, d):
        return ((a * b - c / d) * 3.0 + 2.0 - a).sqrt() + (a * d).log() - (-c).exp() / (b * b + 1.0)

    taylor = f(*Taylor.variables(at))
    value = lambda v: f(*v.unbind())  # noqa: E731
    assert float(taylor.value) == pytest.approx(float(value(at)), rel=1e-14)
    assert torch.allclose(taylor.slope, torch.autograd.functional.jacobian(value, at), rtol=1e-12)
    assert torch.allclose(taylor.bend, torch.autograd.functional.hessian(value, at), rtol=1e-12)


def test_polynomials_of_some_numbers_are_polynomials_of_all() -> None:
    """Computed from three of five numbers alone, as groups inside clients are, and then among all five."""
    at = torch.tensor([0.7, 1.3, -0.4, 0.2, 0.9], dtype=torch.float64)
    some = [3, 0, 2]

    def f(a, b, c):
        return Taylor.stack([(a * b + 2.0).sqrt() * torch.ones(2), (c * b).exp() * torch.arange(2.0)])

    every = Taylor.variables(at)
    wanted = f(*(every[k] for k in some))
    taylor = f(*Taylor.variables(at[some])).among([every[k] for k in some])
    for name in ("value", "slope", "bend"):
        assert torch.equal(getattr(taylor, name), getattr(wanted, name)), name


@pytest.mark.parametrize("random", ["1", "1 + x", "1 + x + u"])
def test_sums_say_the_joint_models_likelihood(random: str) -> None:
    """The ELBO of the Pyro model at the exact posterior, whose bound has equality: client by client, anywhere."""
    df = table(6).assign(u=lambda d: np.random.default_rng(0).normal(size=len(d)))
    chunk = rows_of(df, f"y ~ 1 + x + ({random} | site)")
    method = chunk.method
    rng = generator("anywhere")
    for _ in range(3):
        numbers = torch.randn(method.k, generator=rng, dtype=torch.float64)
        beta = torch.randn(2, generator=rng, dtype=torch.float64)
        parts = {f"effects.{k}": v for k, v in {**method.parts(numbers), "beta": beta}.items()}
        moved = ClientChunk(method, chunk.federation, chunk.clients, 1, 0, {**chunk.shared, **parts}, chunk.values)
        moved = Conditional(method).run(moved, 0)
        wanted = elbo(method, moved.batch(), moved.view, SigmaPoints(torch.float64, "cpu"))
        cross = at_points(method, *sums_of(chunk), numbers[None])[:, 0]
        t = torch.zeros(len(cross), 3, 3, dtype=torch.float64)
        up, across = torch.triu_indices(3, 3)
        t[:, up, across] = cross[:, :-1]
        t = t + t.triu(1).mT
        r = torch.cat([-beta, beta.new_ones(1)])
        assert torch.allclose(-0.5 * (cross[:, -1] + r @ t @ r), wanted, rtol=1e-9)


def test_the_polynomial_has_the_derivatives_of_the_points() -> None:
    chunk = rows_of(table(5), "y ~ 1 + x + (1 + x | site)")
    method, numbers = chunk.method, torch.tensor([0.9, -0.3, 0.5, 0.2], dtype=torch.float64)
    expansion = polynomial(method, *sums_of(chunk), numbers)
    value = lambda at: at_points(method, *sums_of(chunk), at[None])[:, 0].sum(0)  # noqa: E731
    assert torch.allclose(expansion["cross"].sum(0), value(numbers), rtol=1e-12)
    slope = torch.autograd.functional.jacobian(value, numbers)  # (c, k)
    assert torch.allclose(expansion["cross_1"].sum(0).T, slope, rtol=1e-8, atol=1e-8)
    bends = [torch.autograd.functional.hessian(lambda at, c=c: value(at)[c], numbers) for c in range(len(slope))]
    assert torch.allclose(expansion["cross_2"].sum(0).permute(2, 0, 1), torch.stack(bends), rtol=1e-7, atol=1e-7)


def test_known_standard_errors_are_weights() -> None:
    df = table(4).assign(se=lambda d: np.random.default_rng(1).uniform(0.5, 2, len(d)))
    chunk = rows_of(df, "y ~ 1 + x + (1 | site)", known_se="se")
    numbers = torch.tensor([0.7], dtype=torch.float64)
    surface = Surface(chunk.method)
    beta, _, height = surface.beta(at_points(chunk.method, *sums_of(chunk), numbers[None])[:, 0].sum(0), "ml", numbers)
    total, design = 0.0, chunk.method.network
    b = (beta / torch.tensor(design.fixed_units.scale)).numpy()
    b[0] += design.offset - b[1] * design.fixed_units.centre[1]
    for _, rows in df.groupby("site"):
        v = 0.49 * np.ones((len(rows), len(rows))) + np.diag(rows.se**2)
        gap = rows.y - b[0] - b[1] * rows.x
        total -= 0.5 * (np.linalg.slogdet(2 * math.pi * v)[1] + gap @ np.linalg.solve(v, gap))
    assert float(height) == pytest.approx(total, rel=1e-12)


def test_reml_is_the_integral_over_coefficients() -> None:
    """lme4's criterion, in the table's units: by numerical integration of the exact likelihood."""
    df = table(5, slope=False)
    run = fitted(df, "y ~ 1 + x + (1 | site)", population="reml", tol=1e-8)
    estimate, cov = estimates(run), covariance(run)
    at, sigma = estimate[["Intercept", "x"]].to_numpy(), estimate["sd(residual)"]
    best = log_likelihood(df, at, cov, sigma, ("1",))
    # A grid along what is uncorrelated, a standard error apart: of a normal density, exact.
    information = np.zeros((2, 2))
    for _, rows in df.groupby("site"):
        x = np.column_stack([np.ones(len(rows)), rows.x])
        information += x.T @ np.linalg.solve(cov + sigma**2 * np.eye(len(rows)), x)
    root, nodes = np.linalg.cholesky(np.linalg.inv(information)), np.arange(-7, 8)
    moved = [at + root @ np.array([a, b]) for a in nodes for b in nodes]
    logs = np.array([log_likelihood(df, beta, cov, sigma, ("1",)) - best for beta in moved])
    wanted = best + np.log(np.exp(logs).sum() * np.linalg.det(root))
    assert effects_table(run.fitted)[1]["log_likelihood"] == pytest.approx(wanted, abs=1e-6)


def test_a_message_says_nothing_of_rows_but_these_sums() -> None:
    """After the first round the rows are not read: the cost does not depend on how many there are."""
    chunk = rows_of(table(3), "y ~ 1 + x + (1 | site)")
    gram = chunk.values["gram"].squeeze(1)
    other = chunk.put({"gram": 2 * gram.unsqueeze(1)})
    again = RowSums(chunk.method).run(other, 0)
    assert torch.equal(again.values["gram"], other.values["gram"])


def test_other_clients_than_before_begin_the_search_again() -> None:
    """A sum over more clients is lower than that over fewer: no step would ever seem to go up."""
    chunk = rows_of(table(8), "y ~ 1 + x + (1 | site)")
    method, memory = MixedEffects(chunk.method.network, population="ml", draws=0), {}
    search, shared = PopulationSearch(method), {k: v for k, v in chunk.shared.items() if "draws" not in k}
    shared["effects.draws"] = torch.zeros(0, 4, dtype=torch.float64)
    names = list(shared)
    for number in range(1, 30):
        part = replace(chunk.part(4, 8) if number < 5 else chunk, shared=shared)
        total = {k: v.sum(0) for k, v in search.message(names, part).items()}
        count = len(part.clients)
        context = AggregationContext(count, torch.tensor(float(count)), number, lambda names: {}, memory, shared)
        shared = search.update(shared, total, context)
    assert method.finished(shared)
    whole = fitted(table(8), "y ~ 1 + x + (1 | site)").shared
    assert torch.allclose(shared["effects.root"], whole["effects.root"], rtol=1e-5)


def test_a_climb_that_ends_on_the_other_side_of_zero_says_the_same() -> None:
    """L's columns have no sign: estimates, standard errors and degrees of freedom have none either."""
    chunk = rows_of(table(12), "y ~ 1 + x + (1 + x | site)")
    method = MixedEffects(chunk.method.network, draws=0)
    search, ends = PopulationSearch(method), []
    for sign in (1.0, -1.0):
        shared = {**method.shared(InitialWeights.for_network(method.network, 0))}
        shared["effects.root"] = shared["effects.root"] * torch.tensor([sign, sign, 1.0]).double()
        shared["effects.at"] = torch.cat([shared["effects.root"], shared["effects.at"][3:]])
        memory: dict = {}
        for number in range(1, 60):
            total = {k: v.sum(0) for k, v in search.message([], replace(chunk, shared=shared)).items()}
            context = AggregationContext(12, torch.tensor(12.0), number, lambda names: {}, memory, shared)
            shared = search.update(shared, total, context)
        assert method.finished(shared)
        ends.append({k.removeprefix("effects."): v for k, v in shared.items()})
    first, second = ends
    for name in ("root", "beta", "curvature", "cross_1", "height"):
        assert torch.allclose(first[name], second[name], rtol=1e-5, atol=1e-5), name
    assert torch.allclose(standard_errors(method, first)[0], standard_errors(method, second)[0], rtol=1e-5)
    assert torch.allclose(satterthwaite(method, first), satterthwaite(method, second), rtol=1e-4)


@pytest.mark.parametrize("blocks", [(2,), (2, 1)])
def test_closed_derivatives_are_those_of_elimination_entry_by_entry(blocks: tuple[int, ...]) -> None:
    """At a covariance that is singular, too: the last deviation is zero."""
    of, rng = Covariance(blocks), generator("eliminated")
    columns = torch.randn(4, 9, sum(blocks) + 4, generator=rng, dtype=torch.float64)
    gram = (columns.mT @ columns).permute(1, 2, 0)
    at = torch.randn(of.entries + 1, generator=rng, dtype=torch.float64)
    at[-2] = 0.0
    numbers = Taylor.variables(at)
    closed = eliminated(of, gram, numbers[:-1], numbers[-1])
    entrywise = eliminate(Entrywise(of, gram, numbers[:-1], numbers[-1]))
    for actual, expected in zip(closed, entrywise, strict=True):
        for part in ("value", "slope", "bend"):
            assert torch.allclose(getattr(actual, part), getattr(expected, part), rtol=1e-11, atol=1e-11), part
