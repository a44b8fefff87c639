"""Categories among random effects are coded as among fixed ones, whose columns span those of R."""

import numpy as np
import pandas as pd
import pytest

from hierfl.data.formula.federate import from_formula
from hierfl.errors import UserError

EFFECTS = ("1 + a:x", "1 + a + a:x", "a/x", "1 + a:b", "0 + a + a:b", "0 + a + b", "0 + x + a:x", "a*x", "I(x > 0) + a")


def table() -> pd.DataFrame:
    """Six clients whose rows have every cell of two categories twice."""
    cells = pd.DataFrame([(a, b) for a in "uvw" for b in "pq"] * 2, columns=["a", "b"])
    df = pd.concat([cells.assign(site=f"s{j}") for j in range(6)], ignore_index=True)
    df = df.assign(
        c=np.array(["l", "m", "n"])[np.arange(len(df)) // 6 % 3], d=np.array(["e", "f"])[np.arange(len(df)) // 18 % 2]
    )
    return df.assign(x=np.random.default_rng(0).normal(size=len(df)), y=np.arange(len(df)) % 7)


@pytest.mark.parametrize("effects", EFFECTS)
def test_random_effects_have_the_columns_of_fixed_ones(effects: str) -> None:
    df = table()
    fixed, design = from_formula(df, f"y ~ {effects} + (1 | site)")
    federation, random = from_formula(df, f"y ~ 1 + ({effects} | site)")
    assert random.random == design.fixed
    new = df.sample(5, random_state=0)
    random_columns = federation.about["reader"](new)[:, 1 : 1 + len(random.random)]
    np.testing.assert_allclose(random_columns, fixed.about["reader"](new)[:, : len(design.fixed)])


def test_terms_of_one_client_are_coded_each_for_itself() -> None:
    _, design = from_formula(table(), "y ~ 1 + (1 | site) + (0 + a | site)")
    assert design.random == ("Intercept", "a[u]", "a[v]", "a[w]")


@pytest.mark.parametrize(
    "effects", ["a:b:c", "a + b + c + d + a:b:c:d", "d + a*b + a:b:c:d", "x + a:b:c:x", "a:b + c:d + a:b:c:d"]
)
@pytest.mark.parametrize("random", [False, True])
def test_an_interaction_of_several_categories_has_a_column_for_each_cell(effects: str, random: bool) -> None:
    df = pd.concat([table().assign(site="s1"), table().assign(site="s2")], ignore_index=True)
    formula = f"y ~ 1 + ({effects} | site)" if random else f"y ~ {effects} + (1 | site)"
    federation, design = from_formula(df, formula)
    count = len(design.random if random else design.fixed)
    columns = federation.about["reader"](df)[:, int(random) :][:, :count]
    factors = max((term.split(":") for term in effects.split(" + ")), key=len)
    cells = pd.get_dummies(df[[name for name in factors if name != "x"]].agg("".join, axis=1)).to_numpy(float)
    intercept = np.ones((len(df), 1))
    expected = np.hstack([intercept, cells * df[["x"]].to_numpy()]) if "x" in factors else cells
    assert np.linalg.matrix_rank(columns) == count == np.linalg.matrix_rank(expected)
    assert np.linalg.matrix_rank(np.hstack([columns, expected])) == count


def test_a_random_effect_after_its_interaction_is_one_line() -> None:
    with pytest.raises(UserError, match="write main effects before their interactions") as told:
        from_formula(table(), "y ~ 1 + (a:b + a | site)")
    assert "\n" not in str(told.value)
