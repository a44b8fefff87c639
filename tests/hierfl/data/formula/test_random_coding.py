"""Categories among random effects are coded as among fixed ones, whose columns span those of R."""

import numpy as np
import pandas as pd
import pytest

from hierfl.data.formula.federate import from_formula

EFFECTS = ("1 + a:x", "1 + a + a:x", "a/x", "1 + a:b", "0 + a + a:b", "0 + a + b", "0 + x + a:x", "a*x", "I(x > 0) + a")


def table() -> pd.DataFrame:
    """Six clients whose rows have every cell of two categories twice."""
    cells = pd.DataFrame([(a, b) for a in "uvw" for b in "pq"] * 2, columns=["a", "b"])
    df = pd.concat([cells.assign(site=f"s{j}") for j in range(6)], ignore_index=True)
    return df.assign(x=np.random.default_rng(0).normal(size=len(df)), y=np.arange(len(df)) % 7)


@pytest.mark.parametrize("effects", EFFECTS)
def test_random_effects_have_the_columns_of_fixed_ones(effects: str) -> None:
    df = table()
    fixed, design = from_formula(df, f"y ~ {effects} + (1 | site)")
    federation, random = from_formula(df, f"y ~ 1 + ({effects} | site)")
    assert random.random == design.fixed
    new = df.sample(5, random_state=0)
    here = federation.about["reader"](new)[:, 1 : 1 + len(random.random)]
    np.testing.assert_allclose(here, fixed.about["reader"](new)[:, : len(design.fixed)])


def test_terms_of_one_client_are_coded_each_for_itself() -> None:
    _, design = from_formula(table(), "y ~ 1 + (1 | site) + (0 + a | site)")
    assert design.random == ("Intercept", "a[u]", "a[v]", "a[w]")
