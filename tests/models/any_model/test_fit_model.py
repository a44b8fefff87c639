"""One call for a plain Pyro model and a table, and what is asked of its result."""

from __future__ import annotations

import logging
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.func import vmap

import hierfl
from hierfl import UserError
from hierfl.data.column_batch import ColumnBatch
from hierfl.data.column_federation import column_federation
from hierfl.data.column_table import outline
from hierfl.elpd import elpd_value
from hierfl.models.any_model.columns import columns_read
from hierfl.models.any_model.fitted_model import FittedModel
from hierfl.models.any_model.fresh import Fresh

WARDS = [f"w{j}" for j in range(5)]


def model(batch: ColumnBatch) -> None:
    """Gaussian by ward, so that everything is known: mu ~ N(0, 10), u ~ N(mu, 1), y ~ N(u + drug, 0.5)."""
    mu = pyro.sample("mu", dist.Normal(0.0, 10.0))
    pyro.deterministic("twice", 2 * mu)
    with batch.clients():
        u = pyro.sample("u", dist.Normal(mu, 1.0))
        pyro.deterministic("excess", u - mu)
        with batch.data():
            pyro.sample("y", dist.Normal(u + batch["drug"], 0.5), obs=batch["y"])


def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    rows = [(ward, drug, rng.normal(3 + 0.5 * j + (drug == "B"), 0.5), None)
            for j, ward in enumerate(WARDS) for drug in ("A", "B", "B", "A")[: 2 + j % 3]]  # fmt: skip
    return pd.DataFrame(rows, columns=["ward", "drug", "y", "unused"])


@pytest.fixture(scope="module")
def fitted() -> FittedModel:
    return hierfl.fit_model(model, frame(), group="ward", progress=False, draws=2000, seed=3)


def refit(df: pd.DataFrame) -> FittedModel:
    return hierfl.fit_model(model, df, group="ward", progress=False)


