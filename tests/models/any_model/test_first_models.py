"""What a first model of one's own meets: no globals, NumPy, scales of any sign, sums over latents, and the like."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pandas as pd
import pyro
import pytest
import torch
from pyro.distributions import Bernoulli, Beta, LogNormal, Normal, Poisson
from scipy import stats

from hierfl import UserError, fit_model
from hierfl.data.column_batch import ColumnBatch
from hierfl.data.column_design import ColumnDesign
from hierfl.data.column_federation import column_federation
from hierfl.elpd import elpd_value
from hierfl.models.any_model.checking import check_model

DESIGN = ColumnDesign.from_columns(["x", "y"])


def alone(batch: ColumnBatch) -> None:
    """Nothing is shared: theta ~ N(0, 1), y ~ N(theta, 0.5)."""
    with batch.clients():
        theta = pyro.sample("theta", Normal(0.0, 1.0))
        with batch.data():
            pyro.sample("y", Normal(theta, 0.5), obs=batch["y"])


@pytest.mark.cpu(3, "a fit, with predictions and an InferenceData")
def test_without_globals_each_client_has_a_posterior_of_its_own() -> None:
    rng = np.random.default_rng(0)
    df = pd.DataFrame({"site": np.repeat(list("abc"), [3, 5, 9]), "y": rng.normal(1.0, 1.0, 17)})
    fitted = fit_model(alone, df, progress=False, draws=4000)
    assert fitted.arrived
    assert "no globals: each client's posterior is its own" in str(fitted)
    assert fitted.globals == {}
    size, total = df.groupby("site")["y"].size().to_numpy(), df.groupby("site")["y"].sum().to_numpy()
    precision = 1 + size / 0.25
    draws = fitted.clients["theta"].reshape(4000, 3)
    # 4,000 draws: five standard errors
    np.testing.assert_allclose(draws.mean(0), total / 0.25 / precision, atol=5 / np.sqrt(4000 * precision.min()))
    np.testing.assert_allclose(draws.std(0), precision**-0.5, rtol=5 / np.sqrt(8000))
    assert fitted.predict(df[:2])["mean"].iloc[0] == pytest.approx(draws.mean(0)[0], abs=0.05)
    assert fitted.posterior(prior=10).posterior["theta"].sizes["client"] == 3


def by_attribute(batch: ColumnBatch) -> None:
    with batch.clients(), batch.data():
        pyro.sample("y", Normal(batch.x, 1.0), obs=batch["y"])


def by_numpy(batch: ColumnBatch) -> None:
    with batch.clients():
        u = pyro.sample("u", Normal(0.0, 1.0))
        with batch.data():
            pyro.sample("y", Normal(np.exp(u), 1.0), obs=batch["y"])


def no_scale(batch: ColumnBatch) -> None:
    tau = pyro.sample("tau", Normal(0.0, 1.0))
    with batch.clients():
        u = pyro.sample("u", Normal(0.0, tau))
        with batch.data():
            pyro.sample("y", Normal(u, 1.0), obs=batch["y"])


@pytest.mark.filterwarnings("ignore:__array_wrap__")
@pytest.mark.parametrize(
    ("model", "line"),
    [
        (by_attribute, r"^a batch has no attribute 'x': a column is batch\['x'\]$"),
        (by_numpy, r"^test_first_models.py, line \d+: takes a function of NumPy of a tensor: use torch's"),
        (no_scale, r"^site 'u' has the log density nan .* a scale not positive"),
    ],
)
def test_what_is_wrong_names_the_way(model: object, line: str) -> None:
    with pytest.raises(UserError, match=line):
        check_model(model, DESIGN)  # type: ignore[arg-type]


def test_a_scale_that_may_be_negative_is_noticed_whatever_the_first_number_is() -> None:
    """Numbers near to the start have either sign: both are looked at."""
    df = pd.DataFrame({"site": ["a", "a", "b"], "y": [0.0, 1.0, 2.0]})
    with pytest.raises(UserError, match=r"^site 'u' has the log density nan .* a scale not positive"):
        fit_model(no_scale, df, progress=False)


def test_a_batch_is_copied_and_kept_as_any_value() -> None:
    batch = DESIGN.template(torch.zeros(()))
    assert pickle.loads(pickle.dumps(batch)).width == copy.deepcopy(batch).width == 1
    assert not hasattr(batch, "x")


def by_factor(batch: ColumnBatch) -> None:
    with batch.clients():
        u = pyro.sample("u", Normal(0.0, 1.0))
        with batch.data():
            pyro.factor("likelihood", Normal(u, 1.0).log_prob(batch["y"]))


def test_a_likelihood_by_factor_predicts_nothing_and_says_why() -> None:
    df = pd.DataFrame({"site": ["a", "a", "b"], "y": [0.0, 1.0, 2.0]})
    fitted = fit_model(by_factor, df, progress=False, draws=20)
    with pytest.raises(UserError, match=r"^no site is observed but by pyro.factor, which cannot be drawn from"):
        fitted.predict(df)
    with pytest.raises(UserError, match=r"^no row has a log likelihood of its own: pyro.factor gives none"):
        fitted.loo()


def by_chance(batch: ColumnBatch) -> None:
    with batch.clients(), batch.data():
        pyro.sample("y", Normal(torch.randn(()), 1.0), obs=batch["y"])


def test_a_model_that_draws_by_itself_leaves_the_callers_numbers_alone() -> None:
    before = torch.get_rng_state()
    with pytest.raises(UserError, match="two log densities"):
        fit_model(by_chance, pd.DataFrame({"site": ["a", "b"], "y": [0.0, 1.0]}), progress=False)
    assert torch.equal(torch.get_rng_state(), before)


def inflated(batch: ColumnBatch) -> None:
    """Counts, of which some are zero for another reason."""
    rate = pyro.sample("rate", LogNormal(0.0, 1.0))
    with batch.clients():
        p = pyro.sample("p", Beta(2.0, 2.0))
        with batch.data():
            zero = pyro.sample("zero", Bernoulli(p))
            pyro.sample("y", Poisson(torch.where(zero > 0, torch.tensor(1e-6), rate)), obs=batch["y"])


@pytest.mark.cpu(4, "a fit with latents of rows summed out, and an InferenceData")
def test_latents_of_rows_that_are_summed_out_leave_everything_else() -> None:
    """Of clients with different numbers of rows; log likelihoods by row are the sum that one would write."""
    df = pd.DataFrame({"site": np.repeat(list("abc"), [2, 5, 4]), "y": [0, 3, 0, 0, 2, 5, 1, 4, 0, 3, 2]})
    fitted = fit_model(inflated, df, progress=False, draws=200)
    data = fitted.posterior()
    np.testing.assert_array_equal(data.observed_data["y"], df["y"])
    assert data.posterior_predictive["y"].shape == (1, 200, 11)
    assert data.prior["p"].shape == (1, 200, 3)
    assert {k: v.shape for k, v in fitted.prior_predictive(7).items()}["zero"] == (7, 11)
    site_index = pd.factorize(df["site"])[0]
    p, rate, y = fitted.clients["p"].reshape(200, 3)[:, site_index], fitted.globals["rate"][:, None], df["y"].to_numpy()
    parts = [stats.poisson.logpmf(y, 1e-6) + np.log(p), stats.poisson.logpmf(y, rate) + np.log1p(-p)]
    np.testing.assert_allclose(fitted.log_likelihood["y"], np.logaddexp(*parts), rtol=1e-9)
    assert np.isfinite(elpd_value(fitted.loo(), "elpd"))


def chain(batch: ColumnBatch) -> None:
    """Two states in the order of time, at clients of different lengths."""
    with batch.clients():
        u = pyro.sample("u", Normal(0.0, 1.0))
        k = torch.tensor(0.0)
        for t in pyro.markov(range(batch.width)):
            with pyro.poutine.mask(mask=batch.present[..., t, None]):
                k = pyro.sample(f"k{t}", Bernoulli(0.3 + 0.4 * k))
                pyro.sample(f"y{t}", Normal(u + k, 1.0), obs=batch["y"][..., t, None])


@pytest.mark.cpu(3, "a fit, and an InferenceData")
def test_times_that_some_clients_do_not_have_are_no_observations() -> None:
    df = pd.DataFrame({"site": list("aaabbcc"), "y": [0.0, 1.0, 2.0, 0.5, 1.5, 2.0, 1.0]})
    fitted = fit_model(chain, df, progress=False, draws=20)
    data = fitted.posterior()
    assert list(data.observed_data.data_vars) == ["y0"]
    np.testing.assert_array_equal(data.observed_data["y0"], [0.0, 0.5, 2.0])
    assert {"k1", "y1"} <= set(fitted.prior_predictive(5))
    assert "y2" not in fitted.prior_predictive(5)
    with pytest.raises(UserError, match="its rows have one together"):
        fitted.loo()


def of_client(batch: ColumnBatch) -> None:
    with batch.clients():
        u = pyro.sample("u", Normal(batch.client("x"), 1.0))
        with batch.data():
            pyro.sample("y", Normal(u, 1.0), obs=batch["y"])


def test_a_column_of_the_client_is_the_same_in_all_of_its_rows() -> None:
    df = pd.DataFrame({"site": ["a", "a", "b"], "x": [1.0, 1.0, 2.0], "y": [0.0, 1.0, 2.0]})
    assert columns_of(df) == ["u"]
    with pytest.raises(UserError, match=r"^column 'x' is read by batch.client, and differs between the rows"):
        columns_of(df.assign(x=[1.0, 1.5, 2.0]))


def columns_of(df: pd.DataFrame) -> list[str]:
    """Latents of a model that was looked at with a table's rows."""
    federation, design = column_federation(df, "site", ["x", "y"])
    batch = federation.to(dtype=torch.float64).batch(range(federation.clients))
    return [of.name for of in check_model(of_client, design, batch).clients]
