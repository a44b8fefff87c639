"""Every response: its density beside SciPy's, its fit beside exact quadrature, its limits."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from support.representatives import of_all
from support.responses import CASES, CUTS, Case, hessian, quadrature, referee_point

from hierfl import mixed_model
from hierfl.data.formula.federate import from_formula
from hierfl.errors import UserError
from hierfl.models.mixed_effects.likelihood.quadrature.newton import Problem
from hierfl.models.mixed_effects.method import MixedEffects

ALL = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


#: exact quadrature for everyone, Laplace's approximation where one can be, and as many nodes as the referee's
NEW = ("student-t", "truncated-poisson", "truncated-negative-binomial", "hurdle-negative-binomial",
       "generalised-poisson")  # fmt: skip
MANY = ("binomial-probit", "binomial-cloglog", "nbinom1", "zero-inflated-negative-binomial", "hurdle-poisson", "beta",
        *NEW)  # fmt: skip
FITS = [(case, nodes) for nodes in (0, 1) for case in CASES.values() if case.family != "gaussian" or not nodes]
FITS += [(CASES[family], 41) for family in MANY]
#: the dear ones in the slow set: those whose parts the others have
LATER = ("beta-binomial", "nbinom1", "cox", "exponential", "truncated-negative-binomial", "hurdle-negative-binomial",
         "zero-inflated-negative-binomial")  # fmt: skip
#: and those whose fits the quick set compares with R's, in test_dispersion and test_glmmtmb
AS_IN_R = ("negative-binomial", "gamma", "beta", "zero-inflated-poisson", "hurdle-poisson", "student-t",
           "generalised-poisson", "truncated-poisson")  # fmt: skip
FITTED = [fit for fit in FITS if fit[1] == 0 and fit[0].family not in (*LATER, *AS_IN_R)]
FITTED += [fit for fit in FITS if (fit[1], fit[0].family) in ((1, "poisson"), (41, "truncated-poisson"))]


@pytest.mark.parametrize("fit", of_all(FITS, FITTED, lambda fit: f"{fit[1]}-{fit[0].family}"))
def test_the_fit_is_that_of_exact_quadrature(fit: tuple[Case, int]) -> None:
    """Laplace's approximation beside Laplace's: coefficients, standard deviations and errors, the log likelihood."""
    case, nodes = fit
    df = case.table(12, rows=(2, 25))
    model = mixed_model(df, case.formula, family=case.family, population="ml", draws=0, nodes=nodes, **case.how)  # type: ignore[arg-type]
    effects, shared = model.summary().table.set_index("effect"), model.run.shared
    at, h = referee_point(case, model), 1e-2 if nodes == 1 else 1e-3

    def theirs(theta: np.ndarray) -> float:
        return -quadrature(theta, df, case, nodes or 41)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert model.log_likelihood == pytest.approx(theirs(at), abs=1e-9 if nodes == 41 else 2e-5)
        slope = np.array([theirs(at + s) - theirs(at - s) for s in h * np.eye(len(at))]) / (2 * h)
        bend = hessian(theirs, at, h)
    assert float(shared["effects.to_go"]) < 1e-6
    errors = np.sqrt(np.diag(np.linalg.inv(-bend)))
    # Newton's step of the referee from our estimates, in standard errors
    assert np.abs(np.linalg.solve(bend, slope) / errors).max() < 0.01
    assert effects.standard_error["x"] == pytest.approx(errors[1], rel=0.01)
    assert effects.standard_error["sd(Intercept)"] == pytest.approx(
        errors[2] * effects.estimate["sd(Intercept)"], rel=0.01
    )


PLAIN = {"negative-binomial": "poisson", "nbinom1": "poisson", "zero-inflated-poisson": "poisson",
         "zero-inflated-negative-binomial": "negative-binomial", "beta-binomial": "binomial",
         "generalised-poisson": "poisson", "truncated-negative-binomial": "truncated-poisson",
         "hurdle-negative-binomial": "hurdle-poisson", "student-t": "gaussian"}  # fmt: skip


@pytest.mark.parametrize("wide", of_all([*PLAIN], ["negative-binomial", "zero-inflated-poisson"], str))
def test_a_fit_without_more_spread_ends_there_and_says_so(wide: str) -> None:
    case = CASES[PLAIN[wide]]
    df = case.table(6, rows=(2, 20))
    if wide == "student-t":  # with fewer outliers than a normal's
        df["y"] = df.x + df.effect + np.random.default_rng(0).uniform(-1, 1, len(df))
    fit, same = (
        mixed_model(df, case.formula, family=family, population="ml", draws=0) for family in (wide, case.family)
    )  # type: ignore[arg-type]
    last = fit.summary().table.iloc[-2 if wide == "hurdle-negative-binomial" else -1]
    assert fit.log_likelihood >= same.log_likelihood - 1e-6
    assert "than a" in last.note
    assert fit.log_likelihood == pytest.approx(same.log_likelihood, abs=1e-5)
    assert float(fit.run.shared["effects.to_go"]) < 1e-6


@pytest.mark.parametrize("family", ["zero-inflated-poisson", "beta-binomial", *MANY])
def test_a_mode_is_found_from_anywhere(family: str) -> None:
    case = CASES[family]
    df = case.table(8)
    federation, design = from_formula(df, case.formula, family=family)  # type: ignore[arg-type]
    method = MixedEffects(design)
    batch = federation.to("cpu", torch.float64).batch(range(8))
    own = {k: torch.tensor(v).double() for k, v in zip(method.response_family.starts, case.own, strict=True)}
    for shift in (-3.0, 0.0, 3.0):
        values = {"beta": torch.tensor([shift, 0.7]).double(), "root": torch.tensor([2.0]).double(), **own}
        problem = Problem.from_batch(method, batch, values)
        u, (factor,) = problem.mode(torch.zeros(8, 1).double())
        grid = torch.linspace(-8, 8, 801).double()[:, None, None].expand(-1, 8, 1)
        assert (problem.heights(u) >= problem.heights(grid).amax(0) - 1e-9).all()
        assert factor.isfinite().all()
        assert (problem.step(u)[0].abs() < 1e-6).all()


def test_a_hazard_that_steps_is_a_poisson_model_of_intervals() -> None:
    case = CASES["exponential"]
    df = case.table(15)
    fit = mixed_model(df, case.formula, family="exponential", population="ml", draws=0, **case.how)  # type: ignore[arg-type]
    parts = []
    for first, last in zip(np.r_[0.0, CUTS], np.r_[CUTS, np.inf], strict=True):
        at_risk = df[df.y > first]
        spent = np.minimum(at_risk.y, last) - first
        d = ((at_risk.event == 1) & (at_risk.y <= last)).astype(int)
        parts.append(at_risk.assign(d=d, spent=spent, interval=f"from {first:g}"))
    long = pd.concat(parts)
    theirs = mixed_model(
        long, "d ~ 1 + x + interval + offset(log(spent)) + (1 | site)", family="poisson", population="ml", draws=0
    )
    ours, other = (f.summary().table.set_index("effect") for f in (fit, theirs))
    pairs = {
        "Intercept": "Intercept", "x": "x", "sd(Intercept)": "sd(Intercept)",
        "log hazard, 0.2 to 0.6": "interval[from 0.2]", "log hazard, 0.6 on": "interval[from 0.6]",
    }  # fmt: skip
    for mine, name in pairs.items():
        assert ours.estimate[mine] == pytest.approx(other.estimate[name], abs=1e-6), mine
        assert ours.standard_error[mine] == pytest.approx(other.standard_error[name], rel=1e-5)
    counted = float(np.log(long.spent[long.d == 1]).sum())
    assert fit.log_likelihood == pytest.approx(theirs.log_likelihood - counted, abs=1e-6)


@pytest.mark.parametrize(
    "family", of_all(["gaussian", "reml", "poisson", "beta-binomial"], ["gaussian", "reml", "poisson"], str)
)
def test_a_row_of_weight_three_is_three_rows(family: str) -> None:
    case = CASES["gaussian" if family == "reml" else family]
    how = {"population": "reml" if family == "reml" else "ml", "draws": 0}
    df = case.table(12, rows=(2, 15))
    times = np.random.default_rng(0).integers(1, 4, len(df))
    once = mixed_model(df.assign(w=times), case.formula, family=case.family, weights="w", **how)  # type: ignore[arg-type]
    often = mixed_model(df.loc[df.index.repeat(times)], case.formula, family=case.family, **how)  # type: ignore[arg-type]
    a, b = once.summary().table, often.summary().table
    np.testing.assert_allclose(a.estimate, b.estimate, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(a.standard_error, b.standard_error, rtol=1e-5)
    assert once.log_likelihood == pytest.approx(often.log_likelihood, abs=1e-6)


def test_an_offset_of_a_gaussian_response_is_what_is_subtracted() -> None:
    df = CASES["gaussian"].table(12).assign(o=lambda d: 3 * d.x**2)
    with_offset = mixed_model(df, "y ~ 1 + x + offset(o) + (1 | site)", draws=200)
    subtracted = mixed_model(df.assign(y=df.y - df.o), "y ~ 1 + x + (1 | site)", draws=200)
    np.testing.assert_allclose(with_offset.summary().table.estimate, subtracted.summary().table.estimate, rtol=1e-6)
    new = df.head(5)
    np.testing.assert_allclose(with_offset.predict(new)["mean"], subtracted.predict(new)["mean"] + new.o, rtol=1e-6)


#: one number, trials, categories, times with and without steps
PREDICTED = [CASES[name] for name in ("gaussian", "poisson", "binomial", "ordinal", "weibull")]


@pytest.mark.parametrize("case", of_all([*CASES.values()], PREDICTED, lambda case: case.family))
def test_predictions_of_every_response(case: Case) -> None:
    df = case.table(8, rows=(2, 10))
    fit = mixed_model(df, case.formula, family=case.family, draws=40, **case.how)  # type: ignore[arg-type]
    new = df[["x", "site"]].head(6)  # no response, no trials, no events: of one trial, until the event
    for level in ("client", "population", "new"):
        predictions = fit.predict(new, level=level)  # type: ignore[arg-type]
        assert predictions.notna().all(axis=None)
        assert (predictions["lower"] <= predictions["upper"]).all()
    if case.response != "y":
        of_trials = fit.predict(df.head(6))
        np.testing.assert_allclose(of_trials["mean"], fit.predict(new)["mean"] * df.n.head(6), rtol=1e-6)


@pytest.mark.parametrize("effects", ["1 + x + (1 | site)", "1 + x + offset(o) + (1 | site/patient)"])
def test_a_lognormal_fit_is_the_gaussian_one_of_the_logarithm(effects: str) -> None:
    """By maximum likelihood: the log likelihood is less by the logarithms, which are the Jacobian's."""
    df = CASES["lognormal"].table(10, rows=(2, 15)).assign(log_y=lambda d: np.log(d.y), o=lambda d: 0.3 * d.x**2)
    df["patient"] = [f"p{k % 3}" for k in range(len(df))]
    how = {"population": "ml", "draws": 0, "tol": 1e-9}
    ours = mixed_model(df, f"y ~ {effects}", family="lognormal", **how)
    theirs = mixed_model(df, f"log_y ~ {effects}", **how)
    lognormal, gaussian = (fit.summary().table.set_index("effect") for fit in (ours, theirs))
    np.testing.assert_allclose(lognormal.estimate, gaussian.estimate, rtol=0, atol=1e-8)
    own = [name for name in lognormal.index if name.startswith("sd(")]
    np.testing.assert_allclose(lognormal.standard_error[own], gaussian.standard_error[own], rtol=1e-6)
    assert ours.log_likelihood == pytest.approx(theirs.log_likelihood - df.log_y.sum(), abs=1e-8)
    assert lognormal["ratio of medians"]["x"] == pytest.approx(np.exp(gaussian.estimate["x"]), rel=1e-8)
    new, variance = df.head(5), (gaussian.estimate[own] ** 2)["sd(residual)"]
    median = np.log(ours.predict(new, level="population")["mean"]) - variance / 2
    np.testing.assert_allclose(median, theirs.predict(new, level="population")["mean"], rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    ("formula", "family", "how", "words"),
    [
        ("y ~ x + (1 | site)", "beta-binomial", {}, "has no trials"),
        ("p(n, y) ~ x + (1 | site)", "binomial", {}, "cannot be greater than .trials."),
        ("p(y, half) ~ x + (1 | site)", "binomial", {}, "collection of integer numbers"),
        ("p(y, n) ~ x + (1 | site)", "poisson", {}, "successes among trials, which a poisson response is not"),
        ("x ~ 1 + (1 | site)", "gamma", {}, "above zero"),
        ("x ~ 1 + (1 | site)", "weibull", {}, "above zero"),
        ("x ~ 1 + (1 | site)", "lognormal", {}, "the family lognormal is above zero, and 'x' is not in"),
        ("y ~ x + (1 | site)", "lognormal", {}, "the family lognormal is above zero, and 'y' is not in"),
        ("same ~ x + (1 | site)", "lognormal", {}, "the response 'same' does not vary"),
        ("half ~ x + (1 | site)", "lognormal", {"known_se": "half"}, "belong to a gaussian response, not a lognormal"),
        ("half ~ x + (1 | site)", "ordinal", {}, "neither"),
        ("word ~ x + (1 | site)", "ordinal", {}, "have no order"),
        ("two ~ x + (1 | site)", "ordinal", {}, "of two, binomial"),
        ("y1 ~ 0 + x + (1 | site)", "ordinal", {}, "write y ~ 1"),
        ("y ~ x + (1 | site)", "poisson", {"event": "two"}, "belong to a time"),
        ("half ~ x + (1 | site)", "weibull", {"event": "y1"}, "not 0 or 1"),
        ("half ~ x + (1 | site)", "weibull", {"event": "none"}, "no row has an event"),
        ("half ~ x + (1 | site)", "exponential", {"event": "two", "cuts": "3, 2"}, "that grow, such as"),
        ("y ~ x + (1 | site)", "poisson", {"cuts": "3"}, "of an exponential response"),
        ("y ~ x + (1 | site)", "truncated-poisson", {}, "a truncated-poisson response is a whole number from 1"),
        ("x ~ 1 + (1 | site)", "student-t", {"degrees_of_freedom": "-4"}, "one number above zero, such as 4, not '-4'"),
        ("same ~ x + (1 | site)", "student-t", {}, "the response 'same' does not vary"),
        ("y ~ x + (1 | site)", "poisson", {"weights": "none"}, "not above zero"),
        ("y ~ x + (1 | site)", "poisson", {"weights": "word"}, "cannot hold weights"),
        ("y ~ x + (1 | site)", "poisson", {"weights": "nope"}, "unknown column 'nope'"),
        ("y ~ x + offset(log(none)) + (1 | site)", "poisson", {}, "not finite"),
        ("y ~ x + (1 | site)", "poisson", {"family_prior": "normal(0, 1)"}, "family_prior"),
        ("missing ~ x + (1 | site)", "poisson", {}, "missing value"),
    ],
)  # fmt: skip
def test_responses_that_cannot_be(formula: str, family: str, how: dict, words: str) -> None:
    df = CASES["binomial"].table(6)
    df = df.assign(half=df.y + 0.5, word=np.where(df.y > 2, "a", "b"), two=df.index % 2, none=0, y1=df.y + 1, same=3.0)
    df["missing"] = df.y.where(df.index != 3)
    with pytest.raises(UserError, match=words) as refused:
        mixed_model(df, formula, family=family, **how)  # type: ignore[arg-type]
    assert "\n" not in str(refused.value)
