"""The units of the data change no fit."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyro
import pytest
from pyro.distributions import HalfNormal, Normal

from hierfl import fit_model
from hierfl.data.column_batch import ColumnBatch


@pytest.mark.parametrize("unit", [1e-8, pytest.param(1e4, marks=pytest.mark.slow)])
@pytest.mark.cpu(6, "two fits")
def test_units_of_the_data_change_no_fit(unit: float) -> None:
    """In small ones all second derivatives by sds were nothing beside those by means: "exact", and 20 % too narrow."""

    def fitted(unit: float) -> tuple[list[float], str]:
        def model(batch: ColumnBatch) -> None:
            mu = pyro.sample("mu", Normal(0.0, 3 * unit))
            tau, sigma = pyro.sample("tau", HalfNormal(unit)), pyro.sample("sigma", HalfNormal(unit))
            with batch.clients():
                u = pyro.sample("u", Normal(mu, tau))
                with batch.data():
                    pyro.sample("y", Normal(u, sigma), obs=batch["y"])

        rng = np.random.default_rng(3)
        y = rng.normal(rng.normal(1, 0.6, 6).repeat(4), 0.8)
        table = pd.DataFrame({"site": np.repeat(list("abcdef"), 4), "y": y * unit})
        fit = fit_model(model, table, group="site", progress=False)
        draws = np.stack([fit.globals[name] / unit for name in ("mu", "tau", "sigma")])
        return [*draws.mean(1), *draws.std(1)], str(fit.summary())

    usual, other = fitted(1.0), fitted(unit)
    assert "reweighted" in other[1]
    assert "exact" not in other[1]
    np.testing.assert_allclose(other[0], usual[0], rtol=0.12)  # four standard errors of 1,000 draws each
