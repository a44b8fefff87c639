"""What R, lme4 and patsy write otherwise: one line with the formula rewritten, which can be read."""

from __future__ import annotations

import re

import pytest
from support.commands import Call
from support.tables import table

from hierfl.data.formula.federate import from_formula
from hierfl.data.formula.gate import parse
from hierfl.errors import UserError

COLUMNS = ["y", "x", "g", "site", "blood pressure", "2020_sales", "size (cm)"]
#: a formula, and how it is written here
REWRITTEN = {
    "y ~ x^2 + (1 | site)": "y ~ I(x**2) + (1 | site)",
    "y ~ x**2 + (1 | site)": "y ~ I(x**2) + (1 | site)",
    "y ~ scale(x)^2 + (1 | site)": "y ~ I(scale(x)**2) + (1 | site)",
    "y ~ x > 3 + (1 | site)": "y ~ I(x > 3) + (1 | site)",
    "y ~ (x > 3) * g + (1 | site)": "y ~ (I(x > 3)) * g + (1 | site)",
    "y ~ g == 'a' + (1 | site)": "y ~ I(g == 'a') + (1 | site)",
    "y ~ x/2 + (1 | site)": "y ~ I(x/2) + (1 | site)",
    "y ~ 2*x + g - 1 + (1 | site)": "y ~ I(2*x) + g - 1 + (1 | site)",
    "y ~ x - 5 + (1 | site)": "y ~ I(x - 5) + (1 | site)",
    "y ~ log(x)/2 + sin(2*x) + (1 | site)": "y ~ I(log(x)/2) + sin(2*x) + (1 | site)",
    "y ~ I(x / 1e3) + (1 | site)": "y ~ I(x / 1000) + (1 | site)",
    "y ~ C(g, Treatment(reference='b')) + (1 | site)": "y ~ C(g, Treatment('b')) + (1 | site)",
    "y ~ C(g, contr.sum) + (1 | site)": "y ~ C(g, Sum) + (1 | site)",
    "y ~ interaction(g, h) + (1 | site)": "y ~ g:h + (1 | site)",
    "y ~ . + (1 | site)": "y ~ x + g + `blood pressure` + `2020_sales` + `size (cm)` + (1 | site)",
    "y ~ log(x, 10) + ln(x) + (1 | site)": "y ~ log10(x) + log(x) + (1 | site)",
    "y ~ np.power(x, 3) + (1 | site)": "y ~ I(x**3) + (1 | site)",
    "y ~ ns(x, 3) + (1 | site)": "y ~ cr(x, df=3) + (1 | site)",
    "y ~ ifelse(x > 1, 1, 0) + (1 | site)": "y ~ where(x > 1, 1, 0) + (1 | site)",
    "Surv(y, d) ~ x + (1 | site)": "y ~ x + (1 | site)",
    "y == 'yes' ~ x + (1 | site)": "I(y == 'yes') ~ x + (1 | site)",
    "y = x + (1 | site)": "y ~ x + (1 | site)",
    "y ~ df$x + (1 | site)": "y ~ x + (1 | site)",
    "y ~ blood pressure + (1 | site)": "y ~ `blood pressure` + (1 | site)",
    "y ~ Q('blood pressure') + (1 | site)": "y ~ `blood pressure` + (1 | site)",
    "y ~ 2020_sales * size (cm) + (1 | site)": "y ~ `2020_sales` * `size (cm)` + (1 | site)",
    "y ~ x\u00a0+ (1 | site)": "y ~ x + (1 | site)",
    "y \u223c x + I(g == \u2018a\u2019) + (1 | site)": "y ~ x + I(g == 'a') + (1 | site)",
}


@pytest.mark.parametrize("formula", REWRITTEN)
def test_the_formula_is_rewritten_and_can_be_read(formula: str) -> None:
    with pytest.raises(UserError) as refused:
        parse(formula, COLUMNS)
    assert repr(REWRITTEN[formula]) in str(refused.value)
    assert "\n" not in str(refused.value)
    assert parse(REWRITTEN[formula], COLUMNS).random


@pytest.mark.parametrize(
    ("formula", "words"),
    [
        ("y ~ te(x, z) + (1 | site)", "smooth terms are of one column: s(x, k=10), or tp(x, df=5), bs, cr, cc"),
        ("y ~ lag(x) + (1 | site)", "is a column of the table first"),
        ("y ~ I(x > 1 & x < 2) + (1 | site)", "joined as numbers: I((x > 1) * (z < 2))"),
        ("y ~ factor(g, labels=c('b', 'a')) + (1 | site)", "another reference level is T(g, ref='b')"),
        ("y ~ . + (1 | site)", "'.' stands for no columns here: name them, joined by +"),
        ("Surv(y, d) ~ x + (1 | site)", "--event COLUMN or event='COLUMN'"),
        (
            "y ~ ns(x, 3) + (1 | site)",
            "cr is a natural cubic spline, with knots of its own; ns is read with knots=[...]",
        ),
        ("y ~ x + diag(1 + x | site)", "without correlations (1 + x || site)"),
        ("y ~ g['a'] + (1 | site)", "among the effects it is I(g == 'a')"),
    ],
)
def test_what_cannot_be_rewritten_has_a_note(formula: str, words: str) -> None:
    with pytest.raises(UserError, match=re.escape(words)):
        parse(formula)


def test_a_rewritten_formula_means_what_was_meant() -> None:
    df = table()
    for formula in ("y ~ x + I(x^2) + (1 | site)", "y ~ I(x > 0) + (1 | site)", "y ~ (x + z)^2 + (1 | site)"):
        ours, _ = from_formula(df, formula.replace("^", "**"), spellings="keep")
        other = {"x + I(x^2)": [df.x, df.x**2], "I(x > 0)": [df.x > 0], "(x + z)^2": [df.x, df.z, df.x * df.z]}
        wanted = next(columns for key, columns in other.items() if key in formula)
        for k, column in enumerate(wanted):
            assert ours.x[:, 1 + k].numpy() == pytest.approx(column.to_numpy(dtype=float))


def test_the_command_line_knows_the_columns(hierfl: Call) -> None:
    table()[["y", "x", "odd name", "site"]].to_csv("t.csv", index=False)
    code, _, err = hierfl("run", "mixed-effects", "--data", "t.csv", "--formula", "y ~ . + (1 | site)")
    assert (code, err.count("\n")) == (2, 1)
    assert "write 'y ~ x + `odd name` + (1 | site)'" in err
