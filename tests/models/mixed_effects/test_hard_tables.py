"""Tables on which a fit goes wrong without a word: a correct answer, or one clear sentence."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from support.mixed import table
from support.mixed_families import counts

from hierfl import mixed_model

SEPARATED = "no finite estimate: separated"
BINOMIAL: dict = {"family": "binomial", "draws": 0}


def test_a_covariate_that_says_all() -> None:
    df = counts("binomial", 12)
    fit = mixed_model(
        df.assign(y=(df.x > 0.2).astype(float)), "y ~ 1 + x + (1 | site)", family="binomial", population="ml", draws=0
    )
    table = fit.summary().table.set_index("effect")
    assert table.note["x"] == table.note["Intercept"] == SEPARATED
    assert np.isnan(table.standard_error["x"])


def test_a_covariate_that_says_all_but_for_ties() -> None:
    """Quasi-separation: at one value of x there are both, and x has no end all the same."""
    df = counts("binomial", 12)
    x = df.x.round().clip(-2, 2)
    y = np.where(x == 0, df.y, (x > 0).astype(float))
    table = (
        mixed_model(df.assign(x=x, y=y), "y ~ 1 + x + (1 | site)", family="binomial", population="ml", draws=0)
        .summary()
        .table
    )
    table = table.set_index("effect")
    assert table.note["x"] == SEPARATED
    # the intercept is that of the rows with both
    rest = mixed_model(
        df[x == 0].assign(y=y[x == 0]), "y ~ 1 + (1 | site)", family="binomial", population="ml", draws=0
    )
    theirs = rest.summary().table.set_index("effect")
    assert table.note["Intercept"] == ""
    assert table.estimate["Intercept"] == pytest.approx(theirs.estimate["Intercept"], rel=1e-3)
    assert table.standard_error["Intercept"] == pytest.approx(theirs.standard_error["Intercept"], rel=1e-3)


def test_a_cell_of_few_rows_and_what_is_beside_it() -> None:
    """The coefficient of a rare cell is noted, too, however little its column spreads; and the whole reference's."""
    df = counts("binomial", 20)
    rare = (np.arange(len(df)) % 97 == 0).astype(float)
    fit = mixed_model(df.assign(rare=rare, y=np.where(rare, 1.0, df.y)), "y ~ x + rare + (1 | site)", **BINOMIAL)
    table = fit.summary().table.set_index("effect")
    assert table.note[["Intercept", "x", "rare"]].tolist() == ["", "", SEPARATED]
    g = np.array(["u", "v", "w"])[np.arange(len(df)) % 3]
    fit = mixed_model(df.assign(g=g, y=np.where(g == "u", 0.0, df.y)), "y ~ x + g + (1 | site)", **BINOMIAL)
    table = fit.summary().table.set_index("effect")
    assert table.note[["Intercept", "x", "g[v]", "g[w]"]].tolist() == [SEPARATED, "", SEPARATED, SEPARATED]


def test_columns_that_nearly_go_together_are_no_separation() -> None:
    """A treatment and its interaction with a year: as centred, in the units of the other's coefficients."""
    df = counts("binomial", 12).assign(arm=lambda d: np.arange(len(d)) % 2)
    year = np.random.default_rng(0).integers(-8, 9, len(df))
    df["y"] = np.random.default_rng(1).binomial(1, 1 / (1 + np.exp(-0.3 * df.arm * year)))
    centred, raw = (
        mixed_model(df.assign(year=year + shift), "y ~ arm*year + (1 | site)", **BINOMIAL).summary().table
        for shift in (0, 2000)
    )
    centred, raw = centred.set_index("effect"), raw.set_index("effect")
    assert (raw.note.drop("sd(Intercept)") == "").all()
    assert raw.standard_error["arm:year"] == pytest.approx(centred.standard_error["arm:year"], rel=1e-5)
    moved = raw.estimate["arm"] + 2000 * raw.estimate["arm:year"]
    assert moved == pytest.approx(centred.estimate["arm"], rel=1e-5)


@pytest.mark.parametrize(("family", "y"), [("binomial", 1.0), ("binomial", 0.0), ("poisson", 0.0)])
def test_a_response_that_is_always_the_same(family: str, y: float) -> None:
    df = counts(family, 8).assign(y=y)
    table = mixed_model(df, "y ~ 1 + (1 | site)", family=family, draws=200).summary().table.set_index("effect")  # type: ignore[arg-type]
    assert table.note["Intercept"] == SEPARATED
    assert (table.estimate["Intercept"] > 0) == (y > 0)


