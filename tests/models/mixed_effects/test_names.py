"""A column is not called like a number of its response."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from hierfl import UserError, mixed_model


@pytest.mark.parametrize(
    ("family", "name"),
    [("negative-binomial", "size"), ("nbinom1", "dispersion"), ("student-t", "df"), ("gaussian", "sd(residual)"),
     ("zero-inflated-poisson", "p(zero)"), ("poisson", "sd(Intercept)")],
)  # fmt: skip
def test_a_coefficient_has_no_name_of_another_number(family: str, name: str) -> None:
    """Tests, means and standard errors find numbers by their names."""
    df = pd.DataFrame({"y": np.arange(12) % 4, name: np.arange(12) % 5, "site": np.arange(12) % 3})
    term = name if name.isidentifier() else f"`{name}`"
    with pytest.raises(UserError, match=rf"is a number of a {family} response, and a column has the same name"):
        mixed_model(df, f"y ~ {term} + (1 | site)", family=family)