def exact(df: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Posterior mean and covariance of (mu, u_1, ..., u_J)."""
    wards = sorted(set(df["ward"]))
    size = 1 + len(wards)
    precision, linear = np.zeros((size, size)), np.zeros(size)
    precision[0, 0] = 1 / 100
    for j, ward in enumerate(wards, 1):
        own = df[df["ward"] == ward]
        precision[0, 0] += 1
        precision[[0, j], [j, 0]] -= 1
        precision[j, j] += 1 + len(own) / 0.25
        linear[j] += (own["y"] - (own["drug"] == "B")).sum() / 0.25
    covariance = np.linalg.inv(precision)
    return covariance @ linear, covariance


def test_draws_are_on_the_models_own_scale(fitted: FittedModel) -> None:
    """Clients' latents come back through centring, location and scale: mean and covariance are the exact ones."""
    mean, covariance = exact(frame())
    draws = np.c_[fitted.globals["mu"], fitted.clients["u"]]
    sd = np.sqrt(covariance.diagonal())
    assert np.abs((draws.mean(0) - mean) / sd).max() < 0.1
    assert np.abs(draws.std(0) / sd - 1).max() < 0.08
    assert np.corrcoef(draws.T)[0, 1] == pytest.approx(covariance[0, 1] / sd[0] / sd[1], abs=0.08)
    np.testing.assert_allclose(fitted.globals["twice"], 2 * fitted.globals["mu"])
    np.testing.assert_allclose(fitted.clients["excess"], fitted.clients["u"] - fitted.globals["mu"][:, None], rtol=1e-9)
    assert fitted.client_names == WARDS
    assert "exact: all log joints are Gaussian" in str(fitted.summary())


def test_a_row_is_predicted_for_an_old_client_a_new_one_and_one_with_rows_of_its_own(fitted: FittedModel) -> None:
    mean, covariance = exact(frame())
    rows = pd.DataFrame({"ward": ["w1", "w1"], "drug": ["A", "B"]})
    old = fitted.predict(rows)
    assert old["mean"].to_numpy() == pytest.approx([mean[2], mean[2] + 1], abs=0.06)
    assert old["sd"].to_numpy() == pytest.approx(np.sqrt(covariance[2, 2] + 0.25), rel=0.08)
    new = fitted.predict(rows.assign(ward="other"), new=True)
    assert new["mean"][0] == pytest.approx(mean[0], abs=0.12)
    assert new["sd"][0] == pytest.approx(np.sqrt(covariance[0, 0] + 1.25), rel=0.08)
    own = pd.DataFrame({"ward": "other", "drug": "A", "y": [9.0, 9.4, 8.8]})
    learned = fitted.predict(rows.assign(ward="other"), given=own)
    wanted, spread = exact(pd.concat([frame().assign(ward="w" + frame()["ward"]), own]))
    assert learned["mean"][0] == pytest.approx(wanted[1], abs=0.1)
    assert learned["sd"][0] == pytest.approx(np.sqrt(spread[1, 1] + 0.25), rel=0.1)
    pd.testing.assert_frame_equal(old, fitted.predict(rows))  # draws are keyed by seed and client


def test_a_number_far_from_the_fitted_rows_is_named(
    fitted: FittedModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a column that the model reads, not of a response."""
    y, rows = frame()["y"], frame().head(2).assign(y=1e9, age=720)
    facts = fitted.joint.fitted.federation.about
    assert facts["spread"] == {"y": pytest.approx([y.mean(), y.std(ddof=0)])}
    with caplog.at_level(logging.WARNING, "hierfl"):
        fitted.predict(rows)
        assert not caplog.records
        monkeypatch.setitem(facts, "spread", {**facts["spread"], "age": [50.0, 10.0]})
        fitted.predict(rows)
    assert [record.getMessage()[:38] for record in caplog.records] == ["column 'age' is 720 in one of 2 rows, "]


def test_log_likelihood_and_arviz_know_rows_and_clients(fitted: FittedModel) -> None:
    data, df = fitted.posterior(), frame()
    assert dict(data.posterior.sizes) == {"chain": 1, "draw": 2000, "client": 5}
    assert data.posterior["mu"].dims == ("chain", "draw")
    assert data.posterior["u"].dims == ("chain", "draw", "client")
    density = data.log_likelihood["y"]
    assert density["client"].values.tolist() == df["ward"].tolist()
    ward_index = df["ward"].map(WARDS.index).to_numpy()
    at = torch.from_numpy(fitted.clients["u"][:, ward_index] + (df["drug"] == "B").to_numpy())
    wanted = dist.Normal(at, 0.5).log_prob(torch.tensor(df["y"].tolist(), dtype=torch.float64))
    np.testing.assert_allclose(density.values[0], wanted.numpy(), rtol=1e-9)
    np.testing.assert_allclose(data.observed_data["y"].values, df["y"])
    assert data.constant_data["n"].values.tolist() == df.groupby("ward").size().tolist()
    assert data.prior["mu"].values.std() == pytest.approx(10, rel=0.08)
    assert data.posterior_predictive["y"].shape == (1, 2000, len(df))
    assert elpd_value(fitted.loo(), "elpd") < wanted.mean(0).sum()
    assert {k: v.shape for k, v in fitted.prior_predictive(7).items()}["y"] == (7, len(df))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda f: f.predict(pd.DataFrame({"ward": ["w1"]})), "lacks column 'drug', which the model reads"),
        (lambda f: f.predict(pd.DataFrame({"ward": ["w1"], "drug": ["C"]})), "'C', a level that is not known"),
        (lambda f: f.predict(pd.DataFrame({"ward": ["x"], "drug": ["A"]})), "client 'x' was not fitted: new=True"),
        (lambda f: f.predict(pd.DataFrame({"ward": ["w1"], "drug": ["A"]}), new=True), "client 'w1' was fitted"),
        (lambda f: f.predict(pd.DataFrame({"drug": ["A"]})), "no column 'ward' that says whose rows"),
        (lambda f: f.predict(frame(), site="u"), "unknown observed site 'u'; known: y"),
        (lambda f: f.predict(frame(), draws=2001), "draws must be from 1 to 2000"),
        (lambda f: f.get_samples(), "fitted.globals and fitted.clients are draws by site"),
        (lambda f: hierfl.fit_model(model, frame()), "no column 'site' that names the clients"),
        (lambda f: hierfl.fit_model(model, frame(), group="ward", guide="iaf"), "unknown guide 'iaf'; known: auto"),
        (lambda f: refit(frame().rename(columns={"y": "z"})), "^unknown column 'y'; known: .*z.*d$"),
        (lambda f: refit(frame().assign(y=list("12") * 7)), "column 'y' holds numbers as text"),
        (lambda f: refit(frame().assign(y=[None] + [1.0] * 13)), "column 'y' has 1 missing value"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_line(fitted: FittedModel, call: object, message: str) -> None:
    with pytest.raises(UserError, match=message) as refused:
        call(fitted)  # type: ignore[operator]
    assert "\n" not in str(refused.value)


def test_only_columns_that_the_model_reads_need_be_complete() -> None:
    design = outline(frame(), "ward")
    assert columns_read(model, design) == ("drug", "y")
    federation, design = column_federation(frame(), "ward", ["drug", "y"])
    assert federation.about["levels"] == {"drug": ("A", "B")}
    assert federation.x[:2].tolist() == [[0.0, frame()["y"][0]], [1.0, frame()["y"][1]]]
    again = hierfl.Federation.from_columns(frame(), client="ward", columns=["drug", "y"])
    assert again.digest() == federation.digest()


def test_a_fit_that_was_stopped_goes_on_to_the_bit(tmp_path: object) -> None:
    """And so does one of a federation that was made before."""
    federation = hierfl.Federation.from_columns(frame(), client="ward", columns=["drug", "y"])
    settings = {"progress": False, "draws": 20, "seed": 3}
    whole = hierfl.fit_model(model, federation, **settings)
    hierfl.fit_model(model, federation, rounds=1, folder=tmp_path, **settings)
    resumed = hierfl.fit_model(model, federation, folder=tmp_path, resume=True, **settings)
    for name, value in whole.clients.items():
        np.testing.assert_array_equal(value, resumed.clients[name])


@pytest.mark.parametrize(
    "make",
    [
        lambda s: dist.HalfCauchy(2 * torch.ones(2)), lambda s: dist.Exponential(torch.ones(2)),
        lambda s: dist.Laplace(torch.zeros(2), 1.0), lambda s: dist.Weibull(torch.ones(2), 2.0),
    ],
    ids=["half-cauchy", "exponential", "laplace", "weibull"],
)  # fmt: skip
def test_distributions_that_fill_tensors_in_place_are_drawn_under_vmap(make: object) -> None:
    """Each draw has numbers of its own, of the right distribution."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        with Fresh(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            drawn = vmap(lambda s: make(s).sample(), randomness="different")(torch.zeros(4000))  # type: ignore[operator]
        wanted = make(0).sample((40_000,))  # type: ignore[operator]
    quantiles = torch.tensor([0.1, 0.5, 0.9])
    gaps = torch.quantile(drawn[:, 0], quantiles) - torch.quantile(wanted[:, 0], quantiles)
    assert gaps.abs().max() < 0.15 * wanted[:, 0].abs().quantile(0.9)
    assert not torch.equal(drawn[:, 0], drawn[:, 1])


def test_a_trace_says_what_each_round_was_about(fitted: FittedModel) -> None:
    """Two rounds of a Gaussian model: the second's step is none."""
    trace = fitted.trace
    assert trace["round"].tolist() == list(range(1, fitted.run.rounds + 1))
    assert set(trace["phase"]) == {"rough"}
    assert trace["bound"].is_monotonic_increasing
    assert trace["moved"].iloc[-1] == pytest.approx(0, abs=1e-6)


def test_a_climb_that_only_ran_out_of_patience_says_so(fitted: FittedModel) -> None:
    trace = fitted.run.shared["posterior.trace"].clone()
    trace[-1, 3] = 0.5
    run = replace(fitted.run, fitted=replace(fitted.run.fitted, shared={**fitted.run.shared, "posterior.trace": trace}))
    coded, step = FittedModel(run).summary().notes[:2]
    assert coded == "drug is text: A is 0, B is 1"
    assert "the guide's last step was 0.5 standard deviations" in step


def test_binomial_counts_are_drawn_without_a_warning() -> None:
    """Counts of a table are of no draw, chances are of every draw: torch warns that it resizes, once a client."""
    with torch.random.fork_rng(devices=[]), Fresh(), warnings.catch_warnings():
        torch.manual_seed(0)
        warnings.simplefilter("error")
        count, chance = torch.tensor([5.0, 20.0]), torch.tensor([0.2, 0.7])
        drawn = vmap(lambda s: dist.Binomial(count, chance + s).sample(), randomness="different")(torch.zeros(4000))
    assert drawn.mean(0).tolist() == pytest.approx([1.0, 14.0], abs=0.15)
    assert drawn.var(0).tolist() == pytest.approx([0.8, 4.2], rel=0.1)
