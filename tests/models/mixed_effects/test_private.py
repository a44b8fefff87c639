"""Noise inside clients of a gaussian mixed model: what a patient can move, what is sent, and intervals that know it."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import norm
from support.private_formulas import FORMULAS, LEVEL, RANGES, Study, packed, table, truth
from support.sites import Sites

from hierfl.data.batch import Batch
from hierfl.data.formula.federate import from_formula
from hierfl.errors import UserError
from hierfl.inference import Run, fit
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.method.with_noise import privacy_of
from hierfl.inference.options import Options
from hierfl.inference.run.restore import identity_of
from hierfl.models.mixed_effects.method import MixedEffects
from hierfl.models.mixed_effects.private import residual
from hierfl.models.mixed_effects.private.ranges import range_of, read_ranges
from hierfl.models.mixed_effects.private.release import packed_products, unpacked_products
from hierfl.models.mixed_effects.report.summary import effects_table
from hierfl.models.mixed_effects.search.criterion import Surface

HOW: dict[str, Any] = {"progress": False, "dtype": torch.float64, "splits": ()}


def private(formula: str, df: pd.DataFrame, ranges: str = RANGES, **options: Any) -> tuple[MixedEffects, Any, Options]:
    """A method as a fit with noise has it, its data, and options."""
    federation, design = from_formula(df, formula)
    how = Options(**{"dp": "site", "epsilon": 4.0, "dtype": torch.float64, **options})
    return MixedEffects(design, ranges=ranges, draws=0).under_noise(how, federation), federation, how


def test_one_patient_moves_the_sums_by_no_more_than_the_sensitivity() -> None:
    """Rows at all corners of the ranges, beyond them, and inside; three levels of a factor; products of columns."""
    rng = np.random.default_rng(0)
    df = table("slope", 1).iloc[::9].assign(stage=lambda d: rng.choice(list("abcd"), len(d)))
    method, federation, _ = private("sbp ~ age * sex + stage + (1 + age | site)", df)
    columns = method.private.columns  # type: ignore[union-attr]
    assert columns.names == ("Intercept", "age", "sex[m]", "age:sex[m]", "stage[b]", "stage[c]", "stage[d]")
    assert columns.most == 6.0  # three levels count once
    corners = pd.DataFrame(
        [
            {"age": age, "sex": sex, "stage": stage, "sbp": sbp, "site": "0"}
            for age, sex, stage, sbp in itertools.product(
                (20.0, 90.0, 55.0, -1e6, 1e9), "fm", "abcd", (50.0, 200.0, 1e12)
            )
        ]
    )
    x = torch.from_numpy(federation.about["reader"](corners))[:, None]
    batch = Batch(
        x=x, y=torch.tensor(corners.sbp.tolist(), dtype=torch.float64)[:, None], n=torch.ones(len(x)), mask=None
    )
    moved = packed_products(columns.rows(batch)).norm(dim=1)
    assert float(moved.max()) <= columns.most * (1 + 1e-12)
    assert float(moved.max()) > 0.99 * (columns.most - 1)
    three = private("sbp ~ age + (1 | site)", df, patient_rows=3)[0].private
    assert three is not None
    assert three.sensitivity == 3 * three.columns.most == 9.0
    # Products of a row with itself have the norm of the row, squared.
    v = torch.from_numpy(rng.normal(size=(50, 1, 7)))
    torch.testing.assert_close(packed_products(v).norm(dim=1), v.square().sum((1, 2)))
    torch.testing.assert_close(unpacked_products(packed_products(v), 7), v.mT @ v)


def test_what_is_sent_has_the_noise_of_the_plan_and_is_made_once() -> None:
    df = pd.concat([table("intercept", 0).assign(site=f"{k}") for k in range(60)])
    method, federation, options = private(FORMULAS["intercept"], df)
    federation = federation.to("cpu", torch.float64)
    begin, clients = InitialWeights.for_network(method.network, 0), len(federation.ids)
    own = {k: v.expand(clients, 1, *v.shape) for k, v in method.personal(begin).items()}
    shared = {k: v.double() for k, v in method.shared(begin).items()}
    privacy = privacy_of(method, options)
    chunk = ClientChunk(method, federation, range(clients), 1, 0, shared, own, privacy=privacy)
    for step in method.local():
        chunk = step.run(chunk, 0)
    sent = method.exchange()["effects"].message([], chunk)["products"]
    clean = packed_products(method.private.columns.rows(chunk.batch()))  # type: ignore[union-attr]
    sd = float((sent - clean).std())
    assert method.private is not None
    assert sd == pytest.approx(method.private.sd, rel=0.06)
    # Balle and Wang's delta of this ratio is the one asked for
    ratio = method.private.sensitivity / method.private.sd
    delta = norm.cdf(ratio / 2 - 4 / ratio) - np.exp(4) * norm.cdf(-ratio / 2 - 4 / ratio)
    assert delta == pytest.approx(1e-5, rel=1e-3)
    for step in method.local():
        chunk = step.run(replace(chunk, round=2), 0)
    assert torch.equal(method.exchange()["effects"].message([], chunk)["products"], sent)
    bare = ClientChunk(method, federation, range(clients), 1, 0, shared, own)
    release = method.local()[1]
    with pytest.raises(UserError, match="nothing leaves them"):
        release.run(bare, 0)


@pytest.mark.parametrize("model", ["intercept", "slope"])
def test_without_noise_it_is_the_restricted_fit(model: str) -> None:
    """As epsilon grows: estimates, errors, degrees of freedom and the criterion of today's fit, to 1e-6."""
    df = table(model, 3)
    federation, design = from_formula(df, FORMULAS[model])
    plain = effects_table(fit(MixedEffects(design, draws=0), federation, 60, **HOW).fitted)
    study = Study(model, 4.0)
    study.aware.private = replace(study.aware.private, sds=(1e-7,))  # type: ignore[type-var]
    columns = study.aware.private.columns  # type: ignore[union-attr]
    raw = np.column_stack([np.ones(len(df)), df.age, df.sex == "m", df.sbp])
    v = torch.from_numpy(((raw - columns.middle) / columns.half).reshape(10, 200, -1))
    rule = study.aware.exchange()["effects"]
    shared = {k: v.double() for k, v in study.aware.shared(InitialWeights.for_network(study.aware.network, 0)).items()}
    shared = rule.update(shared, {"products": packed_products(v)}, replace(study.context, rule_state={}))
    fitted: Any = SimpleNamespace(method=study.aware, shared=shared, federation=SimpleNamespace(about={}))
    summary = effects_table(fitted)
    for name in ("estimate", "standard_error", "df"):
        np.testing.assert_allclose(summary[0][name], plain[0][name], rtol=1e-6)
    assert summary[1]["log_likelihood"] == pytest.approx(plain[1]["log_likelihood"], rel=1e-8)


