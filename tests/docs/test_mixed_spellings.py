"""The page of R's calls beside ours: every pair is run."""

from __future__ import annotations

import ast
import re
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from support.paths import ROOT
from support.representatives import of_all

from hierfl import mixed_model
from hierfl.data.formula.federate import from_formula
from hierfl.errors import UserError

PAGE = ROOT / "docs" / "mixed-spellings.md"
#: arguments of R's calls, and what they are here
ARGUMENTS: dict[str, dict[str, Any]] = {
    "REML=FALSE": {"population": "ml"}, "weights=n": {"weights": "n"},
    "weights=z": {"precision_weights": "z"}, "dispformula=~g": {"dispersion": "~ g"},
    "poisson, ziformula=~a": {"family": "zero-inflated-poisson", "zero_inflation": "~ a"},
    "binomial": {"family": "binomial"}, "poisson": {"family": "poisson"},
    'binomial("probit")': {"family": "binomial-probit"}, 'binomial("cloglog")': {"family": "binomial-cloglog"},
    "betabinomial": {"family": "beta-binomial"}, "nbinom2": {"family": "negative-binomial"},
    "nbinom1": {"family": "nbinom1"}, "beta_family": {"family": "beta"}, 'Gamma("log")': {"family": "gamma"},
    "poisson, ziformula=~1": {"family": "zero-inflated-poisson"},
    "nbinom2, ziformula=~1": {"family": "zero-inflated-negative-binomial"},
    "truncated_poisson, ziformula=~1": {"family": "hurdle-poisson"},
    "truncated_nbinom2, ziformula=~1": {"family": "hurdle-negative-binomial"},
    "truncated_poisson": {"family": "truncated-poisson"}, "genpois": {"family": "generalised-poisson"},
    "truncated_nbinom2": {"family": "truncated-negative-binomial"}, "t_family": {"family": "student-t"},
}  # fmt: skip


class Pair(NamedTuple):
    """A row of the page.

    Attributes:
        theirs, how: R's formula, and its other arguments as they are said here.
        ours, ours_how: of the call here.
        read: whether R's formula is read as it stands.
    """

    theirs: str
    how: dict[str, Any]
    ours: str
    ours_how: dict[str, Any]
    read: bool


def pairs() -> list[Pair]:
    """All of the page."""
    rows = re.findall(
        r"^\| `(.+?)` \| `(.+?)` \| (yes|no) \|$", PAGE.read_text().replace("\\|", "\u00a6"), re.MULTILINE
    )
    spellings = []
    for theirs, ours, read in rows:
        function, inside = re.fullmatch(r"(\w+)\((.*)\)", theirs.replace("\u00a6", "|")).groups()  # type: ignore[union-attr]
        formula, rest = re.fullmatch(r"(.*), d\b(.*)", inside).groups()  # type: ignore[union-attr]
        how = {"population": "ml"} if function == "glmmTMB" else {}
        while rest:
            (argument,) = [key for key in sorted(ARGUMENTS, key=len) if rest[2:].startswith(key)][-1:]
            how |= ARGUMENTS[argument]
            rest = rest[2 + len(argument) :]
        call = ast.parse(ours.replace("\u00a6", "|"), mode="eval").body
        assert isinstance(call, ast.Call)
        assert ast.unparse(call.func) == "mixed_model"
        text = ast.literal_eval(call.args[1])
        spellings.append(
            Pair(formula, how, text, {k.arg: ast.literal_eval(k.value) for k in call.keywords}, read == "yes")
        )
    assert len(spellings) == sum(line.startswith("| `") for line in PAGE.read_text().splitlines()) > 35
    return spellings


def table() -> pd.DataFrame:
    """Six sites of twelve rows, with columns of every kind."""
    rng = np.random.default_rng(3)
    df = pd.DataFrame({"site": np.repeat(list("pqrstu"), 12), "h": np.tile(["i", "i", "j", "j"], 18)})
    n = len(df)
    df = df.assign(
        x=rng.normal(size=n), z=rng.uniform(0.5, 3, n), g=rng.choice(list("uvw"), n), a=rng.choice(["b", "c"], n),
        count=rng.integers(1, 4, n), k=rng.integers(0, 4, n), m=rng.integers(1, 5, n),
        answer=rng.choice(["no", "yes"], n),
    )  # fmt: skip
    df["b"] = rng.random(n) < 0.4
    df["y"] = df.x + 0.4 * df.x * rng.normal(size=6).repeat(12) + rng.normal(size=6).repeat(12) + rng.normal(size=n)
    visits = rng.poisson(rng.gamma(1.5, 2, n)) * (rng.random(n) < 0.8)
    return df.assign(n=df.k + df.m, share=df.k / (df.k + df.m), visits=visits, part=rng.beta(2, 3, n))


