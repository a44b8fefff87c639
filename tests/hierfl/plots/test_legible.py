"""Names can be read, titles and legends are inside the figure, and a legend hides nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest

from hierfl.plots.calibration import client_reliability, compact, mean_error, reliability
from hierfl.plots.clients import metric_by_client
from hierfl.plots.gains import three_ways
from hierfl.plots.legible import legend_of_panels, short_names, title
from hierfl.plots.mixed import caterpillar, shrinkage
from hierfl.plots.predictive import shares
from hierfl.plots.style import line_of
from hierfl.plots.training import bound_over_rounds, who_reported

NAMES = [f"University Hospital of the Northern {k:04d}" for k in range(30)]
rng = np.random.default_rng(0)
CLIENTS = pd.DataFrame({"client": NAMES, "n": np.arange(30) + 5, "accuracy": rng.random(30),
                        "b[x]": rng.normal(size=30), "sd b[x]": 0.2})  # fmt: skip
ESTIMATES = pd.DataFrame({"client": NAMES, "n": 5, "effect": "x", "local": rng.normal(size=30), "population": 0.1,
                          "pooled": 0.2, "hierarchical": 0.5 * rng.normal(size=30)})  # fmt: skip
THREE = [CLIENTS.set_index("client").assign(accuracy=rng.random(30)) for _ in range(3)]
REPORTS = pd.DataFrame(rng.integers(0, 4, (6, 30)), columns=NAMES, index=pd.Index(range(1, 7), name="round"))
BINS = np.zeros((30, 15, 3))
BINS[:, 5:, 0] = rng.integers(0, 40, (30, 10))
BINS[..., 1], BINS[..., 2] = BINS[..., 0] * (np.arange(15) + 0.5) / 15, np.floor(BINS[..., 0] * 0.8)
TRACE = pd.DataFrame({"round": range(1, 7), "phase": ["rough"] * 2 + ["explore"] * 2 + ["fine"] * 2,
                      "bound": np.arange(6.0), "worth": 10.0})  # fmt: skip


@pytest.fixture(autouse=True)
def close_figures() -> Iterator[None]:
    import matplotlib as mpl

    mpl.use("Agg")
    yield
    import matplotlib.pyplot as plt

    plt.close("all")


@pytest.mark.parametrize(
    "draw",
    [
        lambda: metric_by_client(CLIENTS),
        lambda: caterpillar(CLIENTS, "x", sd=0.5, upper=0.7),
        lambda: shrinkage(ESTIMATES, "x"),
        lambda: three_ways(*THREE, "accuracy", "accuracy"),
        lambda: who_reported(REPORTS),
        lambda: reliability(BINS, averaged=BINS),
        lambda: client_reliability(BINS, names=NAMES),
        lambda: bound_over_rounds(TRACE),
    ],
)
def test_thirty_names_of_forty_letters_and_a_legend(draw: Callable[[], Any]) -> None:
    ax = draw()
    figure = ax.figure
    figure.draw_without_rendering()
    whole, legend = figure.bbox.padded(1), ax.get_legend().get_window_extent()
    assert not legend.overlaps(ax.get_window_extent())
    assert not legend.overlaps(ax.xaxis.label.get_window_extent())
    labels = [text for text in ax.get_yticklabels() if text.get_text() and ax.get_ylim()[1] < 0]
    boxes = [text.get_window_extent() for text in labels]
    for box in (legend, *boxes):
        assert whole.x0 <= box.x0 < box.x1 <= whole.x1
        assert whole.y0 <= box.y0 < box.y1 <= whole.y1
    assert not any(a.overlaps(b) for a, b in pairwise(boxes))
    assert ax.get_window_extent().width > 0.4 * figure.bbox.width
    if labels:
        assert len(labels) == 30
        assert all(name in " ".join(text.get_text() for text in labels) for name in NAMES)
        assert labels[0].get_fontsize() >= 7


def test_a_figure_of_the_callers_keeps_its_size() -> None:
    import matplotlib.pyplot as plt

    figure, ax = plt.subplots(figsize=(3, 3))
    metric_by_client(CLIENTS, ax)
    assert figure.get_size_inches().tolist() == [3, 3]


@pytest.mark.parametrize("panels", [1, 2])
def test_a_legend_of_panels_is_inside_the_figure(panels: int) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, panels, figsize=(4.4 * panels, 3.4), layout="constrained", squeeze=False)
    lines = [axes[0, 0].plot([0, 1], [k, k], label=name, **line_of(k))[0] for k, name in enumerate(NAMES[:8])]
    legend_of_panels(figure, lines, NAMES[:8])
    figure.canvas.draw()
    box = figure.legends[0].get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 8


def test_longer_names_lack_their_middle_and_stay_apart() -> None:
    assert short_names(["a", "b" * 40]) == ["a", "b" * 40]
    assert short_names(["a" * 30 + "b" * 30]) == ["a" * 20 + "…" + "b" * 19]
    assert short_names(["a" * 25 + x + "c" * 25 for x in "xy"]) == [f"{'a' * 20}…{'c' * 19} #{k}" for k in (1, 2)]


def test_counts_of_bins_have_four_letters() -> None:
    assert [compact(n) for n in (7, 999, 1000, 9949, 9950, 123456, 999_600, 2_500_000)] == [
        "7", "999", "1.0k", "9.9k", "10k", "123k", "1.0M", "2.5M"
    ]  # fmt: skip
    two = np.array([[[10, 9.0, 5], [0, 0, 0]], [[5, 4.0, 4], [5, 3.0, 4]]])
    assert mean_error(two) == pytest.approx((4 / 10 + 1 / 10) / 2)


def test_whole_numbers_have_bars_that_hold_all_rows() -> None:
    y, new = np.array([0.0, 1, 1, 3]), np.array([[0.0, 0, 1, 4], [1, 1, 1, 1]])
    names, of_data, of_draws = shares(y, new)
    assert names == ["0", "1", "2", "3", "4"]
    assert of_data.tolist() == [0.25, 0.5, 0, 0.25, 0]
    assert of_draws.tolist() == [[0.5, 0.25, 0, 0, 0.25], [0, 1, 0, 0, 0]]
    many = np.append(np.arange(400.0), 10_000.0)
    names, of_data, _ = shares(many, many[None])
    assert len(names) <= 41
    assert names[-1].startswith("≥")
    assert of_data.sum() == pytest.approx(1)
    names, of_data, _ = shares(np.full(3, 2.0), np.full((2, 3), 2.0))
    assert (names, of_data.tolist()) == (["2"], [1.0])


def test_a_title_keeps_a_number_and_its_percent_sign_together() -> None:
    import matplotlib.pyplot as plt

    axis = plt.subplots()[1]
    title(axis, "w_j[yes: feature 14]: population and clients, 90 % HDI")
    assert axis.get_title().split("\n") == [
        "w_j[yes: feature 14]: population and clients,",
        "90\N{NO-BREAK SPACE}% HDI",
    ]
