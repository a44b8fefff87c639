"""Kenward and Roger's covariance where a variance is zero: that of the model without the effect."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from hierfl import mixed_model


@pytest.mark.cpu(4, "two fits")
def test_a_slope_without_variance_changes_no_covariance() -> None:
    rng = np.random.default_rng(1)
    n = 300
    df = pd.DataFrame({"site": np.repeat([f"s{k}" for k in range(15)], 20), "x": rng.normal(size=n)})
    rng.normal(size=n)
    df["y"] = df.x + rng.normal(size=n) + np.repeat(rng.normal(size=15), 20)
    slope, alone = (
        mixed_model(df, f"y ~ x + {random}", draws=0, kenward_roger=True) for random in ("(x || site)", "(1 | site)")
    )
    table = slope.summary().table.set_index("effect")
    assert table.estimate["sd(x)"] == 0
    pd.testing.assert_frame_equal(slope.vcov(), alone.vcov(), rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(table.df[:2], alone.summary().table.df[:2], rtol=1e-4)
