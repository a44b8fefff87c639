"""Dependent columns are dropped and named, the first independent ones kept, in whatever units the columns are."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from support.tables import table

from hierfl.data.formula.federate import from_formula
from hierfl.data.formula.rank import IndependentColumns
from hierfl.errors import UserError


def columns() -> tuple[list[str], np.ndarray]:
    """Eleven columns, of which five are independent beside the intercept."""
    rng, n = np.random.default_rng(0), 200
    x, z, g = rng.normal(size=n), rng.normal(size=n), rng.integers(0, 3, n)
    parts = [np.ones(n), x, 2 * x + 1, z, g == 0, g == 1, g == 2, 0 * x, 0 * x + 3, x**2, (x - 0.7) ** 2]
    return ["Intercept", "x", "twice", "z", "g0", "g1", "g2", "zero", "same", "square", "moved"], np.column_stack(parts)


@pytest.mark.parametrize(("factor", "shift"), [(1.0, 0.0), (1000.0, 1900.0), (1e-6, 0.0), (1.0, 1e6)])
def test_the_first_independent_columns_stay_in_any_unit(factor: float, shift: float) -> None:
    names, values = columns()
    values[:, 1:] = factor * values[:, 1:]
    values[:, [1, 3]] += shift
    independent = IndependentColumns.of_rows(names, values)
    assert independent.names_kept == ("Intercept", "x", "z", "g0", "g1", "square")
    assert list(independent.dropped.values()) == [
        "'twice' is a combination of 'x' and the intercept, and was dropped",
        "'g2' is a combination of 'g0', 'g1' and the intercept, and was dropped",
        "'zero' is zero in every row, and was dropped", "'same' is constant, and was dropped",
        "'moved' is a combination of 'x', 'square' and the intercept, and was dropped",
    ]  # fmt: skip
    np.testing.assert_array_equal(independent.checked(values[:7]), values[:7, independent.kept])
    centred = values - np.where(np.arange(len(names)) == 0, 0, values.mean(0))
    wanted = np.corrcoef(centred[:, independent.kept[1:]].T)
    np.testing.assert_allclose(independent.correlation[1:, 1:], wanted, atol=1e-9)


def test_sums_decide_as_rows_do() -> None:
    """Around centres and scales that are about right, as sites have them."""
    names, values = columns()
    whole = IndependentColumns.of_rows(names, values)
    centre, scale = np.r_[0.0, np.full(10, 0.4)], np.r_[1.0, np.full(10, 2.0)]
    unit = (values - centre) / scale
    products = sum(part.T @ part for part in np.array_split(unit, 7))
    independent = IndependentColumns.of_sums(names, len(values), centre, scale, products)
    assert (independent.kept, independent.dropped) == (whole.kept, whole.dropped)
    independent.checked(values)


def test_years_and_their_square_are_two_columns() -> None:
    year = np.repeat(np.arange(1990.0, 2011.0), 5)
    names, powers = ["Intercept", "year", "year2"], np.column_stack([year**0, year, year**2])
    assert IndependentColumns.of_rows(names, powers).kept == (0, 1, 2)
    # and what is a combination of both is seen, though they nearly go together
    more = IndependentColumns.of_rows([*names, "t2"], np.column_stack([powers, (year - 2000) ** 2]))
    assert more.kept == (0, 1, 2)


def test_rows_that_the_fit_cannot_predict_are_refused() -> None:
    df = table().assign(twice=lambda d: 2 * d.x, cell=1.0)
    df = df[~((df.g == "w") & (df.h == "b"))]
    federation, design = from_formula(df, "y ~ x + twice + g*h + (1 | site)")
    assert design.fixed == ("Intercept", "x", "g[v]", "g[w]", "h[b]", "g[v]:h[b]")
    assert federation.about["dropped"] == [
        "'twice' is a multiple of 'x', and was dropped", "'g[w]:h[b]' is zero in every row, and was dropped",
    ]  # fmt: skip
    read = federation.about["reader"]
    new = df.iloc[:3].assign(x=[1.0, 2.0, 3.0], twice=[2.0, 4.0, 6.0])
    np.testing.assert_array_equal(read(new)[:, 1], [1, 2, 3])
    with pytest.raises(UserError, match="1 of 3 rows have no prediction, the first is row 2: in the fit 'twice' is a"):
        read(new.assign(twice=[2.0, 5.0, 6.0]))
    with pytest.raises(UserError, match=r"'g\[w\]:h\[b\]' is zero in every row, in these rows it is not"):
        read(new.assign(g="w", h="b"))


def test_a_slash_has_a_coefficient_for_each_level() -> None:
    """As a + a:x has, one object or two: a/x of a category, nested deeper, of a sum and in a random term."""
    df = table()
    for slash, plain in (("g / x", "g + g:x"), ("g/h/x", "g + g:h + g:h:x"), ("g/(x + h)", "g + g:x + g:h")):
        ours, theirs = (from_formula(df, f"y ~ {effects} + (1 | site)") for effects in (slash, plain))
        assert ours[1].fixed == theirs[1].fixed
        np.testing.assert_array_equal(ours[0].x, theirs[0].x)
        again = ours[0].about["reader"](df.iloc[:5])
        np.testing.assert_array_equal(again, theirs[0].about["reader"](df.iloc[:5]))
    assert from_formula(df, "y ~ g / x + (1 | site)")[1].fixed == (
        "Intercept", "g[v]", "g[w]", "g[u]:x", "g[v]:x", "g[w]:x",
    )  # fmt: skip
    ours, theirs = (from_formula(df, f"y ~ 1 + ({effects} | site)", known_se="z") for effects in ("g / x", "g + g:x"))
    assert ours[1].random == theirs[1].random


@pytest.mark.parametrize("ordered", [False, True])
def test_a_pandas_category_keeps_its_order_and_its_reference(ordered: bool) -> None:
    """At fitting, in C(...), and at predicting, where the column may be text; a level without rows is none."""
    df = table()
    own = df.assign(g=pd.Categorical(df.g, ["v", "none", "w", "u"], ordered=ordered))
    for effect in ("g", "C(g)"):
        federation, design = from_formula(own, f"y ~ {effect} + (1 | site)")
        assert design.fixed == ("Intercept", f"{effect}[w]", f"{effect}[u]")
        read = federation.about["reader"]
        wanted = np.column_stack([np.ones(len(df)), df.g == "w", df.g == "u"])
        for new in (own, df, df.assign(g=pd.Categorical(df.g, ["u", "w", "v"]))):
            np.testing.assert_array_equal(read(new)[:, :3], wanted)
        with pytest.raises(UserError, match="has the level 'none', which was in no row of the fit"):
            read(df.assign(g="none"))


@pytest.mark.parametrize(("far", "step"), [(1e8, 1.0), (1.6e12, 1e4), (1e12, 1.0), (-3e8, 2.0)])
def test_a_column_that_is_nearly_the_intercept_is_to_be_centred(far: float, step: float) -> None:
    """At 1e7 a slope of 0.69 had been 0.71, and at 1e8 it was lost: more rounds were advised."""
    df = table().assign(stamp=lambda t: far + step * np.arange(len(t)))
    with pytest.raises(UserError, match=r"'stamp' lies near .* alone, which double .*: write center\(stamp\)"):
        from_formula(df, "y ~ stamp + (1 | g)")
    from_formula(df, "y ~ center(stamp) + (1 | g)")
    from_formula(df, "y ~ 0 + stamp + (1 | g)")
    from_formula(df.assign(stamp=1e12 / 3), "y ~ stamp + (1 | g)")  # constant, and dropped


def test_as_many_effects_as_rows_are_refused() -> None:
    """No row is left for the residual: intervals had been from -1e148 to 1e148."""
    with pytest.raises(UserError, match="6 rows and 6 fixed effects leave nothing for the residual"):
        from_formula(table(6), "y ~ x + z + x:z + I(x**2) + I(z**2) + (1 | g)")
    from_formula(table(7), "y ~ x + z + x:z + I(x**2) + I(z**2) + (1 | g)")