def test_a_correlation_of_one() -> None:
    rng = np.random.default_rng(0)
    who = np.repeat(np.arange(15), 12)
    x, b = rng.normal(size=len(who)), rng.normal(size=15)
    y = 1 + b[who] + (0.5 + 0.7 * b[who]) * x + 0.5 * rng.normal(size=len(who))
    df = pd.DataFrame({"y": y, "x": x, "site": who.astype(str)})
    table = mixed_model(df, "y ~ 1 + x + (1 + x | site)", population="ml", draws=0).summary().table.set_index("effect")
    assert table.estimate["corr(Intercept, x)"] > 0.999
    assert table.note["corr(Intercept, x)"] == "at its bound"


@pytest.mark.parametrize("family", ["gaussian", "poisson"])
def test_years_need_not_be_centred(family: str) -> None:
    df = table(12) if family == "gaussian" else counts("poisson", 12)
    years = df.assign(x=1990 + 3 * df.x)
    centred, away = (
        mixed_model(data, "y ~ 1 + x + (1 + x | site)", family=family, population="ml", draws=0)  # type: ignore[arg-type]
        for data in (df.assign(x=3 * df.x), years)
    )
    ours, theirs = (fit.summary().table.set_index("effect") for fit in (away, centred))
    assert away.log_likelihood == pytest.approx(centred.log_likelihood, abs=1e-6)
    for name in ("x", "sd(x)"):
        assert ours.estimate[name] == pytest.approx(theirs.estimate[name], rel=1e-5)
        assert ours.standard_error[name] == pytest.approx(theirs.standard_error[name], rel=1e-3)
    shifted = ours.estimate["Intercept"] + 1990 * ours.estimate["x"]
    assert shifted == pytest.approx(theirs.estimate["Intercept"], abs=1e-5 * abs(ours.estimate["Intercept"]))


def test_a_response_may_be_a_function() -> None:
    df = table(8).assign(z=lambda d: np.exp(d.y))
    transformed, plain = (
        mixed_model(df, f"{y} ~ 1 + x + (1 | site)", population="ml", draws=0).summary().table for y in ("log(z)", "y")
    )
    np.testing.assert_allclose(transformed.estimate, plain.estimate, rtol=1e-9)


def test_a_formula_that_reproduces_every_row(caplog: pytest.LogCaptureFixture) -> None:
    """No likelihood has a maximum where the residual's spread goes to zero: one line, and no tests of rounding."""
    df = table(8).assign(y=lambda d: d.site.astype("category").cat.codes + 0.0)
    summary = mixed_model(df, "y ~ x + (1 | site)", draws=0).summary()
    assert not caplog.records
    assert summary.notes[0].startswith(
        "the formula reproduces every row: the residual's standard deviation goes to zero"
    )
    assert summary.table[["standard_error", "p", "lower"]].isna().all(axis=None)


@pytest.mark.parametrize("kenward_roger", [False, True])
def test_as_many_columns_of_clients_as_clients(kenward_roger: bool) -> None:
    """Nothing is left to tell clients' spread by: no standard errors of theirs; others are those of least squares."""
    df = table(4)
    fitted = mixed_model(df, "y ~ site + x + (1 | site)", draws=0, kenward_roger=kenward_roger)
    effects = fitted.summary().table.set_index("effect")
    columns = pd.get_dummies(df.site, drop_first=True).astype(float).assign(one=1.0, x=df.x).to_numpy()
    beta, (square,), *_ = np.linalg.lstsq(columns, df.y.to_numpy(), rcond=None)
    error = np.sqrt(square / (len(df) - 5) * np.linalg.inv(columns.T @ columns)[-1, -1])
    assert effects.estimate["x"] == pytest.approx(beta[-1], rel=1e-6)
    assert effects.standard_error["x"] == pytest.approx(error, rel=1e-4)
    of_clients = [name for name in effects.index if name.startswith(("site", "Intercept"))]
    assert effects.loc[of_clients, ["standard_error", "p", "lower"]].isna().all(axis=None)
    assert set(effects.note[of_clients]) == {"standard error not identified"}
    assert fitted.means("site").lower.isna().all()
    assert fitted.anova().set_index("term").p.isna()["site"]


def test_a_flat_direction_of_the_spread_leaves_other_tests_as_they_are() -> None:
    """lmerTest 3.1.3 has 3.04 degrees of freedom of the intercept; a normal would make of p = 0.27 0.18."""
    rng = np.random.default_rng(24)
    who = np.repeat(np.arange(4), 8)
    x, f = rng.normal(size=32), rng.choice(list("abc"), 32)
    rng.normal(size=12)
    y = rng.normal(size=4)[who] + 0.5 * x + rng.normal(size=32)
    df = pd.DataFrame({"y": y, "f": np.where(who == 0, f, "a"), "g": who.astype(str)})
    effects = mixed_model(df, "y ~ f + (1 + f | g)", draws=0).summary().table.set_index("effect")
    assert effects.df["Intercept"] == pytest.approx(3.04, abs=0.02)
    assert np.isnan(effects.p["f[b]"])
