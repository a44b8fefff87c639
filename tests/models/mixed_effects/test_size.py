"""Many rows and clients: passes, draws, and the exact global model."""

from __future__ import annotations

import itertools
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from support.mixed import covariance, estimates
from support.mixed_places import places
from support.paths import ROOT

from hierfl.arviz_io import of_clients
from hierfl.convergence import rhat_and_ess
from hierfl.data.formula.federate import from_formula
from hierfl.inference import fit
from hierfl.inference.evaluation.global_model import evaluate_global
from hierfl.inference.run.result import Run
from hierfl.metrics.normal_mixture import mean_difference
from hierfl.metrics.pooling import from_example_sums
from hierfl.models.mixed_effects.likelihood.gaussian import cross_products
from hierfl.models.mixed_effects.likelihood.quadrature import draws as quadrature_draws
from hierfl.models.mixed_effects.likelihood.quadrature import integral as quadrature
from hierfl.models.mixed_effects.method import MixedEffects
from hierfl.models.mixed_effects.report import shrinkage
from hierfl.models.mixed_effects.report.shrinkage import shrinkage_table
from hierfl.models.mixed_effects.report.summary import effects_table
from hierfl.ppl.sigma_points import SigmaPoints


@pytest.mark.parametrize(
    ("draws", "apart", "width"), [(1, 3, 0.5), (7, 1, 1), (200, 1, 0.8), (50, 0, 1), (40, 50, 0.1)]
)
def test_the_mean_difference_of_a_mixture_is_that_of_all_pairs(draws: int, apart: float, width: float) -> None:
    """By both ways of getting it, equal and unequal spreads, to rounding: 1e-12 of about 1e3 sums."""
    rng = np.random.default_rng(draws)
    mean = torch.as_tensor(100 + apart * rng.normal(size=(draws, 3, 400 if draws < 50 else 20)))
    for std in (torch.full_like(mean, width), torch.as_tensor(width * rng.uniform(0.5, 1, mean.shape))):
        wanted = torch.zeros_like(mean[0])
        for k in range(draws):
            gap, both = mean[k] - mean, (std[k].square() + std.square()).sqrt()
            z = gap / both
            density = (-0.5 * z.square()).exp() / (2 * torch.pi) ** 0.5
            wanted += (2 * both * density + gap * (2 * torch.special.ndtr(z) - 1)).sum(0)
        assert torch.allclose(mean_difference(mean, std), wanted / draws**2, rtol=1e-12)


@pytest.mark.parametrize("d", [1, 2, 3, 5, 7])
def test_sigma_points_have_all_moments_up_to_three(d: int) -> None:
    x = SigmaPoints(torch.float64).normal("z", None, torch.Size((d,))).view(-1, d)
    for power in range(1, 4):
        for at in itertools.combinations_with_replacement(range(d), power):
            counts = [at.count(k) for k in range(d)]
            wanted = np.prod([0 if n % 2 else np.prod(range(n - 1, 0, -2)) for n in counts])
            assert torch.isclose(x[:, list(at)].prod(1).mean(), torch.tensor(wanted, dtype=torch.float64), atol=1e-12)


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
    chain = x[:1]  # ArviZ has no R-hat of one chain, whose halves are compared here
    np.testing.assert_allclose(
        rhat_and_ess(chain)[1], az.ess(az.convert_to_dataset({"x": chain}))["x"].values, rtol=1e-10
    )
    assert (rhat_and_ess(chain)[0][15:] >= 0.99).all()
    drifting = chain + np.linspace(0, 20, 500)[:, None]
    assert (rhat_and_ess(drifting)[0] > 1.5).all()
    x[0, 0, 3] = np.nan
    assert np.isnan(np.array(rhat_and_ess(x))[:, 3]).all()
    assert not np.isnan(np.array(rhat_and_ess(x))[:, :3]).any()


def finished(
    family: str = "gaussian", draws: int = 40, chunk: int = 40, size: tuple[int, int] = (300, 40), random: str = "1 + x"
) -> Run:
    df = places(*size).assign(y=lambda d: d.y if family == "gaussian" else d.k)
    federation, design = from_formula(df, f"y ~ 1 + x + ({random} | site)", family=family)  # type: ignore[arg-type]
    method = MixedEffects(design, draws=draws)
    return fit(method, federation, 100, chunk=chunk, dtype=torch.float64, progress=False, evaluate_every=100)