def test_the_residuals_density_is_exact_at_both_ends() -> None:
    t, nu = torch.linspace(50, 300, 7).double(), torch.tensor(197.0).double()
    variance, nothing = torch.tensor(0.7).double(), torch.tensor(1e-14).double()
    exact = -nu / 2 * variance.log() - t / (2 * variance) + residual.log_constant(t, nu)
    torch.testing.assert_close(residual.log_density(t, nu, variance, nothing), exact)
    noise = torch.tensor(1e8).double()
    sd = (noise + 2 * nu * variance**2).sqrt()
    normal = torch.distributions.Normal(nu * variance, sd).log_prob(t)
    torch.testing.assert_close(residual.log_density(t, nu, variance, noise), normal, rtol=1e-5, atol=1e-5)
    # And in between sums to one.
    t = torch.linspace(-600, 900, 30001).double()
    mass = residual.log_density(
        t, torch.tensor(20.0).double(), torch.tensor(5.0).double(), torch.tensor(900.0).double()
    )
    assert float(mass.exp().sum() * (t[1] - t[0])) == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("relative", [0.05, 0.25])
def test_a_residuals_interval_is_of_its_square_where_noise_hides_it(relative: float) -> None:
    """Without random effects, one client of many rows: t is normal about nu s^2. Shares of t by its quantiles.

    A density flat in log s has its upper limit below the truth too often, the more the larger the noise.
    """
    nu, variance = torch.tensor([2000.0]).double(), 0.04
    spread = relative * float(nu) * variance
    noise = torch.tensor([spread**2 - 2 * float(nu) * variance**2]).clamp_min(1e-12).double()
    z = torch.from_numpy(norm.ppf((np.arange(300) + 0.5) / 300))
    log_s = torch.linspace(-3, 0.7, 1501).double() + 0.5 * np.log(variance)
    squares = (2 * log_s).exp()[:, None]
    heights = residual.log_density(float(nu) * variance + spread * z[:, None], nu, squares.T, noise)
    shares = {}
    for name, prior in (("jeffreys", residual.log_matching(nu, squares, noise)), ("flat", 0.0)):
        below = (heights + prior).softmax(1).cumsum(1)
        lower, upper = (log_s[(below < level).sum(1).clamp(max=1500)] for level in (0.05, 0.95))
        truth_at = 0.5 * np.log(variance)
        shares[name] = float((upper < truth_at).double().mean()), float((lower > truth_at).double().mean())
    np.testing.assert_allclose(shares["jeffreys"], 0.05, atol=0.006)
    assert (shares["flat"][0] > 0.09) == (relative > 0.1)


