"""Leave-one-out of responses with outliers and of times: rows' log densities at the draws, by SciPy and by hand."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from hierfl import mixed_model
from hierfl.arviz_io import loo
from hierfl.elpd import elpd_value


def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    df = pd.DataFrame({"site": np.repeat(list("abcd"), 8), "x": rng.normal(size=32)})
    eta = 0.4 * df.x + np.repeat(rng.normal(size=4) * 0.5, 8)
    return df.assign(
        y=eta + rng.standard_t(5, 32), t=rng.exponential(np.exp(-eta)), e=(rng.random(32) < 0.8).astype(int)
    )


@pytest.mark.slow
@pytest.mark.parametrize("family", ["student-t", "cox"])
def test_rows_have_their_densities_and_leave_one_out_an_answer(family: str) -> None:
    df, cox = table(), family == "cox"
    how = {"event": "e", "intervals": "2"} if cox else {"degrees_of_freedom": "4"}
    fit = mixed_model(df, f"{'t' if cox else 'y'} ~ x + (1 | site)", family=family, draws=40, **how)  # type: ignore[arg-type]
    data = fit.posterior()
    effects, b = data.posterior.effects.to_numpy(), data.posterior.b.to_numpy()[..., 0]
    eta = effects[..., :1] + effects[..., 1:2] * df.x.to_numpy() + np.repeat(b, 8, axis=-1)
    own = effects[..., 3:]
    if cox:
        cut = float(fit.summary().table.effect.iloc[-1].split()[2])
        t, late = df.t.to_numpy(), (df.t > cut).to_numpy()
        spent = np.minimum(t, cut) + np.exp(own) * np.maximum(t - cut, 0)
        expected = df.e.to_numpy() * (eta + own * late) - np.exp(eta) * spent
    else:
        expected = stats.t.logpdf(df.y.to_numpy(), 4, eta, own)
    np.testing.assert_allclose(data.log_likelihood.y.to_numpy(), expected, rtol=1e-4, atol=1e-4)
    elpd = loo(data)
    assert expected.mean((0, 1)).sum() - 20 < float(elpd_value(elpd, "elpd")) < expected.max((0, 1)).sum()
    assert 1 < float(elpd.p_loo) < 12