@pytest.mark.parametrize("family", ["gaussian", pytest.param("poisson", marks=pytest.mark.slow)])
def test_a_places_draws_do_not_depend_on_who_is_drawn_beside_it(family: str) -> None:
    run = finished(family, size=(150, 20))
    data = run.posterior(draws=20)
    for name in run.fitted.federation.ids[::9]:
        alone = run.posterior(draws=20, clients=[name])
        at = np.flatnonzero(data.observed_data["client"].values == name)
        for group in ("posterior", "prior", "sample_stats"):
            for k, values in of_clients(alone, group).data_vars.items():
                np.testing.assert_allclose(data[group][k].sel(client=[name]), values, rtol=1e-12, err_msg=k)
        for group in ("log_likelihood", "posterior_predictive"):
            np.testing.assert_allclose(data[group]["y"].isel(obs=at), alone[group]["y"], rtol=1e-12)


def test_the_gaussian_global_model_is_exact() -> None:
    """N(x beta, z^T Sigma z + sigma^2): mean negative log density, and CRPS, in closed form at the estimates."""
    run = finished(draws=0)
    fed, estimate = run.fitted.federation, estimates(run)
    index = torch.cat(list(fed.train))
    x = fed.x[index][:, :2]
    spread = ((x @ torch.tensor(covariance(run)) * x).sum(1) + estimate["sd(residual)"] ** 2).sqrt()
    gap = fed.y[index] - x @ torch.tensor(estimate[["Intercept", "x"]].to_numpy())
    metrics = from_example_sums(evaluate_global(run.fitted, index), "regression")
    normal = torch.distributions.Normal(0.0, 1.0)
    assert metrics["nll"] == pytest.approx(-float((normal.log_prob(gap / spread) - spread.log()).mean()), rel=1e-10)
    t = gap / spread
    crps = spread * (t * (2 * normal.cdf(t) - 1) + 2 * normal.log_prob(t).exp() - torch.pi**-0.5)
    assert metrics["crps"] == pytest.approx(float(crps.mean()), rel=1e-10)
    assert metrics["rmse"] == pytest.approx(float(gap.square().mean().sqrt()), rel=1e-10)


@pytest.mark.parametrize(
    ("family", "size", "random", "draws", "most"),
    [
        ("gaussian", (400, 12), "1 + x", 8, 1),
        pytest.param("poisson", (90, 6), "1", 2, 3000, marks=pytest.mark.slow),
        pytest.param("poisson", (90, 6), "1 + x", 2, 1, marks=pytest.mark.slow),
    ],
)
def test_nothing_depends_on_the_parts(
    family: str, size: tuple[int, int], random: str, draws: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part has so many rows at most, where it has one every client, point and draw is a part of its own."""
    whole = finished(family, draws, size=size, random=random)
    tables = effects_table(whole.fitted)[0], shrinkage_table(whole.fitted)
    for module, name in ((cross_products, "NUMBERS_PER_PASS"), (quadrature, "EXAMPLES_PER_PASS"),
                         (quadrature_draws, "EXAMPLES_PER_PASS"), (shrinkage, "EXAMPLES_PER_PASS")):  # fmt: skip
        monkeypatch.setattr(module, name, most)
    parts = finished(family, draws, 4, size, random)
    pd.testing.assert_frame_equal(effects_table(parts.fitted)[0], tables[0], rtol=1e-6)
    pd.testing.assert_frame_equal(shrinkage_table(parts.fitted), tables[1], rtol=1e-6)
    assert torch.allclose(parts.personal["b_draws"], whole.personal["b_draws"], rtol=1e-5, atol=1e-7)
    assert tables[1].client.tolist() == len(random.split("+")) * list(whole.fitted.federation.ids)


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


@pytest.mark.slow
def test_the_script_of_the_sizes_runs() -> None:
    """The smallest of them, as it is run by hand for the committed figures."""
    script = ROOT / "experiments" / "results" / "mixed-effects" / "size.py"
    done = subprocess.run([sys.executable, str(script), "200x20"], capture_output=True, text=True, check=True)
    assert "200 rows, 20 clients:" in done.stdout