PAIRS = pairs()
#: after which two fits of the same model are the same, and two of different models differ, converged or not
ROUNDS = 3
#: responses with numbers of their own take ten times as long as others, and are in the slow set
DEAR = {"student-t", "truncated-negative-binomial"}
QUICK = [
    pair
    for pair in PAIRS
    if not re.match(r"visits|cbind|k / n|part", pair.theirs) and pair.ours_how.get("family") not in DEAR
]


@pytest.mark.cpu(5, "two fits of each pair, and their predictions")
@pytest.mark.parametrize("pair", of_all(PAIRS, QUICK, lambda pair: pair.theirs))
def test_every_pair_of_the_page(pair: Pair) -> None:
    """Fits are the same to 1e-10 after some rounds; what is refused is one line with the formula of the page."""
    df = table()
    ours = mixed_model(df, pair.ours, draws=0, rounds=ROUNDS, **pair.ours_how)
    if not pair.read:
        with pytest.raises(UserError) as refused:
            mixed_model(df, pair.theirs, draws=0, **pair.how)
        wanted = pair.ours.partition(" ~")[0] if "share" in pair.ours or "answer[" in pair.ours else pair.ours
        part = next((p for p in ("(1 | site/h)", "(1 + x || site)", "tp(x, df=5)") if p in pair.ours), wanted)
        assert part in str(refused.value)
        assert "\n" not in str(refused.value)
        return
    theirs = mixed_model(df, pair.theirs, draws=0, rounds=ROUNDS, **pair.how)
    assert theirs.log_likelihood == pytest.approx(ours.log_likelihood, abs=1e-10)
    actual, expected = (fit.summary().table.select_dtypes("number").to_numpy() for fit in (theirs, ours))
    np.testing.assert_allclose(actual, expected, rtol=1e-10, atol=1e-10)
    for name in ("client", "population"):
        a, b = (fit.predict(df, level=name, interval=None)["mean"] for fit in (theirs, ours))  # type: ignore[arg-type]
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)


def test_listed_levels_are_those_of_a_category() -> None:
    df = table()
    _, wanted = from_formula(df.assign(g=pd.Categorical(df.g, list("wuv"))), "y ~ C(g) + (1 | site)")
    federation, design = from_formula(df, "y ~ C(g, levels=['w', 'u', 'v', 'nobody']) + (1 + C(g) | site)")
    assert design.fixed == wanted.fixed == ("Intercept", "C(g)[u]", "C(g)[v]")
    assert federation.about["reader"](df[df.g == "v"])[:, :3].tolist() == [[1, 0, 1]] * int((df.g == "v").sum())
    for formula, line in (
        ("y ~ C(g, levels=['w', 'u']) + (1 | site)", "column 'g' has the level 'v', which levels=['w', 'u'] lacks"),
        ("y ~ count + C(count, levels=[3, 2, 1]) + (1 | site)", "column 'count' is a category by its levels, and a n"),
        ("y ~ C(g, levels=['w', 'u', 'w']) + (1 | site)", "C: levels lists an entry twice"),
        ("y ~ C(x + z, levels=[1, 2]) + (1 | site)", "those of a plain column: C(column, levels=['b', 'a'])"),
        ("k / n ~ x + (1 | site)", "write 'p(k, n) ~ x + (1 | site)', or say weights='n' as in R; a ratio"),
        ("y ~ x + (-x || site)", "'-' takes x away, which is not among the effects before it"),
        ("y ~ x + (2 * x || site)", "the effects left of '||'"),
    ):
        with pytest.raises(UserError) as refused:
            from_formula(df, formula)
        assert line in str(refused.value)


def test_splines_with_knots_that_are_said_have_the_curves_of_r() -> None:
    """Beside truncated powers, which span them: of natural splines those that are straight beyond the outer knots."""
    df = table()
    at = np.array([-3.5, -0.5, 0.5, 3.6])
    assert df.x.between(at[0], at[-1]).all()
    x = df.x.to_numpy()
    cubes = np.maximum(x[:, None] - at, 0) ** 3
    ends = (cubes[:, :-1] - cubes[:, -1:]) / (at[-1] - at[:-1])
    natural = {"b1": x, **{f"b{k + 2}": ends[:, k] - ends[:, -1] for k in range(2)}}
    plain = {"b1": x, "b2": x**2, "b3": x**3, "b4": cubes[:, 1], "b5": cubes[:, 2]}
    for call, columns in (
        ("ns(x, knots=c(-0.5, 0.5), Boundary.knots=c(-3.5, 3.6))", natural),
        ("bs(x, knots=c(-0.5, 0.5), Boundary.knots=c(-3.5, 3.6))", plain),
    ):
        spline = mixed_model(df, f"y ~ {call} + (1 | site)", draws=0, population="ml")
        powers = mixed_model(df.assign(**columns), f"y ~ {' + '.join(columns)} + (1 | site)", draws=0, population="ml")
        assert spline.log_likelihood == pytest.approx(powers.log_likelihood, abs=1e-8)
        assert len(spline.summary().table) == len(powers.summary().table)
