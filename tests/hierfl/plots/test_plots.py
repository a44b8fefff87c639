"""Pictures are functions on frames and counts that return an axis; what they draw is what they were given."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
import pytest
from scipy.special import ndtri

from hierfl import UserError
from hierfl.plots.calibration import client_reliability, reliability, worst_calibrated
from hierfl.plots.clients import (
    column_by_size,
    confidence_by_deviation,
    metric_by_client,
    metric_by_size,
    size_histogram,
)
from hierfl.plots.densities import densities
from hierfl.plots.features import embedding, feature_map
from hierfl.plots.gains import three_ways
from hierfl.plots.mixed import caterpillar, normal_quantiles, shrinkage
from hierfl.plots.run import panels
from hierfl.plots.style import axis_for, label_percent
from hierfl.plots.training import metric_over_bytes, metric_over_rounds, movement, who_reported


@pytest.fixture(autouse=True)
def close_figures() -> Iterator[None]:
    import matplotlib as mpl

    mpl.use("Agg")
    yield
    import matplotlib.pyplot as plt

    plt.close("all")


def metrics() -> pd.DataFrame:
    rows = [
        {"round": t, "split": s, "pm_accuracy": 0.5 + t / 20, "gm_accuracy": None}
        for t in (1, 2, 3)
        for s in ("validation", "test")
    ]
    return pd.DataFrame(rows)


def clients(n: list[int]) -> pd.DataFrame:
    return pd.DataFrame({"n": n, "accuracy": np.linspace(0.7, 0.9, len(n)), "tau": np.linspace(1, 2, len(n))})


def test_curves_hold_test_metrics_only_and_leave_out_what_there_is_not() -> None:
    ax = metric_over_rounds(metrics())
    (line,) = ax.get_lines()
    assert line.get_xdata().tolist() == [1, 2, 3]
    assert line.get_ydata().tolist() == pytest.approx([0.55, 0.6, 0.65])


@pytest.mark.parametrize("n", [[109, 109, 110, 110], [5, 40, 230], [7, 7, 7], [1, 3000]])
def test_sizes_have_readable_ticks(n: list[int]) -> None:
    frame = clients(n)
    for draw in (metric_by_size, size_histogram, lambda f: column_by_size(f, "tau", "tau")):
        ax = draw(frame)
        ax.figure.canvas.draw()
        low, high = ax.get_xlim()
        ticks = zip(ax.get_xticks(), ax.get_xticklabels(), strict=True)
        shown = [label.get_text() for tick, label in ticks if low <= tick <= high]
        assert shown
        assert len(set(shown)) == len(shown)
        assert all(label.isdigit() for label in shown)


def test_points_stand_where_the_clients_do() -> None:
    frame = clients([5, 40, 230])
    (points,) = metric_by_size(frame).collections
    assert np.allclose(points.get_offsets(), frame[["n", "accuracy"]])


def test_reliability_of_averaged_draws_stands_beside() -> None:
    mean, averaged = np.zeros((1, 15, 3)), np.zeros((1, 15, 3))
    mean[0, 14], averaged[0, 10] = [10, 9.8, 7], [10, 7.0, 7]
    ax = reliability(mean, averaged=averaged)
    labels = [line.get_label() for line in ax.get_lines()]
    assert [text for text in labels if text[0] != "_"] == [
        "calibrated", "posterior mean, pooled ECE 0.280", "averaged draws, pooled ECE 0.000"
    ]  # fmt: skip


def test_reliability_with_and_without_temperature() -> None:
    bins, tempered = np.zeros((1, 15, 3)), np.zeros((1, 15, 3))
    bins[0, 14], tempered[0, 10] = [10, 9.8, 7], [10, 7.0, 7]
    labels = [line.get_label() for line in reliability(bins, tempered=tempered).get_lines()]
    assert [text for text in labels if text[0] != "_"] == [
        "calibrated", "without temperature, pooled ECE 0.280", "as predicted, with temperature, pooled ECE 0.000",
    ]  # fmt: skip


def test_reliability_pools_clients_and_states_its_error() -> None:
    bins = np.zeros((2, 15, 3))
    bins[0, 14] = [10, 9.8, 9]
    bins[1, 14] = [30, 29.4, 30]
    bins[1, 7] = [10, 5.0, 8]
    ax = reliability(bins)
    line = ax.get_lines()[1]
    assert line.get_xdata().tolist() == pytest.approx([0.5, 39.2 / 40])
    assert line.get_ydata().tolist() == pytest.approx([0.8, 39 / 40])
    pooled, own = (abs(5 - 8) + abs(39.2 - 39)) / 50, ((9.8 - 9) / 10 + (30 - 29.4 + 8 - 5) / 40) / 2
    assert line.get_label() == f"personal models, pooled ECE {pooled:.3f}, clients' mean {own:.3f}"
    assert [text.get_text() for text in ax.texts] == ["10", "40"]  # predictions of each bin that has any
    assert 1 < ax.get_xlim()[1] == ax.get_ylim()[1] < 1.1


def test_few_clients_of_one_size_stand_beside_their_names() -> None:
    bins = np.zeros((3, 15, 3))
    bins[:, 14] = [10, 9.8, 9]
    for n, wanted in (([7, 7, 7], {"rounds", "clients"}), ([5, 40, 230], {"rounds", "sizes", "histogram"})):
        frame = clients(n).drop(columns="tau").assign(client=["mnist", "usps", "svhn"])
        drawn = panels(metrics(), frame, bins)
        assert set(drawn) == wanted | {"reliability", "reliability-clients"}
    ax = metric_by_client(frame)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["mnist", "usps", "svhn"]
    assert np.allclose(ax.collections[0].get_offsets()[:, 0], frame["accuracy"])
    lines = client_reliability(bins, names=["mnist", "usps", "svhn"]).get_lines()[:-1]  # the last is the axis
    assert [line.get_label() for line in lines] == ["calibrated", "mnist", "usps", "svhn", "pooled"]
    assert len({line.get_color() for line in lines[1:]}) == 4
    bins[0, :-1] = 0  # always as sure: a point, where no line can be
    sure = client_reliability(bins, names=["mnist", "usps", "svhn"]).get_lines()[1]
    assert len(sure.get_xdata()) == 1
    assert sure.get_marker() == "o"


def test_what_moves_and_where_features_lie() -> None:
    rng = np.random.default_rng(0)
    moving = metrics().assign(update_norm_base=0.1, update_norm_none=0.0)
    assert "movement" in panels(moving, clients([5, 40, 230]).drop(columns="tau"), None)
    assert "movement" not in panels(moving.assign(update_norm_base=0.0), clients([5, 40, 230]), None)
    (line,) = movement(moving).get_lines()
    assert line.get_label() == "base"
    z = np.concatenate([rng.normal(size=(30, 5)), 20 + rng.normal(size=(30, 5))])
    places, labels = embedding(z), np.repeat(["a", "b"], 30)
    assert places.shape == (60, 2)
    assert np.array_equal(places, embedding(z))
    centres = [places[labels == name].mean(0) for name in "ab"]
    spread = max(
        np.linalg.norm(places[labels == name] - c, axis=1).max() for name, c in zip("ab", centres, strict=True)
    )
    assert np.linalg.norm(centres[0] - centres[1]) > spread  # two heaps stay two heaps
    ax = feature_map(places, labels, "class")
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["a", "b"]
    assert [len(dots.get_offsets()) for dots in ax.collections] == [30, 30]
    many = feature_map(places, np.arange(60), "client").get_legend().get_texts()
    assert [text.get_text() for text in many] == ["54 others", "0", "1", "2", "3", "4", "5"]


def test_densities_are_of_shares_and_of_rounds_with_something_to_see() -> None:
    rng = np.random.default_rng(0)
    rounds = [
        pd.DataFrame({"round": t, "client": range(40), "tau": np.ones(40) if t == 1 else rng.gamma(9.0, 2.0 * t, 40)})
        for t in range(1, 12)
    ]
    history = pd.concat(rounds)
    ax = densities(history, "tau")
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["round 2", "round 5", "round 8", "round 11"]
    for line in ax.get_lines():
        x, y = line.get_data()
        assert 0 < x.min() < 1 / 40 < x.max() < 0.2  # shares of 40 clients
        assert abs(np.trapezoid(y, np.log10(x)) - 1) < 0.05
    with pytest.raises(UserError, match="the same for all clients"):
        densities(rounds[0], "tau")
    with pytest.raises(UserError, match="of too few"):
        densities(rounds[1].head(5), "tau")


def test_who_reported_is_drawn_as_it_was() -> None:
    reports = pd.DataFrame([[1, 0, 2], [1, 3, 0]], columns=["a", "b", "c"], index=pd.Index([4, 5], name="round"))
    ax = who_reported(reports)
    (image,) = ax.get_images()
    assert np.array_equal(image.get_array(), reports.to_numpy().T)
    assert list(image.get_extent()) == [3.5, 5.5, 2.5, -0.5]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a", "b", "c"]
    assert "33%" in ax.get_title()
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == ["absent", "reported", "message rejected", "diverged while absent"]


def test_shrinkage_shows_three_estimates() -> None:
    frame = pd.DataFrame(
        {
            "client": list("abc"), "n": [3, 30, 1], "effect": "x", "local": [4.0, 1.0, np.nan], "pooled": 2.0,
            "population": 1.9, "hierarchical": [2.5, 1.1, 2.0],
        }
    )  # fmt: skip
    ax = shrinkage(frame, "x")
    assert [label.get_text() for label in ax.get_yticklabels()] == ["b (30)", "a (3)", "c (1)"]
    assert [line.get_xdata()[0] for line in ax.get_lines()] == [1.9, 2.0]
    alone, ours = (np.asarray(c.get_offsets()) for c in ax.collections[1:])
    assert ours[:, 0].tolist() == [1.1, 2.5, 2.0]
    assert np.ma.masked_invalid(alone[:, 0]).compressed().tolist() == [1.0, 4.0]
    assert "1 client has none alone" in ax.get_xlabel()
    many = pd.DataFrame({"client": [f"c{k}" for k in range(9)], "n": 5, "effect": "x", "local": np.arange(9.0),
                         "pooled": 4.0, "population": 4.0, "hierarchical": 4.0 + 1e-5 * np.arange(9)})  # fmt: skip
    ax = shrinkage(many, "x")  # shrunk to one point: what they come from is still to be seen
    assert ax.get_xlim()[0] < 0 < 8 < ax.get_xlim()[1]
    many.loc[0, "local"] = 1e6
    ax = shrinkage(many, "x")
    assert "1 beyond" in ax.get_xlabel()
    assert 8 < ax.get_xlim()[1] < 30


def test_three_ways_confidence_and_cost() -> None:
    frames = [
        pd.DataFrame({"n": [5, 50], "accuracy": values}, index=["s", "l"])
        for values in ([0.8, 0.9], [0.5, 0.9], [0.7, 0.6])
    ]
    ax = three_ways(*frames, "accuracy", "accuracy")
    assert [label.get_text() for label in ax.get_yticklabels()] == ["l (50)", "s (5)"]
    alone, pooled, ours = (np.asarray(c.get_offsets())[:, 0].tolist() for c in ax.collections[1:])
    assert (alone, pooled, ours) == ([0.9, 0.5], [0.6, 0.7], [0.9, 0.8])
    frame = clients([5, 40, 230]).assign(deviation=[0.1, 0.2, 5.0])
    ax = confidence_by_deviation(frame)
    assert np.allclose(ax.collections[0].get_offsets(), frame[["tau", "deviation"]])
    assert ax.get_yscale() == "log"
    ax = three_ways(*frames, "accuracy", "accuracy", "fedper")
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["client alone", "one for all", "fedper"]
    ax = metric_over_bytes(metrics().assign(bytes=[k * 1e6 for k in range(6)]))
    assert ax.get_lines()[0].get_xdata().tolist() == [1, 3, 5]


def test_percent_has_the_decimals_of_its_ticks() -> None:
    """Ticks a quarter of a percent apart were -0.2% and 0.3%."""
    ax = axis_for(None)
    ax.set_xticks([-0.0025, 0, 0.0025, 0.005])
    label_percent(ax.xaxis, 1)
    labels = [label.get_text() for label in ax.get_xticklabels()]
    assert labels == ["\u22120.25%", "0.00%", "0.25%", "0.50%"]


def test_the_worst_calibrated_client_has_enough_to_be_judged_by() -> None:
    bins = np.zeros((3, 15, 3))
    bins[0, 14] = [19, 19, 0]  # the worst, of too few
    bins[1, 14] = [20, 20, 15]
    bins[2, 14] = [50, 50, 45]
    assert worst_calibrated(bins) == 1
    assert worst_calibrated(bins[:1]) is None
    ax = client_reliability(np.concatenate([bins] * 3), names=[f"c{k}" for k in range(9)])
    assert "worst: client c1, its ECE 0.25" in [text.get_text() for text in ax.get_legend().get_texts()]


def test_of_thousands_of_clients_a_picture_shows_the_spread() -> None:
    rng = np.random.default_rng(0)
    bins = np.zeros((3000, 15, 3))
    bins[:, 10, 0], bins[:, 10, 1] = 10, 7.0
    bins[:, 10, 2] = rng.binomial(10, 0.7, 3000)
    bins[:, 12, 0], bins[:, 12, 1] = 4, 3.3  # too few to say anything of a client
    bins[:, 14, 0], bins[:, 14, 1] = 20, 19.6
    bins[:, 14, 2] = rng.binomial(20, 0.9, 3000)
    ax = client_reliability(bins)
    assert len(ax.get_lines()) < 7
    (band,) = ax.collections
    corners = band.get_paths()[0].vertices
    for x, right, n in ((0.7, bins[:, 10, 2], 10), (0.98, bins[:, 14, 2], 20)):
        y = corners[np.isclose(corners[:, 0], x), 1]
        assert (y.min(), y.max()) == pytest.approx(tuple(np.quantile(right / n, [0.1, 0.9])))
    clients = pd.DataFrame({"n": rng.integers(2, 50, 3000), "pm_accuracy": rng.random(3000)})
    (points,) = metric_by_size(clients.rename(columns={"pm_accuracy": "accuracy"})).collections
    assert len(points.get_offsets()) == 3000
    assert points.get_alpha() < 0.1
    effects = pd.DataFrame({"client": range(3000), "b[x]": rng.normal(size=3000), "sd b[x]": 0.5})
    ax = caterpillar(effects, "x")
    assert len(ax.collections) == 1  # a band, and no line for each
    mean, _ = ax.get_lines()[0].get_data()
    assert len(mean) == 200
    assert np.all(np.diff(mean) < 0)  # the largest on top


def test_random_effects_in_order_and_beside_a_normals() -> None:
    """The band is the population's; on a straight line where effects are normal quantiles themselves."""
    at = ndtri((np.arange(40) + 0.5) / 40)
    frame = pd.DataFrame({"client": [f"c{j}" for j in range(40)], "b[x]": 0.3 + 0.5 * at, "sd b[x]": 0.2})
    ax = caterpillar(frame, "x", sd=0.5)
    (label,) = ax.get_legend_handles_labels()[1]
    assert label == "population, 90 %"
    assert ax.patches[0].get_x() == pytest.approx(-0.8225)
    assert caterpillar(frame, "x").get_legend() is None
    wider = caterpillar(frame, "x", sd=0.01, upper=0.5)  # which clients' intervals know of
    assert [patch.get_x() for patch in wider.patches] == pytest.approx([-0.01645, -0.8225], rel=1e-3)
    ax = normal_quantiles(frame, "x")
    (line,) = ax.get_lines()
    assert line.get_slope() == pytest.approx(0.5, rel=0.02)
    assert line.get_xy1() == pytest.approx((0, 0.3), abs=1e-9)
