"""Many rows and clients: passes, chains, draws, and the exact global model."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections import Counter
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
import torch
from support.mixed_places import places
from support.paths import ROOT

from hierfl.convergence import rhat_and_ess
from hierfl.data.batch import Batch
from hierfl.data.formula.federate import from_formula
from hierfl.inference import fit
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.clients.scores import curvature
from hierfl.inference.evaluation.global_model import evaluate_global
from hierfl.inference.local.langevin.step import Langevin
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.options import Options
from hierfl.inference.run.fit import Fit
from hierfl.inference.run.inference_data import inference_data
from hierfl.inference.run.result import Run
from hierfl.metrics.normal_mixture import mean_difference
from hierfl.metrics.pooling import from_example_sums
from hierfl.models.mixed_effects import quadrature
from hierfl.models.mixed_effects.method import MixedEffects
from hierfl.models.mixed_effects.newton import PosteriorMode
from hierfl.models.mixed_effects.quadrature import marginal_log_likelihood, marginals
from hierfl.models.mixed_effects.shrinkage import shrinkage_table
from hierfl.models.mixed_effects.summary import effects_table
from hierfl.ppl.sigma_points import SigmaPoints


class Counted(MixedEffects):
    """Counts how often its model is asked."""

    asked = 0

    def model(self, batch: Batch) -> None:
        Counted.asked += 1
        super().model(batch)


@torch.no_grad()
def asked(clients: int, family: str) -> Counter[str]:
    """How often the model is asked in the parts of a run, of places of ten rows each."""
    df = places(10 * clients, clients).assign(site=np.repeat([f"s{j}" for j in range(clients)], 10))
    df = df if family == "gaussian" else df.assign(y=df.k)
    federation, design = from_formula(df, "y ~ 1 + x + (1 + x | site)", family=family)  # type: ignore[arg-type]
    method, found = Counted(design, chains=3, draws=10, thin=1), Counter[str]()
    ready = Fit(method, federation, Options(rounds=1, chunk=clients, dtype=torch.float64, splits=("train",)))
    parts: dict[str, Callable[[], object]] = {
        "round": ready.step,
        "posterior": ready.fitted,
        "evaluation": ready.evaluate,
        "draws": lambda: inference_data(ready.fitted(), 6, range(clients), False, 1e9),
        "effects": lambda: effects_table(ready.fitted()),
        "shrinkage": lambda: shrinkage_table(ready.fitted()),
    }
    for part, call in parts.items():
        Counted.asked = 0
        call()
        found[part] = Counted.asked
    return found


@pytest.mark.parametrize("family", ["gaussian", "poisson"])
def test_many_places_cost_no_more_passes_than_few(family: str) -> None:
    """A pass through the model serves all places of its plate: nothing asks it place by place.

    Pieces that bound the memory grow with the rows: 4,000 of them make three more than 200.
    """
    few, many = asked(20, family), asked(400, family)
    assert all(many[part] <= few[part] + 3 for part in few), (few, many)
    assert few["posterior"] < 20 or family == "poisson"  # (of a quadratic log joint no step asks anything)
    assert many["evaluation"] <= many["round"] + 3  # (its mean, its draws, and the global model's)


@pytest.mark.parametrize(
    ("draws", "apart", "width"), [(1, 3, 0.5), (7, 1, 1), (200, 1, 0.8), (50, 0, 1), (40, 50, 0.1)]
)
def test_the_mean_difference_of_a_mixture_is_that_of_all_pairs(draws: int, apart: float, width: float) -> None:
    """By both ways of getting it, equal and unequal spreads, to rounding: 1e-12 of about 1e3 sums."""
    rng = np.random.default_rng(draws)
    mean = torch.as_tensor(100 + apart * rng.normal(size=(draws, 3, 400 if draws < 50 else 20)))
    for std in (torch.full_like(mean, width), torch.as_tensor(width * rng.uniform(0.5, 1, mean.shape))):
        wanted = torch.zeros_like(mean[0])
        for k, m in itertools.product(range(draws), repeat=2):
            gap, both = mean[k] - mean[m], (std[k].square() + std[m].square()).sqrt()
            z = gap / both
            density = (-0.5 * z.square()).exp() / (2 * torch.pi) ** 0.5
            wanted += 2 * both * density + gap * (2 * torch.special.ndtr(z) - 1)
        assert torch.allclose(mean_difference(mean, std), wanted / draws**2, rtol=1e-12)


@pytest.mark.parametrize("d", [1, 2, 3, 5, 7])
def test_sigma_points_of_degree_five_have_all_moments_up_to_there(d: int) -> None:
    points = SigmaPoints(torch.float64, degree=5)
    x, w = points.normal("z", None, torch.Size((d,))).view(-1, d), points.weights(d)
    assert torch.isclose(w.sum(), torch.ones(()).double(), rtol=1e-14)
    for power in range(1, 6):
        for at in itertools.combinations_with_replacement(range(d), power):
            counts = [at.count(k) for k in range(d)]
            wanted = np.prod([0 if n % 2 else np.prod(range(n - 1, 0, -2)) for n in counts])
            assert torch.isclose(w @ x[:, list(at)].prod(1), torch.tensor(wanted, dtype=torch.float64), atol=1e-12)


def local_rows(rows: int, clients: int, random: str) -> ClientChunk:
    federation, design = from_formula(places(rows, clients), f"y ~ 1 + x + ({random} | site)")
    method, fed = MixedEffects(design, chains=3), federation.to("cpu", torch.float64)
    begin = InitialWeights.of(design, 0)
    shared = {k: v.double() for k, v in method.shared(begin).items()}
    own = {k: v.expand(clients, 1, *v.shape) for k, v in method.personal(begin).items()}
    order = sorted(range(clients), key=lambda j: -len(fed.train[j]))
    return PosteriorMode(method).run(ClientChunk(method, fed, order, 1, 0, shared, own), 0)


@pytest.mark.parametrize("random", ["1", "1 + x", "1 + x + u"])
def test_a_gaussian_places_information_is_that_of_its_marginal_likelihood(random: str) -> None:
    """Scores and observed information at sigma points, beside first and second derivatives of the exact marginal."""
    chunk = local_rows(60, 6, random)
    names = list(chunk.shared)
    known = curvature(chunk, names, "b", 0, 0, sigma_points=True)
    here = torch.cat([chunk.shared[k].flatten() for k in names])
    for row in range(len(chunk.clients)):
        one = chunk.part(row, row + 1)

        def height(theta: torch.Tensor, one: ClientChunk = one) -> torch.Tensor:
            parts = theta.split([one.shared[k].numel() for k in names])
            moved = {k: v.view_as(one.shared[k]) for k, v in zip(names, parts, strict=True)}
            return marginals(one.method, one.batch(), {**one.view, **moved}).sum()  # type: ignore[arg-type]

        wanted = torch.autograd.functional.hessian(height, here)
        slope = torch.autograd.functional.jacobian(height, here)
        assert torch.allclose(torch.cat([known.scores[k][row].flatten() for k in names]), slope, rtol=1e-8, atol=1e-8)
        assert torch.allclose(known.observed[row], -wanted, rtol=1e-8, atol=1e-8 * float(wanted.abs().max()))


def test_chains_on_a_quadratic_are_those_that_ask_the_model_at_every_step() -> None:
    chunk = local_rows(60, 6, "1 + x")
    how = {"metropolis": True, "metric": "b_root", "burn": 40, "target": 0.574, "start": "prior"}
    once = Langevin(["b"], 100, 0.5, around="b_mean", **how).run(chunk, 0).values
    always = Langevin(["b"], 100, 0.5, **how).run(chunk, 0).values
    for name in ("b_draws", "b_draws/stats"):
        assert torch.allclose(once[name], always[name], rtol=1e-8, atol=1e-8), name


def test_rhat_and_ess_are_arvizs() -> None:
    """Chains that mix well and badly, that stand still, hold ties, are cut short or have no number."""
    import arviz as az

    rng = np.random.default_rng(0)
    for chains, kept in ((2, 4), (3, 5), (4, 9), (2, 7), (10, 60), (4, 500)):
        x = rng.normal(size=(chains, kept, 40))
        for t in range(1, kept):
            x[:, t] += rng.uniform(-0.9, 0.99, 40) * x[:, t - 1]
            stays = rng.random((chains, 10)) < 0.5
            x[:, t, :10] = np.where(stays, x[:, t - 1, :10], x[:, t, :10])
        x[:, :, 10], x[:, :, 11], x[0, :, 12] = 1.0, np.round(x[:, :, 11]), x[0, :, 12] + 5
        x[:, :, 13], x[:, :, 14] = np.sign(x[:, :, 13]), 1e-12 * x[:, :, 14]
        data = az.convert_to_dataset({"x": x})
        with np.errstate(all="ignore"):
            wanted = az.rhat(data)["x"].values, az.ess(data)["x"].values
        for ours, theirs in zip(rhat_and_ess(x), wanted, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-10)
    x[0, 0, 3] = np.nan
    assert np.isnan(np.array(rhat_and_ess(x))[:, 3]).all()
    assert not np.isnan(np.array(rhat_and_ess(x))[:, :3]).any()


def finished(family: str = "gaussian") -> Run:
    df = places(300, 40).assign(y=lambda d: d.y if family == "gaussian" else d.k)
    federation, design = from_formula(df, "y ~ 1 + x + (1 + x | site)", family=family)  # type: ignore[arg-type]
    method = MixedEffects(design, chains=3, draws=10, thin=1)
    return fit(method, federation, 4, chunk=40, dtype=torch.float64, progress=False, evaluate_every=4)


@pytest.mark.parametrize("family", ["gaussian", "poisson"])
def test_a_places_draws_do_not_depend_on_who_is_drawn_beside_it(family: str) -> None:
    run = finished(family)
    data = run.posterior(draws=20)
    for name in run.fitted.federation.ids[::9]:
        alone = run.posterior(draws=20, clients=[name])
        at = np.flatnonzero(data.observed_data["client"].values == name)
        for group in ("posterior", "prior", "sample_stats"):
            for k, values in alone[group].data_vars.items():
                np.testing.assert_allclose(data[group][k].sel(client=[name]), values, rtol=1e-12, err_msg=k)
        for group in ("log_likelihood", "posterior_predictive"):
            np.testing.assert_allclose(data[group]["y"].isel(obs=at), alone[group]["y"], rtol=1e-12)


def test_the_gaussian_global_model_is_exact() -> None:
    """N(x beta, z^T Sigma z + sigma^2): mean negative log density, and CRPS, in closed form."""
    run = finished()
    fed, shared, method = run.fitted.federation, run.shared, run.fitted.method
    index = torch.cat(list(fed.train))
    x, z, _ = method.network.split(fed.x[index][None])
    sd, corr = shared["effects.log_sd"].exp(), shared["effects.corr"][0]
    rho = corr / (1 + corr**2).sqrt()
    sigma = sd[:, None] * sd * torch.stack([torch.stack([rho * 0 + 1, rho]), torch.stack([rho, rho * 0 + 1])])
    spread = ((z[0] @ sigma * z[0]).sum(1) + (2 * shared["effects.log_noise"]).exp()).sqrt()
    gap = fed.y[index] - x[0] @ shared["effects.beta"]
    found = from_example_sums(evaluate_global(run.fitted, index), "regression")
    normal = torch.distributions.Normal(0.0, 1.0)
    assert found["nll"] == pytest.approx(-float((normal.log_prob(gap / spread) - spread.log()).mean()), rel=1e-12)
    t = gap / spread
    crps = spread * (t * (2 * normal.cdf(t) - 1) + 2 * normal.log_prob(t).exp() - torch.pi**-0.5)
    assert found["crps"] == pytest.approx(float(crps.mean()), rel=1e-12)
    assert found["rmse"] == pytest.approx(float(gap.square().mean().sqrt()), rel=1e-12)


@pytest.mark.parametrize("family", ["gaussian", "poisson"])
def test_effects_and_shrinkage_do_not_depend_on_the_parts(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = finished(family)
    height, table, shrunk = marginal_log_likelihood(run), *effects_table(run.fitted)[:1], shrinkage_table(run.fitted)
    monkeypatch.setattr(quadrature, "NODES_PER_PASS", 1)  # (every place a part of its own)
    assert marginal_log_likelihood(run) == pytest.approx(height, rel=1e-12)
    pd.testing.assert_frame_equal(effects_table(run.fitted)[0], table, rtol=1e-8)
    pd.testing.assert_frame_equal(shrinkage_table(run.fitted), shrunk, rtol=1e-8)
    assert shrunk.client.tolist() == 2 * list(run.fitted.federation.ids)


def test_a_places_own_estimate_is_its_least_squares() -> None:
    run, df = finished(), places(300, 40)
    shrunk = shrinkage_table(run.fitted).set_index(["client", "effect"]).local
    known = 0
    for name, rows in df.groupby("site"):
        if len(rows) > 2:
            wanted = np.polyfit(rows.x, rows.y, 1)[::-1]
            np.testing.assert_allclose(shrunk.loc[name].to_numpy(), wanted, rtol=1e-4, atol=1e-4)
            known += 1
    assert known > 30


def test_the_script_of_the_sizes_runs() -> None:
    """The smallest of them, as it is run by hand for the committed figures."""
    script = ROOT / "experiments" / "results" / "mixed-effects" / "size.py"
    done = subprocess.run([sys.executable, str(script), "200x20"], capture_output=True, text=True, check=True)
    assert "200 rows, 20 clients" in done.stdout