def test_what_draws_are_from_has_the_residuals_density_and_estimates_have_not() -> None:
    study, numbers = Study("intercept", 4.0), torch.tensor([[5.0, 2.3], [5.0, 2.7]]).double()
    likelihood = study.aware.likelihood
    moments = likelihood.moments(study.sums(1))  # type: ignore[attr-defined]
    packed_moments = likelihood.at_points(moments, {"effects.points": numbers})[0]
    heights = [
        likelihood.beta(packed_moments, numbers, Surface(study.aware).coefficients(criterion))[2]
        for criterion in ("mixing", "reml")
    ]
    gap = (heights[0] - heights[1]).diff()
    assert float(gap) == pytest.approx(2 * 0.4, rel=0.05)  # noise outweighs the rows: flat in s^2


def run_of(df: pd.DataFrame, **options: Any) -> Run:
    """A fit with noise inside the clients."""
    federation, design = from_formula(df, "sbp ~ age + sex + (1 | site)")
    settings = {"ranges": RANGES, "draws": options.pop("draws", 50)}
    return fit(MixedEffects(design, **settings), federation, 30, dp="site", **HOW, **options)


@pytest.mark.cpu(8, "four fits whose sums are noise")
def test_sums_that_are_not_definite_have_an_answer() -> None:
    """Three clients of a few rows, and noise that is far larger than they are."""
    df = table("intercept", 0)
    few = df[df.site.isin(["0", "1", "2"])].groupby("site").head(12)
    for seed in range(4):
        run = run_of(few, epsilon=0.3, seed=seed)
        effects, numbers = effects_table(run.fitted)
        assert run.rounds == 1
        assert np.isfinite(effects.estimate).all()
        assert (effects.standard_error.dropna() > 0).all()
        assert numbers["groups"] == 3
    assert run.noise is not None
    assert run.noise.epsilon == pytest.approx(0.3, rel=1e-6)


@pytest.mark.cpu(4, "two fits of ten clients")
def test_clients_predict_with_their_own_rows() -> None:
    """A client's effect given the population is as clean rows say; noise widens the coefficients' intervals."""
    df = table("intercept", 5)
    noisy, plain = run_of(df, epsilon=8.0), run_of(df, epsilon=1e9)
    wide, narrow = (effects_table(run.fitted)[0].set_index("effect") for run in (noisy, plain))
    assert (wide.standard_error[["age", "sex[m]"]] > 1.05 * narrow.standard_error[["age", "sex[m]"]]).all()
    means = [run.personal["b_mean"].flatten() + effects_table(run.fitted)[0].estimate[0] for run in (noisy, plain)]
    assert float(torch.corrcoef(torch.stack(means))[0, 1]) > 0.95


@pytest.mark.cpu(4, "ten sites, asked through bytes")
def test_sites_have_noise_of_their_own(tmp_path: Path) -> None:
    """The dictionary's ranges, one round, and the operating system's noise: another one each time."""
    df = table("intercept", 6)
    federation, design = from_formula(df, FORMULAS["intercept"])
    federation = replace(federation, about={**federation.about, "ranges": read_ranges(RANGES)})
    estimates = []
    for name in ("one", "other"):
        sites = Sites(
            MixedEffects(design, draws=0), federation, tmp_path / name, rounds=5, dp="site", epsilon=6.0,
            dtype=torch.float64, splits=(),
        )  # fmt: skip
        run = sites.fit()
        assert run.rounds == 1
        estimates.append(effects_table(run.fitted)[0].estimate.to_numpy())
    assert not np.array_equal(*estimates)
    np.testing.assert_allclose(estimates[0][1:3], estimates[1][1:3], atol=8)


