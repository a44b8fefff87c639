"""Tables in, tables out: whose rows are, classes by name, intervals beside the Gaussian's own."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm
from torch.nn.functional import softplus

from hierfl import Federation, UserError
from hierfl.inference import Run, fit
from hierfl.models import FedPer, PFedVEM
from hierfl.nn.networks.build import architecture

#: three wards of 30 rows
ROWS = pd.DataFrame(
    {
        "ward": np.tile(["a", "b", "c"], 30),
        "x": np.linspace(-1, 1, 90),
        "arm": np.repeat(["drug", "placebo"], 45),
        "y": np.linspace(10, 30, 90) + np.sin(np.arange(90)),
        "kind": np.where(np.arange(90) % 4, "alive", "died"),
    }
)


@pytest.fixture(scope="module")
def regression() -> Run:
    fed = Federation.from_frame(ROWS, client="ward", y="y", x=["x", "arm"], test=0.0)
    return fit(PFedVEM(architecture("linear", fed)), fed, rounds=3, progress=False)


@pytest.fixture(scope="module")
def classification() -> Run:
    fed = Federation.from_frame(ROWS, client="ward", y="kind", x=["x", "arm"], test=0.0, validation=0.3)
    return fit(PFedVEM(architecture("linear", fed)), fed, rounds=2, progress=False, calibrate="temperature",
               conformal=0.1)  # fmt: skip


def arrays(df: pd.DataFrame) -> np.ndarray:
    return np.stack([df.x, df.arm == "drug", df.arm == "placebo"], 1).astype(float)


def test_rows_of_all_clients_at_once_in_any_order(regression: Run) -> None:
    some = ROWS.sample(20, random_state=1)[["arm", "kind", "ward", "x"]]
    table = regression.predict(some)
    assert list(table) == ["client", "mean", "lower", "upper", "response_lower", "response_upper"]
    assert table.index.equals(some.index)
    assert table.client.tolist() == some.ward.tolist()
    for client, rows in some.groupby("ward"):
        wanted = regression.predict(arrays(rows), client)[:, 0].numpy()
        assert np.allclose(table["mean"][rows.index], wanted, rtol=1e-12)
    alone = regression.predict(some.drop(columns="ward"), client="b")
    own = some.index[some.ward == "b"]
    pd.testing.assert_frame_equal(alone.loc[own], table.loc[own])


def test_intervals_are_the_gaussians(regression: Run) -> None:
    """A linear head with independent weights: its mean's and its response's law are Normal, and known."""
    table = regression.predict(ROWS[ROWS.ward == "b"].iloc[::6], draws=20_000, interval=0.8)
    personal, units = regression.personal, regression.fitted.federation.response_units
    assert units is not None
    inputs = np.c_[arrays(ROWS[ROWS.ward == "b"].iloc[::6]), np.ones(5)]
    mu, sd = personal["mu"][1].double().numpy(), softplus(personal["pi"])[1].double().numpy()
    noise = float(regression.shared["response_sd"])
    mean, spread = inputs @ mu * units.sd + units.mean, units.sd * np.sqrt(inputs**2 @ sd**2)
    wide = units.sd * np.sqrt(inputs**2 @ sd**2 + noise**2)
    z = norm.ppf(0.9)
    for name, wanted in {"lower": mean - z * spread, "upper": mean + z * spread}.items():
        assert np.abs(table[name] - wanted).max() < 0.05 * spread.max()
    for name, wanted in {"response_lower": mean - z * wide, "response_upper": mean + z * wide}.items():
        assert np.abs(table[name] - wanted).max() < 0.03 * wide.max()


def test_classes_have_their_names(classification: Run) -> None:
    table = classification.predict(ROWS[::5])
    assert list(table) == ["client", "label", "p(alive)", "p(died)", "set"]
    assert np.allclose(table["p(alive)"] + table["p(died)"], 1)
    assert set(table.label) <= {"alive", "died"}
    assert set(table.set) <= {"", "alive", "died", "alive|died"}
    rows = ROWS[::5][ROWS.ward[::5] == "c"]
    warm = classification.predict(arrays(rows), "c", tempered=True).numpy()
    assert np.allclose(table.loc[rows.index, ["p(alive)", "p(died)"]], warm)
    cold = classification.predict(rows, tempered=False)
    assert not np.allclose(cold["p(died)"], warm[:, 1])


def test_a_client_that_was_never_seen(regression: Run, classification: Run) -> None:
    unnamed = ROWS.drop(columns="ward")
    table = regression.predict_new_client(unnamed[:4], draws=400)
    pd.testing.assert_frame_equal(table, regression.predict_new_client(ROWS[:4], draws=400))  # of fitted clients alone
    wanted = regression.predict_new_client(arrays(ROWS[:4]), draws=400)
    assert np.allclose(table["mean"], wanted[:, 0])
    half = (table.response_upper - table.response_lower) / 2
    assert np.allclose(half, norm.ppf(0.95) * wanted[:, 1], rtol=0.05)
    assert list(classification.predict_new_client(unnamed[:2])) == ["label", "p(alive)", "p(died)"]


def test_several_clients_that_were_never_seen(regression: Run) -> None:
    """Each is predicted as if it were asked for alone, by its own rows of ``given``."""
    rows = ROWS[:8].assign(ward=["p", "q"] * 4)
    few = ROWS[8:20].assign(ward=["q", "p"] * 6, y=lambda df: df.y + 3 * (df.ward == "p"))
    table = regression.predict_new_client(rows, draws=5, given=few)
    assert (list(table.index), list(table.client)) == (list(rows.index), ["p", "q"] * 4)
    for name in ("p", "q"):
        alone = few[few.ward == name]
        wanted = regression.predict_new_client(rows[rows.ward == name], 5, given=(alone, alone.y))
        pd.testing.assert_frame_equal(table[table.client == name], wanted)
    unnamed = regression.predict_new_client(rows.drop(columns="ward"), 5, given=few[few.ward == "q"])
    pd.testing.assert_frame_equal(unnamed[1::2], table[table.client == "q"].drop(columns="client"))
    without = regression.predict_new_client(rows, 5)
    pd.testing.assert_frame_equal(
        without.drop(columns="client"), regression.predict_new_client(rows.drop(columns="ward"), 5)
    )


def test_a_point_has_no_interval_of_its_mean() -> None:
    fed = Federation.from_frame(ROWS[ROWS.ward == "a"], client="ward", y="y", x=["x"], test=0.0)
    run = fit(FedPer(architecture("linear", fed)), fed, rounds=1, progress=False)
    table = run.predict(ROWS[["x"]])  # one client needs no name
    assert list(table) == ["client", "mean", "response_lower", "response_upper"]
    both = run.predict(ROWS[["x"]].to_numpy(), "a").numpy()
    assert np.allclose(table.response_upper, both[:, 0] + norm.ppf(0.95) * both[:, 1])
    assert list(run.predict(ROWS[["x"]], interval=None)) == ["client", "mean"]
    with pytest.raises(UserError, match="'b' is not among those fitted"):
        run.predict(ROWS)
