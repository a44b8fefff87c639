"""Federated mixed models against pooled ones."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from support.mixed import covariance, fitted, referee, table

from hierfl import UserError
from hierfl.data.formula.federate import from_formula
from hierfl.inference import fit
from hierfl.inference.server.rules.base import AggregationContext
from hierfl.inference.server.rules.newton import NewtonScoring
from hierfl.inference.server.rules.newton_step import newton_step
from hierfl.models.mixed_effects.method import MixedEffects
from hierfl.models.mixed_effects.quadrature import marginal_log_likelihood
from hierfl.models.mixed_effects.summary import effects_table
from hierfl.rng import generator


@pytest.mark.parametrize("random", ["1", "1 + x"])
def test_the_federated_fit_is_the_pooled_one(random: str) -> None:
    df = table(slope="x" in random)
    theirs, run = referee(df, f"~ {random}"), fitted(df, f"y ~ 1 + x + ({random} | site)")
    error = (run.shared["effects.beta"].numpy() - theirs.fe_params.values) / theirs.bse_fe.values
    assert np.abs(error).max() < 0.05
    np.testing.assert_allclose(covariance(run), theirs.cov_re.values, rtol=0.02)
    assert np.isclose(float((2 * run.shared["effects.log_noise"]).exp()), theirs.scale, rtol=0.02)
    assert abs(marginal_log_likelihood(run) - theirs.llf) < 0.01
    for j, site in enumerate(run.fitted.federation.ids):
        mean, root = run.personal["b_mean"][j], run.personal["b_root"][j]
        spread = (root @ root.T).diagonal().sqrt().numpy()
        assert np.abs((mean.numpy() - theirs.random_effects[site].values) / spread).max() < 0.05
        wanted = theirs.random_effects_cov[site].values
        np.testing.assert_allclose((root @ root.T).numpy(), wanted, rtol=0.02, atol=0.002 * wanted.max())


def test_the_likelihood_is_at_its_maximum() -> None:
    """Neither a smaller nor a larger value of anything is more likely: exact, by the multivariate normal."""
    df = table(15)
    run = fitted(df, "y ~ 1 + x + (1 + x | site)", rounds=40)
    shared = {k.removeprefix("effects."): v.clone() for k, v in run.shared.items()}

    def log_likelihood(v: dict) -> float:
        sd = v["log_sd"].exp()
        low = torch.stack([torch.tensor([1.0, 0.0]).double(), torch.stack([v["corr"][0], torch.ones(()).double()])])
        root = sd[:, None] * low / low.norm(dim=1, keepdim=True)
        total = 0.0
        for _, rows in df.groupby("site"):
            design = torch.tensor(np.column_stack([np.ones(len(rows)), rows.x]))
            cov = design @ root @ root.T @ design.T + (2 * v["log_noise"]).exp() * torch.eye(len(rows))
            y = torch.tensor(rows.y.values)
            total += float(torch.distributions.MultivariateNormal(design @ v["beta"], cov).log_prob(y))
        return total

    best = log_likelihood(shared)
    assert np.isclose(best, marginal_log_likelihood(run), atol=1e-8)
    for name, value in shared.items():
        for k in range(value.numel()):
            for step in (-1e-3, 1e-3):
                other = {**shared, name: value.clone()}
                other[name].view(-1)[k] += step
                assert log_likelihood(other) < best, (name, k, step)


def test_a_diagonal_covariance_has_none_off_it() -> None:
    run = fitted(table(), "y ~ 1 + x + (1 + x | site)", covariance="diagonal")
    assert "effects.corr" not in run.shared
    full = fitted(table(), "y ~ 1 + x + (1 + x | site)")
    assert marginal_log_likelihood(run) < marginal_log_likelihood(full)


def eight_schools() -> pd.DataFrame:
    """Rubin (1981): the effect of coaching in eight schools, each seen once, with known standard errors."""
    return pd.DataFrame(
        {
            "y": [28.0, 8, -3, 7, -1, 1, 18, 12],
            "se": [15.0, 10, 16, 11, 9, 11, 10, 18],
            "site": list("ABCDEFGH"),
        }
    )


def test_known_standard_errors_and_places_seen_once() -> None:
    """Held at tau = 10: the analytic posterior; learned: tau goes to zero and the schools to one mean, as is known."""
    df = eight_schools()
    held = fitted(df, "y ~ 1 + (1 | site)", error="se", prior="fixed", sd_0=10.0 / df.y.std(ddof=0))
    weight = 1 / (df.se**2 + 100)
    mu = (weight * df.y).sum() / weight.sum()
    assert np.isclose(float(held.shared["effects.beta"]), mu, atol=1e-6)
    shrunk = (df.y - mu) * 100 / (100 + df.se**2)
    np.testing.assert_allclose(held.personal["b_mean"].flatten().numpy(), shrunk, atol=1e-5)
    variance = 1 / (1 / 100 + 1 / df.se**2)
    np.testing.assert_allclose(held.personal["b_root"].flatten().numpy() ** 2, variance, rtol=1e-6)
    assert float(held.shared["held.log_sd"].exp()) == pytest.approx(10.0)
    learned = fitted(df, "y ~ 1 + (1 | site)", error="se", rounds=60)
    assert float(learned.shared["effects.log_sd"].exp()) < 0.1
    weight = 1 / df.se**2
    assert np.isclose(float(learned.shared["effects.beta"]), (weight * df.y).sum() / weight.sum(), atol=0.01)


def test_terms_of_their_own_have_no_correlations() -> None:
    df = table(10)
    run = fitted(df, "y ~ x + (1 | site) + (0 + x | site)", covariance="diagonal")
    again = fitted(df, "y ~ x + (1 + x | site)", covariance="diagonal")
    assert torch.allclose(run.shared["effects.log_sd"], again.shared["effects.log_sd"], rtol=1e-9)
    with pytest.raises(UserError, match="say covariance=diagonal"):
        fitted(df, "y ~ x + (1 | site) + (0 + x | site)")


def test_single_precision_is_refused() -> None:
    fed, design = from_formula(table(5), "y ~ x + (1 | site)")
    with pytest.raises(UserError, match="double precision"):
        fit(MixedEffects(design), fed, rounds=1, progress=False)


def test_a_held_number_stays_and_the_others_move_as_if_it_were_not_there() -> None:
    rng = generator("newton")
    for _ in range(50):
        a, g = (torch.randn(shape, generator=rng, dtype=torch.float64) for shape in ((5, 5), (5,)))
        information, free = a @ a.T, torch.tensor([True, True, False, True, True])
        step, _ = newton_step(g, information, information, information, free, torch.tensor(1e9))
        rest = torch.linalg.solve(information[free][:, free], g[free])
        assert torch.allclose(step[free], rest, rtol=1e-6)
        assert step[2] == 0


def test_the_server_holds_what_stands_at_its_bound_and_wants_below() -> None:
    rng = generator("bound")
    a = torch.randn((3, 3), generator=rng, dtype=torch.float64)
    information = a @ a.T + torch.eye(3)
    rule = NewtonScoring("b", 1, radius=1e9, least={"sd": torch.tensor([-2.0]).double()})
    old = {"beta": torch.zeros(2).double(), "sd": torch.tensor([-2.0]).double()}
    nothing = {k: torch.zeros_like(v) for k, v in old.items()}
    for slope, stays in ((-1.0, True), (5.0, False)):
        g = {"beta": torch.tensor([1.0, 2.0]).double(), "sd": torch.tensor([slope]).double()}
        total = {**g, **dict.fromkeys(("outer", "profile", "observed"), information)}
        new = rule.update(old, total, AggregationContext(4, torch.tensor(4.0), 1, lambda names: nothing))
        assert (float(new["sd"]) == -2.0) == stays
        if stays:
            assert torch.allclose(new["beta"], torch.linalg.solve(information[:2, :2], g["beta"]), rtol=1e-9)


def test_an_effect_without_which_the_data_are_as_likely_has_no_standard_error() -> None:
    rng = np.random.default_rng(2)
    who = np.repeat(np.arange(20), 20)
    x = rng.normal(size=400)
    y = np.tile(np.r_[np.zeros(10), np.ones(10)], 20)  # every site alike: less spread than chance
    df = pd.DataFrame({"y": y, "x": x, "site": who})
    fed, design = from_formula(df, "y ~ x + (1 | site)", family="binomial")
    run = fit(MixedEffects(design, draws=0), fed, 30, chunk=20, dtype=torch.float64, progress=False, evaluate_every=30)
    estimates, numbers = effects_table(run.fitted)
    assert list(estimates.note) == ["", "", "at its lower bound"]
    assert np.isnan(estimates.standard_error[2])
    assert estimates.standard_error[:2].notna().all()
    assert numbers["off_maximum"] < 0.05


def test_a_covariate_far_from_zero() -> None:
    df = table(12)
    near, far = (fitted(df.assign(x=df.x + shift), "y ~ x + (1 | site)") for shift in (0, 1e5))
    assert effects_table(far.fitted)[1]["off_maximum"] < 1e-3
    assert float(far.shared["effects.beta"][1]) == pytest.approx(float(near.shared["effects.beta"][1]), rel=1e-5)


def test_many_random_effects_of_a_gaussian() -> None:
    df = table(15).assign(g=lambda d: np.array(list("abcd"))[np.arange(len(d)) % 4])
    run = fitted(df, "y ~ 1 + (0 + g | site)", covariance="diagonal", rounds=10)
    assert len(run.shared["effects.log_sd"]) == 4


def test_units_do_not_matter() -> None:
    df = table()
    plain = fitted(df, "y ~ 1 + x + (1 + x | site)")
    scaled = fitted(df.assign(y=df.y * 1000, x=df.x * 50), "y ~ 1 + x + (1 + x | site)")
    ratio = (scaled.shared["effects.beta"] / plain.shared["effects.beta"]).numpy()
    np.testing.assert_allclose(ratio, [1000, 20], rtol=1e-3)
    np.testing.assert_allclose(covariance(scaled), covariance(plain) * np.array([[1e6, 2e4], [2e4, 400]]), rtol=1e-2)
