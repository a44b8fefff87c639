"""Pictures of an InferenceData return an axis, show what they are given, and refuse in one line what cannot be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import xarray as xr
from scipy.stats import kstest

from hierfl import UserError
from hierfl.arviz_data import dataset, gathered, group_names
from hierfl.arviz_io import BY_ROW, to_inference_data
from hierfl.plots.chains import ess_evolution, rank, rhat_and_ess, trace
from hierfl.plots.forest import forest
from hierfl.plots.posterior import panels
from hierfl.plots.posterior_numbers import most_variable, worst_mixed
from hierfl.plots.predictive import predictive_check, predictive_check_by_client, quantile_residuals, residuals

CLIENTS = ["a", "b", "c"]
SIZES = [6, 3, 9]


@pytest.fixture(autouse=True)
def close_figures() -> Iterator[None]:
    import matplotlib as mpl

    mpl.use("Agg")
    yield
    import matplotlib.pyplot as plt

    plt.close("all")


def made(chains: int = 4, draws: int = 60, apart: float = 0.0, labels: bool = False):
    """Two numbers a client, the second one different between clients; chain 0 of client c stands apart."""
    rng = np.random.default_rng(0)
    b = rng.normal(size=(chains, draws, 3, 2)) * 0.1
    b[..., 1] += np.array([-1.0, 0.0, 1.0])
    b[0, :, 2, 0] += apart
    n = sum(SIZES)
    y = rng.integers(0, 3, n) if labels else rng.normal(size=n)
    new = rng.integers(0, 3, (chains, draws, n)) if labels else rng.normal(size=(chains, draws, n))
    return to_inference_data(
        clients=CLIENTS,
        posterior={"b": b},
        prior={"b": rng.normal(size=(1, chains * draws, 3, 2)) + np.array([10.0, 20.0, 30.0])[:, None]},
        log_likelihood={"y": rng.normal(size=(chains, draws, n))},
        posterior_predictive={"y": new},
        sample_stats={},
        observed={"y": y},
        obs_client=np.repeat(CLIENTS, SIZES).tolist(),
        constants={"n": (("client",), np.array(SIZES))},
        about_log_likelihood="",
        draws_of="chains" if chains > 1 else "guide",
    )


def test_numbers_are_chosen_for_what_a_picture_is_about() -> None:
    name, coords = most_variable(made())
    assert name == "b"
    assert coords["b_dim_0"] == 1
    name, coords = worst_mixed(made(apart=2.0))
    assert (name, coords) == ("b", {"client": "c", "b_dim_0": 0})


def test_a_forest_has_the_population_and_clients_of_all_sizes() -> None:
    ax = forest(made())
    rows = {label.get_text(): y for label, y in zip(ax.get_yticklabels(), ax.get_yticks(), strict=True)}
    assert list(rows) == ["population", "c  (n = 9)", "a  (n = 6)", "b  (n = 3)"]
    points = {round(float(line.get_ydata()[0]), 6): float(line.get_xdata()[0])
              for line in ax.get_lines() if len(line.get_xdata()) == 1}  # fmt: skip
    for client, mean in zip(CLIENTS, (-1, 0, 1), strict=True):
        at = round(float(rows[f"{client}  (n = {SIZES[CLIENTS.index(client)]})"]), 6)
        assert abs(points[at] - mean) < 0.05
    assert 15 < points[round(float(rows["population"]), 6)] < 25  # of a client picked at random, not of the first
    only = forest(made(), ("b", {"b_dim_0": 0}), clients=["b"])
    assert [label.get_text() for label in only.get_yticklabels()] == ["population", "b  (n = 3)"]
    assert only.get_title().startswith("b[0]")


def test_chains_are_shown_where_they_are() -> None:
    data = made(apart=2.0)
    paths = trace(data)
    assert len(paths.get_lines()) == 4
    means = sorted(float(np.mean(line.get_ydata())) for line in paths.get_lines())
    assert means[-1] > 1.9 > 0.2 > means[-2]
    assert "client c" in rank(data).get_title()
    ess = ess_evolution(data)
    assert max(ess.get_lines()[0].get_ydata()) < 60  # of 240
    ax = rhat_and_ess(data)
    (points,) = (c.get_offsets() for c in ax.collections)
    assert len(points) == 3
    assert points[2][1] > 1.5 > 1.1 > points[0][1]


@pytest.mark.parametrize("draw", [trace, rank, ess_evolution, forest])
def test_numbers_that_are_not_there_are_refused(draw: Callable[..., Any]) -> None:
    coords = {} if draw is forest else {"client": "a"}
    for which, words in (
        (("nope", {}), "there is no 'nope' among b"),
        (("b", dict(coords)), "a number of b is named by"),
        (("b", {"b_dim_0": 7, **coords}), "b_dim_0 has no 7; it has 0, 1"),
    ):
        with pytest.raises(UserError, match=words):
            draw(made(), which)
    with pytest.raises(UserError, match="no client 'zz'"):
        forest(made(), clients=["zz"])


def test_whole_numbers_are_no_density() -> None:
    data = made(labels=True)
    data.observed_data["y"] = data.observed_data["y"].astype(float) % 2  # as a table's 0 and 1 are
    data.posterior_predictive["y"] = data.posterior_predictive["y"].astype(float) % 2
    ax = predictive_check(data)
    assert [label.get_text() for label in ax.get_xticklabels()] == ["0", "1"]
    assert data.observed_data["y"].dtype == float
    names = ["a label of forty-four letters, all of them shown", "dog"]
    data.constant_data["label"] = xr.DataArray(np.array([*names, "emu"]), dims="label_number")  # a tree takes no tuple
    assert [label.get_text() for label in predictive_check(data).get_xticklabels()] == names
    bars = [bar.get_height() for bar in ax.patches]
    assert bars == pytest.approx([np.mean(data.observed_data["y"].values == v) for v in (0, 1)])


def test_a_response_is_called_as_its_site_is() -> None:
    groups = {group: dataset(made(), group) for group in group_names(made())}
    renamed = {group: groups[group].rename({"y": "visits"}) for group in BY_ROW}
    data = gathered(groups | renamed, made().attrs)
    assert panels(data)["predictive-check"](None).get_xlabel() == "visits"


@pytest.mark.parametrize("draw", [rhat_and_ess, trace, rank, ess_evolution])
def test_one_chain_is_refused_where_chains_are_compared(draw: Callable[..., Any]) -> None:
    with pytest.raises(UserError, match="R-hat compares chains, and here is one"):
        draw(made(chains=1))
    with pytest.raises(UserError, match="at least 4 draws"):
        draw(made(draws=3))


@pytest.mark.parametrize("labels", [False, True])
def test_predictive_checks(labels: bool) -> None:
    data = made(labels=labels)
    assert predictive_check(data).get_lines()
    if not labels:
        data.observed_data["y"][:6] = 7.0  # client a is nowhere near
    ax = predictive_check_by_client(data)
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert names == ["c", "a", "b"]
    dots = [float(line.get_xdata()[0]) for line in ax.get_lines()]
    y = data.observed_data["y"].values
    if labels:
        assert np.allclose(
            dots, [np.bincount(y[9:]).max() / 9, np.bincount(y[:6]).max() / 6, np.bincount(y[6:9]).max() / 3]
        )
    else:
        assert np.allclose(dots, [y[9:].mean(), 7, y[6:9].mean()])
        assert "1 of 3 outside" in ax.get_title()


def test_quantile_residuals_are_normal_where_the_model_is_right() -> None:
    """Of numbers and of counts; and not where it is wrong."""
    rng = np.random.default_rng(0)
    rate = rng.gamma(2, 1, 4000)
    for draw in (lambda r: rng.normal(r), lambda r: rng.poisson(r).astype(float)):
        right = quantile_residuals(draw(rate), np.stack([draw(rate) for _ in range(400)], 1))
        assert kstest(right, "norm").pvalue > 0.01
    wrong = quantile_residuals(rng.normal(rate, 2), np.stack([rng.normal(rate) for _ in range(400)], 1))
    assert kstest(wrong, "norm").pvalue < 1e-6
    ax = residuals(made(labels=False))
    assert len(ax.collections[0].get_offsets()) == len(made().observed_data["y"])
    assert ax.get_title().startswith("Residuals")


def test_what_there_is_decides_what_is_drawn() -> None:
    assert {"forest", "mixing", "trace", "rank", "ess", "predictive-check", "residuals"} < set(panels(made()))
    assert "residuals" not in panels(made(labels=True))
    assert set(panels(made(chains=1))) == {"forest", "predictive-check", "predictive-check-clients", "residuals"}
    point = made(chains=1)
    for kind in ("point", "examples", "shared"):
        point.log_likelihood.attrs["draws_of"] = kind
        assert set(panels(point)) == {"predictive-check", "predictive-check-clients", "residuals"}
    point = gathered(
        {group: dataset(point, group) for group in group_names(point) if group != "posterior"}, point.attrs
    )
    with pytest.raises(UserError, match="no draws of a client's latents"):
        forest(point)
