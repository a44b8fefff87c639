"""What all figures share: colours, axes, labels.

Two entities keep their colours everywhere: the personal models blue, the global model orange. Text is never coloured.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from .legible import new_figure

if TYPE_CHECKING:
    import pandas as pd


PERSONAL, GLOBAL, INK, QUIET = "#2a78d6", "#c2570c", "#1f2328", "#8c959f"
COLOURS = [PERSONAL, GLOBAL, "#4b8a2f", "#8a5fbf", "#b8336a", "#1b8a8f"]  # of methods, and of few clients
#: of lines that are alike in colour
DASHES = ("-", "--", ":", "-.")
#: so many clients have their names in a picture
MAX_NAMED_CLIENTS = 30
#: so many clients are a point or a line each; of more a picture shows how they are spread
MAX_SINGLE_CLIENTS = 1000
STYLE = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": INK,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e8eb",
    "grid.linewidth": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "figure.dpi": 110,
    "savefig.dpi": 150,
}


@contextmanager
def styled() -> Iterator[Any]:
    import matplotlib as mpl

    mpl.use("Agg", force=False)
    import matplotlib.pyplot as plt

    with mpl.rc_context(STYLE):
        yield plt


def axis_for(ax: Any) -> Any:
    if ax is not None:
        return ax
    with styled() as plt:
        return new_figure(plt)[1]


def line_of(k: int) -> dict[str, str]:
    """Colour and dashes of the k-th line from 0: there are as many dashes as colours run out."""
    return {"color": COLOURS[k % len(COLOURS)], "ls": DASHES[k // len(COLOURS) % len(DASHES)]}


def client_points(ax: Any, x: Any, y: Any, area: Any = 26, alpha: float = 0.75) -> None:
    """A point for each client; many are small and faint, so that what is darker is denser."""
    if len(x) <= MAX_SINGLE_CLIENTS:
        ax.scatter(x, y, s=area, color=PERSONAL, alpha=alpha, edgecolor="white", linewidth=0.6)
    else:
        ax.scatter(x, y, s=5, color=PERSONAL, alpha=max(0.02, 0.2 * MAX_SINGLE_CLIENTS / len(x)), linewidth=0)


def main_metric(frame: pd.DataFrame) -> tuple[str, str]:
    """The metric that a task is judged by, and its label."""
    return ("accuracy", "test accuracy") if "pm_accuracy" in frame or "accuracy" in frame else ("rmse", "test RMSE")


def percent_axis(ax: Any, metric: str, axis: str = "y") -> None:
    if metric == "accuracy":
        low, high = getattr(ax, f"get_{axis}lim")()
        if low < 1 < high:  # no share is more than all: room for a point is left
            high = min(high, 1 + 0.03 * (1 - low))
            getattr(ax, f"set_{axis}lim")(low, high)
        label_percent(getattr(ax, f"{axis}axis"), 0 if high - low > 0.3 else 1)


def label_percent(axis: Any, least: int) -> None:
    """Labels an axis of shares in percent, with as many decimals as its ticks need: -0.25% is not -0.2%.

    Args:
        axis: of a figure's axes, such as ``ax.xaxis``.
        least: decimals at least.
    """

    def words(share: float, _: int | None = None) -> str:
        ticks = np.unique(axis.get_majorticklocs())
        step = 100 * float(np.diff(ticks).min()) if len(ticks) > 1 else 0.0
        decimals = next((d for d in range(least, 6) if abs(round(step, d) - step) < 1e-6 * step), least)
        return f"{round(100 * share, decimals) + 0.0:.{decimals}f}%".replace("-", "\u2212")

    axis.set_major_formatter(words)


def log_axis(ax: Any) -> None:
    """A logarithmic axis across with as many labels as can be read."""
    from matplotlib.ticker import LogFormatterSciNotation, LogLocator, NullFormatter

    ax.set_xscale("log")
    low, high = ax.get_xlim()
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 30 * low else (1,), numticks=7))
    if high < 30 * low:
        ax.xaxis.set_major_formatter("{x:g}")
    else:
        ax.xaxis.set_major_formatter(LogFormatterSciNotation())
    ax.xaxis.set_minor_formatter(NullFormatter())


def size_axis(ax: Any, n: Any) -> None:
    """The axis of client sizes: logarithmic with plain numbers, linear where they hardly differ."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter

    ax.set_xlabel("training examples of the client")
    if n.max() > 3 * n.min():
        ax.set_xscale("log")
        ax.xaxis.set_major_locator(LogLocator(subs=(1, 3) if n.max() < 300 * n.min() else (1,)))
        ax.xaxis.set_minor_formatter(NullFormatter())
    else:
        ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    ax.xaxis.set_major_formatter(StrMethodFormatter("{x:.0f}"))