@pytest.mark.slow
@pytest.mark.cpu(90, "sixty replicates of two fits")
def test_intervals_cover_where_naive_ones_do_not() -> None:
    study, inside = Study("intercept", 4.0), {"aware": [], "naive": []}  # type: ignore[var-annotated]
    with torch.no_grad():
        for seed in range(60):
            for kind, effects in study.tables(seed).items():
                value = effects.effect.map(truth("intercept"))
                inside[kind].append(((effects.lower <= value) & (value <= effects.upper)).to_numpy()[:3])
    aware, naive = (np.mean(inside[kind], axis=0) for kind in ("aware", "naive"))
    assert (np.abs(aware - LEVEL) < 3 * np.sqrt(LEVEL * (1 - LEVEL) / 60)).all()
    assert naive[1] < 0.75


REFUSED: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("needs the range of column 'age'", "sbp ~ age + (1 | site)", {"ranges": "sbp 50 200"}, {}),
    ("is made of all rows", "sbp ~ center(age) + (1 | site)", {}, {}),
    ("groups inside or above", "sbp ~ age + (1 | site/sex)", {}, {}),
    ("with an intercept", "sbp ~ 0 + age + (0 + age | site)", {}, {}),
    ("no offset", "sbp ~ age + offset(age) + (1 | site)", {}, {}),
    ("clip changes nothing", "sbp ~ age + (1 | site)", {}, {"clip": 2.0}),
    ("masked=False", "sbp ~ age + (1 | site)", {}, {"masked": True}),
    ("leave one_round out", "sbp ~ age + (1 | site)", {"one_round": True}, {}),
    ("errors are Satterthwaite's", "sbp ~ age + (1 | site)", {"kenward_roger": True}, {}),
    ("dp='site'", "sbp ~ age + (1 | site)", {}, {"dp": "client"}),
    ("ranges are written", "sbp ~ age + (1 | site)", {"ranges": "age 90 20"}, {}),
]


@pytest.mark.parametrize(("words", "formula", "settings", "options"), REFUSED, ids=[row[0] for row in REFUSED])
def test_what_is_not_covered_is_refused_in_one_line(
    words: str, formula: str, settings: dict[str, Any], options: dict[str, Any]
) -> None:
    federation, design = from_formula(table("intercept", 0).iloc[::20], formula)
    method = MixedEffects(design, **{"ranges": RANGES, "draws": 0, **settings})
    with pytest.raises(UserError) as caught:
        fit(method, federation, 5, **{**HOW, "dp": "site", "epsilon": 4.0, **options})
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_other_responses_are_refused() -> None:
    df = table("intercept", 0).iloc[::20].assign(sbp=lambda d: (d.sbp / 50).clip(1, 3).astype(int))
    federation, design = from_formula(df, FORMULAS["intercept"], family="ordinal")
    with pytest.raises(UserError, match="is of gaussian, binomial responses, not of family ordinal"):
        fit(MixedEffects(design, ranges=RANGES, draws=0), federation, 5, dp="site", epsilon=4.0, **HOW)


def test_ranges_of_columns_follow_from_those_of_the_table() -> None:
    ranges = read_ranges("age 20 90; `body mass` 10 60")
    assert range_of("Intercept", ranges)[:2] == (1.0, 1.0)
    assert range_of("sex[m]", ranges) == (0.0, 1.0, "sex[]")
    assert range_of("age:sex[m]", ranges) == (0.0, 90.0, "age:sex[]")
    assert range_of("age:body mass", ranges)[:2] == (200.0, 5400.0)
    assert range_of("C(stage, levels=['a:b'])[a:b]", ranges)[:2] == (0.0, 1.0)


def test_sums_are_packed_as_they_are_sent() -> None:
    v = torch.from_numpy(np.random.default_rng(0).normal(size=(3, 20, 4)))
    torch.testing.assert_close(packed(v.mT @ v), packed_products(v))


def test_checkpoints_without_ranges_are_those_of_fits_without_them() -> None:
    """A setting that is newer than a checkpoint is in none that was begun before."""
    design = from_formula(table("intercept", 0).iloc[::20], FORMULAS["intercept"])[1]
    assert "ranges" not in identity_of(MixedEffects(design), Options())["settings"]
    assert "ranges" in identity_of(MixedEffects(design, ranges=RANGES), Options())["settings"]
