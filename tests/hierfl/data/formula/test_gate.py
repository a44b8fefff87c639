"""Formulas are data: what passes the gate names columns and calls functions of a fixed list, and nothing else runs."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from formulae import design_matrices
from formulae.environment import Environment
from support.commands import Call
from support.drawing import one_figure
from support.paths import ROOT
from support.tables import table

from hierfl.data.formula import gate
from hierfl.data.formula.calls import CALLS
from hierfl.data.formula.federate import from_formula
from hierfl.data.formula.gate import evaluate, parse
from hierfl.data.tables import TABLES
from hierfl.errors import UserError

PAYLOADS = [
    "log_radon ~ floor + scale(log_uranium*(1+0*torch.os.system('touch pwned'))) + (1|county)",
    "log_radon ~ floor + I(df.to_csv('pwned')) + (1|county)",
    "log_radon ~ floor + I(np.save('pwned', floor)) + (1|county)",
    "log_radon ~ floor + center.__init__.__globals__.clear() + (1|county)",
    "log_radon ~ floor + {np.ctypeslib.os.system('touch pwned')} + (1|county)",
    "np.os.system('touch pwned') ~ floor + (1|county)",
    "log_radon ~ floor + (1 | torch.os.system('touch pwned'))",
    "log_radon ~ floor + np.log(floor, out=log_radon) + (1|county)",
    "log_radon ~ floor + C(floor, np.save) + (1|county)",
    "log_radon ~ floor + C(floor, design_matrices) + (1|county)",
]


@pytest.mark.parametrize("formula", PAYLOADS)
def test_a_formula_that_names_anything_else_is_one_line_and_nothing_runs(hierfl: Call, formula: str) -> None:
    code, out, err = hierfl("run", "mixed-effects", "--data", "radon-like", "--formula", formula, "-T", 1)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: the formula")
    assert list(Path.cwd().iterdir()) == []
    with pytest.raises(UserError, match="cannot be read"):
        from_formula(TABLES["radon-like"].frame(), formula)


def test_a_foreign_run_folder_is_no_way_around_the_gate(hierfl: Call) -> None:
    options = ("--data", "eight-schools", "-T", 1, "--out", "o", "-q")
    with one_figure():
        assert hierfl("run", "mixed-effects", *options)[0] == 0
    config = Path("o/config.toml")
    formula = TABLES["eight-schools"].formula
    for payload in (*PAYLOADS[:2], "effect ~ effect + (1 | school)"):
        config.write_text(config.read_text().replace(f'"{formula}"', f'"{payload}"'))
        code, _, err = hierfl("run", "--resume", "o", "-q")
        assert (code, err.count("\n")) == (2, 1)
        assert not Path("pwned").exists()
        formula = payload
    with one_figure():
        assert hierfl("report", "o", "-q")[0] == 0  # reads no formula
    assert not Path("pwned").exists()
    config.write_text(re.sub(r"^formula = .*$", "formula = 3", config.read_text(), flags=re.MULTILINE))
    code, _, err = hierfl("run", "--resume", "o", "-q")
    assert (code, err) == (2, "error: o/config.toml is damaged: run.formula is 3\n")


def test_a_formula_that_is_read_again_passes_the_gate_again() -> None:
    federation, _ = from_formula(table(), "y ~ x + (1 | site)")
    reader = replace(federation.about["reader"], formula="y ~ torch.os.system('true') + (1 | site)")
    with pytest.raises(UserError, match="unknown function 'torch.os.system'"):
        reader(table())


REFUSED = [
    ("y ~ x + (1 | site))", "')' is not expected there"),
    ("y ~ x + (1 | site) extra", "'extra' is not expected"),
    ("y ~ (x + (1 | site)", "')' is missing"),
    ("y ~ x + (1 | site", "a parenthesis is not closed"),
    ("y ~ 3 + (1 | site)", "3 is no effect"),
    ("y ~ x + (x + 1*z | site)", "1 is no factor of an effect"),
    ("y ~ x:1 + (1 | site)", "1 is no factor of an effect"),
    ("y ~ x + (1 | 3)", "belong to a column of the table, not to '3'"),
    ("y ~ x + (1 | site:g)", "the clients have no random term: (1 | site/g) is a model with one"),
    ("y ~ x + (1 | site/g:z)", "written a/b or a:b, not 'site / g : z'"),
    ("y ~ x + (1 | site/site)", "written a/b or a:b, not 'site / site'"),
    ("y ~ x + (1 | site/3)", "belong to a column of the table, not to 'site / 3'"),
    ("y ~ x + (1 | site) + (1 | g) + (1 | h)", "one factor that crosses the clients ('site') is understood"),
    ("y ~ x + (1 | C(site))", "not to 'C ( site'"),
    ("y ~ y + (1 | site)", "'y' is among its own predictors"),
    ("y ~ np.log(y) + (1 | site)", "'y' is among its own predictors"),
    ("np.exp(y) ~ x + (0 + y | site)", "'y' is among its own predictors"),
    ("y ~ x + (1 | y)", "'y' is among its own predictors"),
    ("y ~ 'x' + (1 | site)", "is text"),
    ("y ~ True + (1 | site)", "not 'True'"),
    ("y ~ x ~ g + (1 | site)", "more than one '~'"),
    ("y + x ~ g + (1 | site)", "response is one column"),
    ("1 ~ x + (1 | site)", "response is '1'"),
    ("y[u] ~ x + (1 | site)", "column 'y' holds numbers, and the formula compares it with the text 'u': no row has it"),
    ("y['u', 'v'] ~ x + (1 | site)", "a level of the response is written y['LEVEL']"),
    ("y[True] ~ x + (1 | site)", "a response as it stands: write y ~"),
    ("y ~ g['u'] + (1 | site)", "among the effects it is I(g == 'a')"),
    ("y ~ x | site", "written in parentheses"),
    ("y ~ x**2 + (1 | site)", "it is I(x**2)"),
    ("y ~ (x + z)**50 + (1 | site)", "from 1 to 16, not '50'"),
    (f"y ~ ({' + '.join(f'x{k}' for k in range(20))})**9", "more than 500 effects"),
    (f"y ~ {' * '.join(f'x{k}' for k in range(20))}", "more than 500 effects"),
    (f"y ~ {' + '.join(f'x{k}' for k in range(400))}", "more than 250 operators"),
    (f"y ~ {'(' * 300}x{')' * 300}", "more than 20 deep"),
    (f"y ~ {'scale(' * 300}x{')' * 300}", "more than 20 deep"),
    (f"y ~ I({' + '.join(['x'] * 200)})", "more than 50 operators"),
    (f"y ~ {'x' * 20_000}", "20,004 characters, more than 10,000"),
    (f"y ~ (x + z)**{'9' * 5_000}", "more than 30 digits"),
    ("y ~ I(9**9**9**9) + (1 | site)", "a power of a number"),
    ("y ~ I(I(9)**9) + (1 | site)", "a power of a number"),
    ("y ~ I(x**x) + (1 | site)", "an exponent is a number"),
    ("y ~ I(x**9**9) + (1 | site)", "read in two ways"),
    ("y ~ I(-x**2) + (1 | site)", "read in two ways"),
    ("y ~ I('a' * 1000000000) + (1 | site)", "not \"'a'\""),
    ("y ~ I(0 < x < 1) + (1 | site)", "comparison of a comparison"),
    ("y ~ poly(x, 100000) + (1 | site)", "a whole number from 1 to 100"),
    ("y ~ bs(x, df=x) + (1 | site)", "a whole number from 1 to 100, not 'x'"),
    ("y ~ poly(x, 0) + (1 | site)", "a whole number from 1 to 100, not '0'"),
    ("y ~ bs(x, df=60, degree=6) + (1 | site)", "a whole number from 0 to 5, not '6'"),  # it wrote past its arrays
    ("y ~ bs(x, knots=x) + (1 | site)", "bs: knots is a list, as in knots=[1, 2], not 'x'"),
    ("y ~ bs(x, df=4, df=4) + (1 | site)", "'df' twice"),
    ("y ~ np.where(x > 0, 1) + (1 | site)", "np.where needs 3 arguments"),
    ("y ~ scale() + (1 | site)", "scale needs an argument 'x'"),
    ("y ~ scale(x)(x) + (1 | site)", "'(' is not expected"),
    ("y ~ x(1) + (1 | site)", "unknown function 'x'"),
    ("y ~ np.linalg.norm(x) + (1 | site)", "unknown function 'np.linalg.norm'"),
    ("y ~ `x__y` + (1 | site)", "holds '__'"),
    ("y ~ T(g, ref='__') + (1 | site)", "holds '__'"),
    ("y ~ ` ` + (1 | site)", "cannot be called ` `"),
    ("y ~ `x + (1 | site)", "is not understood"),
    ("y ~ x // z + (1 | site)", "not '/'"),
    ("y ~ x; z", "';' is not understood"),
    ("y ~ \ud800", "lone surrogates"),
    ("y ~ ²", "'²' is not understood"),
    ("y ~ np + (1 | site)", "unknown column 'np'"),
    ("y ~ np.log + (1 | site)", "unknown column 'np.log'"),
    ("y ~ I(scale) + (1 | site)", "unknown column 'scale'"),
    ("y ~ torch.os + (1 | site)", "unknown column 'torch.os'"),
    ("", "it is empty"),
    (None, "a formula is text"),
    (["y ~ x"], "a formula is text"),
]


@pytest.mark.parametrize(("formula", "words"), REFUSED)
def test_what_is_not_understood_is_refused_by_name(formula: Any, words: str) -> None:
    with pytest.raises(UserError, match=re.escape(words)) as told:
        from_formula(table(), formula)
    assert len(str(told.value)) < 900


ACCEPTED = [
    "y ~ x + (1 | site)",
    "y~1+x+(1+x|site)",
    "y ~ 0 + g + x:g + (1 | site)",
    "y ~ x - 1 + (0 + x | site)",
    "y ~ (x + z + h)**2 + (x | site)",
    "y ~ x * g + g / h + (1 | site) + (0 + x | site)",
    "y ~ x + {x**2} + I(x**3) + I((x - 1) / (z + 1)**0.5) + (1 | site)",
    "y ~ scale(x) * C(g, Treatment('v')) + (1 | site)",
    "y ~ C(count) + C(g, contrast=Sum) + (1 | site)",
    "y ~ T(g, ref='w') + S(h, omit='a') + (1 | site)",
    "y ~ poly(x, 3) + poly(z, degree=2, raw=True) + (1 | site)",
    "y ~ bs(x, df=4) + bs(z, df=5, degree=2, lower_bound=-1, upper_bound=9.5) + (1 | site)",
    "y ~ np.log(z) + np.exp(x) + np.where(x > 0, 1, 0) + (scale(center(x)) | site)",
    "np.log1p(z) ~ log(count + 1) + sqrt(z) + I(g == 'u') + (1 | site)",
    "binary(g, 'u') ~ x + (1 | site)",
    "I(y - x) ~ x + (1 | site)",
    "y ~ `odd name` +\n\tx + ( 1 | site )",
    "y ~ ((x + z)) + (1 | site)",
]


@pytest.mark.parametrize("formula", ACCEPTED)
def test_what_passes_means_what_formulae_reads_in_it(formula: str) -> None:
    ours, clean = evaluate(parse(formula), table()), Environment([gate.namespace()])
    theirs = design_matrices(formula, table(), env=clean)
    pd.testing.assert_frame_equal(ours.common.as_dataframe(), theirs.common.as_dataframe())
    blocks = theirs.group.design_matrix.toarray().reshape(60, -1, 1) if len(theirs.group.terms) == 1 else None
    if blocks is not None:  # theirs has a block for each of the five clients, zero in others' rows
        np.testing.assert_array_equal(ours.group.design_matrix.toarray(), blocks.reshape(60, 5, -1).sum(1))
    np.testing.assert_array_equal(ours.response.design_matrix, theirs.response.design_matrix)


def test_formulas_of_the_documentation_and_of_the_named_tables_pass() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    quoted = r'(?:--formula |from_formula\(df, )"([^"]+)"'
    written = [formula for page in pages for formula in re.findall(quoted, page.read_text())]
    assert len(written) >= 4
    for formula in (*written, *(named.formula for named in TABLES.values())):
        assert parse(formula).random


def test_a_column_is_never_a_function_and_a_function_never_a_column() -> None:
    df = table().rename(columns={"z": "scale"})
    df["np"], df["log"], df["Sum"], df["np.log"] = df.x + 1, df.x**2, df.x**3, np.sin(df.x)
    _, design = from_formula(df, "y ~ scale(scale) + np + log + Sum + np.log + C(g, Treatment) + (1 | site)")
    assert design.fixed[:6] == ("Intercept", "scale(scale)", "np", "log", "Sum", "np.log")


def test_functions_of_all_rows_are_those_whose_other_values_move_with_one_row() -> None:
    """Each of the list is tried: a row far out is left out."""
    x = np.random.default_rng(0).uniform(1, 9, 40)
    df = pd.DataFrame({"y": 1.0, "x": [*x, 30.0], "z": [*"abcd" * 10, "a"], "g": "g"})
    arguments = {"cc": "x, 40, 3", "C": "z", "S": "z", "T": "z", "B": "z, 'a'", "binary": "z, 'a'", "poly": "x, 2"}
    arguments |= dict.fromkeys(("bs", "cr", "tp"), "x, 4")
    for name in sorted(set(CALLS) - {"p", "prop", "proportion", "offset"}):
        values = ", ".join(["x"] * len(CALLS[name].places))
        formula = gate.parse(f"y ~ {name}({arguments.get(name, values)}) + (1 | g)")
        columns = [np.asarray(gate.evaluate(formula, rows).common)[:40] for rows in (df, df[:-1])]
        assert bool(gate.of_all_rows(formula)) != np.allclose(*columns, equal_nan=True), name
    assert gate.of_all_rows(gate.parse("scale(y) ~ `center(x)` + (poly(x, 2) | g)")) == ["poly", "scale"]


def test_two_effects_that_read_alike_are_not_made_one() -> None:
    with pytest.raises(UserError, match="two effects are both called 'I\\(x \\+ 1 \\* z\\)'"):
        from_formula(table(), "y ~ I((x + 1) * z) + I(x + 1 * z) + (1 | site)")


def test_a_change_from_the_beginning_may_have_the_beginning_as_predictor() -> None:
    federation, design = from_formula(table(), "I(y - x) ~ x + (1 | site)")
    assert design.fixed == ("Intercept", "x")
    assert federation.about["reader"](table()[["x", "site"]]).shape == (60, 3)  # which needs no response


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"x": 1e300}, "column 'x' reaches 1e+300, whose square is no double precision number: rescale it"),
        ({"y": -1e200}, "column 'y' reaches 1e+200"),
        ({"x": np.inf}, "column 'x' is not finite in 1 of 60 rows"),
        ({"x": 1e80}, "the effect 'I(x ** 2)' reaches 1e+160"),
        ({"z": 0.0}, "the effect 'np.log(z)' is not finite in 1 of 60 rows"),
        ({"se": 1e-200}, "column 'se' reaches 1e-200"),
    ],
)
def test_numbers_that_cannot_be_squared_are_told_in_one_line(change: dict[str, float], words: str) -> None:
    df = table().assign(se=1.0)
    for name, value in change.items():
        df.loc[7, name] = value
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with pytest.raises(UserError, match=re.escape(words)):
            from_formula(df, "y ~ x + I(x**2) + np.log(z) + (1 | site)", known_se="se")
    assert seen == []


def test_effects_with_too_many_columns_are_refused_before_they_are_made() -> None:
    rng = np.random.default_rng(0)
    df = table().assign(**{f"c{k}": pd.Categorical(rng.permutation(60).astype(str)) for k in range(4)})
    with pytest.raises(UserError, match="the effect 'c0:c1:c2:c3' has up to 12,960,000 columns, too many for 60 rows"):
        from_formula(df, "y ~ c0:c1:c2:c3 + (1 | site)")
    with pytest.raises(UserError, match="the effect 'C\\(x\\):c1:c2:c3' has up to 12,960,000"):
        from_formula(df, "y ~ x + (0 + C(x):c1:c2:c3 | site)")


@pytest.mark.parametrize(
    "formula",
    ["y ~ scale(x) + (1 | site)", "y ~ bs(x, df=1) + (1 | site)", "y ~ C(g, Treatment('no')) + (1 | site)",
     "y ~ (x + x)**2 + (x:y | site)", "y ~ p(x, y) + (1 | site)", "y ~ C(g) * 2 + (1 | site)"],
)  # fmt: skip
def test_a_refused_formula_is_all_that_is_said(hierfl: Call, formula: str) -> None:
    """formulae prints, logs and warns before it raises."""
    table().assign(x=1.0).to_csv("t.csv", index=False)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        code, out, err = hierfl("run", "mixed-effects", "--data", "t.csv", "--formula", formula, "-T", 1)
    assert (code, out, err.count("\n"), seen) == (2, "", 1, [])
