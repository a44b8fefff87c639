"""Mixed-effects models against a pooled referee, statsmodels' MixedLM, and against closed forms."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
import torch

from hierfl import UserError
from hierfl.data.formula.design import Design
from hierfl.data.formula.federate import from_formula
from hierfl.inference import fit
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.clients.scores import curvature
from hierfl.inference.run.result import Run
from hierfl.inference.server.rules.base import AggregationContext
from hierfl.inference.server.rules.newton import NewtonScoring
from hierfl.inference.server.rules.newton_step import newton_step
from hierfl.models.mixed_effects.method import MixedEffects
from hierfl.models.mixed_effects.quadrature import marginal_log_likelihood, marginals
from hierfl.models.mixed_effects.summary import effects_table
from hierfl.nn.networks.build import architecture
from hierfl.rng import generator


def table(places: int = 40, seed: int = 0, slope: bool = True) -> pd.DataFrame:
    """2 to 60 rows a place, intercepts and slopes that go together, raw units."""
    rng = np.random.default_rng(seed)
    n = rng.integers(2, 61, places)
    who = np.repeat(np.arange(places), n)
    x = rng.normal(2, 1.5, len(who))
    b = rng.multivariate_normal([0, 0], [[1.0, 0.3], [0.3, 0.5 if slope else 0.0]], places) if slope else None
    effect = b[who, 0] + b[who, 1] * x if b is not None else rng.normal(size=places)[who]
    y = 3 + 0.7 * x + effect + 0.8 * rng.normal(size=len(who))
    return pd.DataFrame({"y": y, "x": x, "site": [f"s{j:02d}" for j in who]})


def fitted(df: pd.DataFrame, formula: str, rounds: int = 30, error: str | None = None, **settings) -> Run:
    fed, design = from_formula(df, formula, error=error)
    method = MixedEffects(design, **{"draws": 0, **settings})
    return fit(method, fed, rounds=rounds, chunk=fed.clients, dtype=torch.float64, progress=False)


def covariance(run: Run) -> np.ndarray:
    shared = run.shared
    sd = shared["effects.log_sd"].exp()
    below = shared.get("effects.corr", torch.zeros(1))[0]
    correlation = below / (1 + below**2).sqrt()
    q = len(sd)
    rho = torch.eye(q, dtype=sd.dtype) + (correlation * (1 - torch.eye(q)) if "effects.corr" in shared else 0)
    return (sd[:, None] * sd * rho).numpy()


def referee(df: pd.DataFrame, random: str):
    import statsmodels.formula.api as smf

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return smf.mixedlm("y ~ x", df, groups=df.site, re_formula=random).fit(reml=False, method=["lbfgs", "bfgs"])


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


def test_chunks_and_predictions() -> None:
    df = table(12)
    whole = fitted(df, "y ~ 1 + x + (1 + x | site)", rounds=30)
    again = fit(whole.fitted.method, whole.fitted.federation, rounds=30, chunk=1, dtype=torch.float64, progress=False)
    for name, value in whole.shared.items():
        assert torch.allclose(value, again.shared[name], rtol=1e-7), name
    x = np.array([[1.0, 2.0, 1.0, 2.0]])
    beta, b = whole.shared["effects.beta"], whole.personal["b_mean"][3]
    said = whole.predict(x, client="s03")[0]
    assert torch.isclose(said[0], (beta + b) @ torch.tensor([1.0, 2.0]).double(), rtol=1e-6)
    new = whole.predict_new_client(x, draws=4000)[0]
    assert abs(float(new[0] - beta @ torch.tensor([1.0, 2.0]).double())) < 0.2
    design = np.array([1.0, 2.0])
    spread = design @ covariance(whole) @ design + float((2 * whole.shared["effects.log_noise"]).exp())
    assert float(new[1]) == pytest.approx(spread**0.5, rel=0.05)


def test_the_global_model_knows_how_much_places_differ() -> None:
    """Its score is that of N(x beta, z^T Sigma z + sigma^2), of which 200 draws know a little less than all."""
    fed, design = from_formula(table(30), "y ~ 1 + x + (1 + x | site)", test=0.3)
    run = fit(MixedEffects(design, draws=0), fed, 20, chunk=30, dtype=torch.float64, progress=False)
    x = fed.x[fed.global_test][:, :2]
    spread = ((x @ covariance(run)) * x).sum(1) + (2 * run.shared["effects.log_noise"]).exp()
    wanted = torch.distributions.Normal(x @ run.shared["effects.beta"], spread.sqrt()).log_prob(fed.y[fed.global_test])
    assert run.last()["gm_nll"] == pytest.approx(-float(wanted.mean()), abs=0.03)
    assert 0.8 < run.last()["gm_coverage90"] < 0.98


def test_predictions_from_other_rows_of_the_table() -> None:
    df = table(8).assign(g=lambda d: np.where(np.arange(len(d)) % 2, "u", "v"))
    run = fitted(df, "y ~ scale(x) * g + (x | site)", rounds=5)
    new = df.iloc[[3, 8, 20]].drop(columns=["y", "site"])
    row = run.fitted.federation.about["reader"](new)
    beta, b = run.shared["effects.beta"], run.personal["b_mean"][2]
    wanted = row[:, :4] @ beta.numpy() + row[:, 4:] @ b.numpy()
    np.testing.assert_allclose(run.predict(new, client="s02")[:, 0].numpy(), wanted, rtol=1e-6)
    np.testing.assert_allclose(row[:, 1], (new.x - df.x.mean()) / df.x.std(ddof=0), rtol=1e-6)
    np.testing.assert_allclose(row[:, 5], new.x)
    assert run.predict_new_client(new, given=(df[df.site == "s02"], df.y[df.site == "s02"]), draws=0).shape == (3, 2)
    for rows, words in (
        (new.drop(columns="x"), "lacks column 'x'"),
        (new.assign(g="w"), "does not fit the table"),
        (new.assign(x=np.nan), "missing values"),
    ):
        with pytest.raises(UserError, match=words):
            run.predict(rows, client="s02")


def test_designs_that_cannot_be() -> None:
    for make, words in (
        (lambda: Design.of([], ["1"]), "at least one fixed"),
        (lambda: Design.of(["1"], ["1"], "gamma"), "unknown family 'gamma'"),  # type: ignore[arg-type]
        (lambda: Design.of(["1"], ["1"], "poisson", known=True), "belong to a gaussian"),
    ):
        with pytest.raises(UserError, match=words):
            make()
    fed, _ = from_formula(table(5), "y ~ x + (1 | site)")
    with pytest.raises(UserError, match="made from a Design"):
        MixedEffects(architecture("linear", fed))


def test_a_formula_is_read_as_it_is_written() -> None:
    df = table(6).assign(g=lambda d: np.where(np.arange(len(d)) % 2, "u", "v"))
    fed, design = from_formula(df, "y ~ x * g + (x | site)", client="site")
    assert design.fixed == ("Intercept", "x", "g[v]", "x:g[v]")
    assert design.random == ("Intercept", "x")
    assert fed.clients == 6
    x, z, known = design.split(fed.batch([0]).x)
    assert known is None
    rows = df[df.site == "s00"]
    np.testing.assert_allclose(x[0, :, 1].numpy(), rows.x, rtol=1e-6)
    np.testing.assert_allclose(x[0, :, 3].numpy(), rows.x * (rows.g == "v"), rtol=1e-6)
    np.testing.assert_allclose(z[0].numpy(), np.column_stack([np.ones(len(rows)), rows.x]), rtol=1e-6)
    _, design = from_formula(df, "y ~ x + I(x**2) + (1 | site)")
    assert design.fixed == ("Intercept", "x", "I(x ** 2)")
    _, design = from_formula(df, "y ~ 1 + (0 + g | site)")
    assert design.random == ("g[u]", "g[v]")
    _, design = from_formula(df.assign(k=df.x.round().abs()), "k ~ scale(x) + (1 | site)", family="poisson")
    assert design.fixed == ("Intercept", "scale(x)")


@pytest.mark.parametrize(
    ("formula", "how", "words"),
    [
        ("y ~ x + (1 |", {}, "cannot be read"),
        ("y ~ nope + (1 | site)", {}, "unknown column 'nope'"),
        ("y ~ x", {}, "no random term, such as"),
        ("y ~ x + (1 | site) + (1 | g)", {}, "belong to one column, the client's, and here to g, site"),
        ("y ~ x + (1 | site)", {"client": "g"}, "belong to 'site', and the clients are 'g'"),
        ("y ~ x + (1 | site)", {"client": "nope"}, "unknown column 'nope'"),
        ("y ~ hole + (1 | site)", {}, "'hole' has 1 missing value"),
        ("y ~ x + (1 + level | site)", {}, "no client can inform the random slope of 'level'"),
        ("g ~ x + (1 | site)", {}, "holds no numbers"),
        ("y ~ x + (1 | site)", {"family": "binomial"}, "0 or 1"),
        ("y ~ x + (1 | site)", {"family": "poisson"}, "whole number"),
        ("y ~ x + (1 | site)", {"family": "gamma"}, "unknown family 'gamma'"),
        ("y ~ x + (1 | site)", {"error": "x"}, "not above zero"),
        ("y ~ x + (1 | site)", {"error": "se"}, "unknown column 'se'"),
        ("one ~ x + (1 | site)", {"family": "binomial", "error": "one"}, "belong to a gaussian"),
        ("y ~ x + twice + (1 | site)", {}, "'twice' is a combination of those before it"),
        ("y ~ x + offset(level) + (1 | site)", {}, "has a coefficient of one, which is not there"),
        ("y ~ x + (1 + x | site) + (0 + twice | site)", {}, "each in one of its own"),
        ("y ~ x + (1 | row)", {}, "no row has more rows than the 1 random effect, so"),
        ("y ~ x + (x || site)", {}, "say covariance=diagonal"),
        ("y ~ Intercept + (1 | site)", {}, "taken for the intercept"),
        ("y ~ x + (1 | same)", {}, "all rows are of one same"),
        ("one ~ x + (1 | site)", {}, "'one' does not vary"),
        ("y ~ x + (1 | site)", {"error": "g"}, "cannot hold standard errors"),
    ],
)
def test_formulas_that_cannot_be(formula: str, how: dict, words: str) -> None:
    df = table(6)
    df = df.assign(g=np.where(np.arange(len(df)) % 2, "u", "v"), hole=df.x.where(df.index != 3), one=1)
    df["level"] = df.site.str[1:].astype(float)
    df = df.assign(twice=2 * df.x + 1, row=[f"r{k}" for k in range(len(df))], same="a", Intercept=df.x)
    with pytest.raises(UserError, match=words):
        from_formula(df, formula, **how)


def test_what_draws_know_of_the_curvature() -> None:
    """Away from the maximum: Louis' identity from exact draws against the marginal's own second derivatives."""
    df = table(12)
    run = fitted(df, "y ~ 1 + x + (1 + x | site)", rounds=3)
    names = [k for k in run.shared if k.startswith("effects.")]
    fed, method = run.fitted.federation, run.fitted.method
    order = sorted(range(12), key=lambda j: -len(fed.train[j]))
    rows = {k: v[order].unsqueeze(1) for k, v in run.personal.items()}
    chunk = ClientChunk(method, fed, order, 1, 0, run.shared, rows)
    chunk = method.local()[0].run(chunk, 0)
    known = curvature(chunk, names, "b", 10_000)
    theta = torch.cat([run.shared[k].flatten() for k in names]).requires_grad_()
    sizes = [run.shared[k].numel() for k in names]
    for place in (0, 5, 11):
        part = chunk.take([place])
        with torch.enable_grad():
            moved = dict(
                zip(
                    names,
                    (p.view_as(run.shared[k]) for k, p in zip(names, theta.split(sizes), strict=True)),
                    strict=True,
                )
            )
            height = marginals(method, part.batch(), {**part.view, **moved}).sum()
            (slope,) = torch.autograd.grad(height, theta, create_graph=True)
            exact = -torch.stack([torch.autograd.grad(g, theta, retain_graph=True)[0] for g in slope])
        scores = torch.cat([known.scores[k][place].flatten() for k in names])
        assert torch.allclose(scores, slope.detach(), rtol=1e-6, atol=1e-6)
        gap = (known.observed[place] - exact).abs()
        assert gap[:2, :2].max() < 1e-12  # of the fixed effects nothing is left to the draws
        scale = known.profile[place].diagonal().abs().clamp_min(1).sqrt()
        assert (gap < 0.08 * scale[:, None] * scale).all(), place
        assert torch.linalg.eigvalsh(known.profile[place] - known.observed[place]).min() > -1e-9


def test_a_places_own_and_the_pooled_estimates_are_regressions_without_a_prior() -> None:
    import statsmodels.formula.api as smf

    df = table(12)
    run = fitted(df, "y ~ 1 + x + (1 + x | site)")
    frame = run.fitted.method.shrinkage_table(run.fitted)
    assert list(frame.columns) == ["client", "n", "effect", "local", "population", "pooled", "hierarchical"]
    for site, part in frame.groupby("client"):
        theirs = smf.ols("y ~ x", df[df.site == site]).fit().params.values
        np.testing.assert_allclose(part["local"], theirs, rtol=1e-6)
    pooled = smf.ols("y ~ x", df).fit().params.values
    np.testing.assert_allclose(frame.groupby("effect", sort=False)["pooled"].first(), pooled, rtol=1e-9)
    mean = run.personal["b_mean"].numpy() + run.shared["effects.beta"].numpy()
    np.testing.assert_allclose(frame["hierarchical"], mean.T.ravel(), rtol=1e-9)
    beta = frame.groupby("effect", sort=False)["population"].first()
    np.testing.assert_allclose(beta, run.shared["effects.beta"], rtol=1e-9)
    drawn = fitted(df, "y ~ 1 + x + (1 + x | site)", draws=20)  # the exact mean, not that of the chains
    again = drawn.fitted.method.shrinkage_table(drawn.fitted)["hierarchical"]
    np.testing.assert_allclose(again, frame["hierarchical"], rtol=1e-9)


def test_estimates_where_columns_are_large_or_coded_otherwise() -> None:
    import statsmodels.formula.api as smf

    df = table(12)
    df["year"] = 2000 + np.round(df["x"])
    df["square"] = df["year"] ** 2
    run = fitted(df, "y ~ 1 + year + square + (1 | site)")
    theirs = smf.ols("y ~ I(year - 2000) + I((year - 2000)**2)", df).fit().params.values
    whole = theirs[0] - 2000 * theirs[1] + 2000**2 * theirs[2]
    assert run.fitted.method.shrinkage_table(run.fitted)["pooled"].iloc[0] == pytest.approx(whole, rel=1e-5)
    df["g"] = np.where(np.arange(len(df)) % 2, "B", "A")
    run = fitted(df, "y ~ 1 + g + (0 + g | site)")  # contrasts, and a mean of each
    frame = run.fitted.method.shrinkage_table(run.fitted)
    assert frame["effect"].unique().tolist() == ["g[A]", "g[B]"]
    means = df.groupby("g")["y"].mean().to_numpy()
    np.testing.assert_allclose(frame.groupby("effect", sort=False)["pooled"].first(), means, rtol=1e-9)
    beta = run.shared["effects.beta"].numpy()
    population = frame.groupby("effect", sort=False)["population"].first()
    np.testing.assert_allclose(population, [beta[0], beta.sum()], rtol=1e-9)
    own = df.groupby(["g", "site"])["y"].mean().to_numpy()
    told = frame["local"].notna().to_numpy()
    assert told.sum() > 20
    np.testing.assert_allclose(frame["local"][told], own[told] if len(own) == len(told) else 0, rtol=1e-6)
    run = fitted(df, "y ~ 1 + (1 + x | site)")  # a slope that no fixed effect goes with
    frame = run.fitted.method.shrinkage_table(run.fitted)
    assert frame[frame["effect"] == "x"][["population", "pooled"]].abs().max(None) < 1e-12
    tight = fitted(df, "y ~ 1 + x + (1 | site)", prior="fixed", sd_0=1e-6)  # wide is wide of the data, not of this
    frame = tight.fitted.method.shrinkage_table(tight.fitted)
    rest = df["y"] - float(tight.shared["effects.beta"][1]) * df["x"]
    np.testing.assert_allclose(frame["local"], rest.groupby(df["site"]).mean(), rtol=1e-6)


@pytest.mark.parametrize("family", ["binomial", "poisson"])
def test_estimates_of_other_families(family: str) -> None:
    """Against generalised linear models of each place; none where a coefficient is infinite, or not to be told."""
    import statsmodels.api as sm
    import statsmodels.formula.api as smf

    rng = np.random.default_rng(3)
    who = np.repeat(np.arange(6), [80, 60, 50, 40, 8, 5])
    x = rng.normal(size=len(who))
    eta = 0.2 + 0.6 * x + rng.normal(0, 0.7, 6)[who]
    y = rng.poisson(np.exp(eta)) if family == "poisson" else (rng.uniform(size=len(who)) < 1 / (1 + np.exp(-eta))) * 1
    y[who == 4] = 1 if family == "binomial" else 0  # at infinity
    x[who == 5] = 0.3  # two columns that are one
    df = pd.DataFrame({"y": y, "x": x, "site": [f"s{j}" for j in who]})
    fed, design = from_formula(df, "y ~ 1 + x + (1 + x | site)", family=family)
    run = fit(MixedEffects(design, draws=0), fed, rounds=15, dtype=torch.float64, progress=False)
    frame = run.fitted.method.shrinkage_table(run.fitted)
    glm = getattr(sm.families, family.capitalize())()
    for site, part in frame.groupby("client"):
        if site in ("s4", "s5"):
            assert part["local"].isna().all(), site
        else:
            theirs = smf.glm("y ~ x", df[df.site == site], family=glm).fit(tol=1e-12).params.values
            np.testing.assert_allclose(part["local"], theirs, rtol=1e-5, atol=1e-6)
    theirs = smf.glm("y ~ x", df, family=glm).fit(tol=1e-12).params.values
    np.testing.assert_allclose(frame.groupby("effect", sort=False)["pooled"].first(), theirs, rtol=1e-6)
    draws = run.personal["b_draws"].numpy().mean((1, 2)) + run.shared["effects.beta"].numpy()
    np.testing.assert_allclose(frame["hierarchical"], draws.T.ravel(), rtol=1e-9)
