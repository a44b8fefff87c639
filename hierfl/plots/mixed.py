"""Mixed effects: shrinkage and random effects."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from ..plurals import counted
from .legible import TITLE_LETTERS, legend_below, name_rows, title
from .registry import Drawing, figure, slug
from .style import GLOBAL, INK, MAX_NAMED_CLIENTS, MAX_SINGLE_CLIENTS, PERSONAL, QUIET, axis_for, client_points
from .tables import RunTables

if TYPE_CHECKING:
    import pandas as pd


#: standard deviations to each side of a normal's central 90 %
CENTRAL = 1.645


def _shrunk(run: RunTables) -> Iterator[Drawing]:
    for name in () if run.estimates is None else dict.fromkeys(run.estimates["effect"]):
        yield f"shrinkage-{slug(name)}", {"estimates": run.estimates, "effect": name}


@figure(
    "shrinkage", "Population and clients",
    "A client's coefficient by its own data alone, and by the hierarchical model. The model shrinks it towards the "
    "population's, and more so for clients with few rows. The pooled coefficient is that of all data, as if clients "
    "did not differ.",
    position=3, source="run", needs=_shrunk, order=12,
)  # fmt: skip
def shrinkage(estimates: pd.DataFrame, effect: str, ax: Any = None, most: int = MAX_NAMED_CLIENTS) -> Any:
    """Each client's own estimate, the hierarchical model's, shrunk to the population's, and the pooled one; the axis.

    Args:
        estimates: columns client, n, effect, local, population, pooled, hierarchical.
        effect: which.
        ax: where to draw.
        most: clients, evenly from the largest to the smallest.
    """
    ax, mine = axis_for(ax), estimates[estimates["effect"] == effect].sort_values("n", ascending=False, kind="stable")
    mine = mine.iloc[np.unique(np.linspace(0, len(mine) - 1, min(most, len(mine))).round().astype(int))]
    rows, local, ours = np.arange(len(mine)), mine["local"].to_numpy(), mine["hierarchical"].to_numpy()
    ax.axvline(mine["population"].iloc[0], color=GLOBAL, lw=1.2, ls="--", label="population")
    ax.axvline(mine["pooled"].iloc[0], color=INK, lw=0.8, ls=":", label="pooled")
    ax.hlines(rows, local, ours, color=QUIET, lw=1)
    ax.scatter(local, rows, s=22, facecolor="white", edgecolor=PERSONAL, linewidth=1, zorder=3, label="client alone")
    ax.scatter(ours, rows, s=20, color=PERSONAL, zorder=4, label="hierarchical")
    name_rows(ax, list(mine["client"]), [f" ({n})" for n in mine["n"]])
    # The own estimates of a few small clients may be so far out that nothing else could be seen.
    finite = local[np.isfinite(local)]
    first, third = np.quantile(finite, [0.25, 0.75]) if len(finite) else (ours.min(), ours.max())
    centre = np.concatenate([ours, mine["population"].iloc[:1], mine["pooled"].iloc[:1]])
    low, high = min(centre.min(), first - 2 * (third - first)), max(centre.max(), third + 2 * (third - first))
    out = int(((finite < low) | (finite > high)).sum())
    if out:
        ax.set_xlim(low - 0.05 * (high - low), high + 0.05 * (high - low))
    none = int(np.isnan(local).sum())
    left_out = [f"{none} client{'s have' if none > 1 else ' has'} none alone"] * bool(none)
    left_out += [f"{out} beyond"] * bool(out)
    ax.set_xlabel(fill(", ".join([f"coefficient of {effect}", *left_out]), TITLE_LETTERS))
    title(ax, f"Shrinkage: {effect} (rows of a client)")
    legend_below(ax)
    return ax


def _random(run: RunTables) -> list[str]:
    """Names of the random effects."""
    return [c[2:-1] for c in run.clients if c.startswith("b[")]


def _effects(run: RunTables) -> Iterator[Drawing]:
    table = {} if run.effects is None else run.effects.set_index("effect").to_dict()
    for name in _random(run) if run.several else ():
        sd, upper = (table.get(column, {}).get(f"sd({name})") for column in ("estimate", "upper"))
        yield f"effects-{slug(name)}", {"clients": run.clients, "effect": name, "sd": sd, "upper": upper}


@figure(
    "effects", "Population and clients",
    "The difference of every client from the fixed effect. The band contains nine of ten clients of the population. "
    "The pale band does so at the upper limit of the standard deviation. Posterior means of clients with little data "
    "are nearer to zero.",
    position=2, source="run", needs=_effects, order=11,
)  # fmt: skip
def caterpillar(
    clients: pd.DataFrame, effect: str, ax: Any = None, sd: float | None = None, upper: float | None = None
) -> Any:
    """A random effect of every client, in order: posterior mean and central 90 % (of many, of two hundred groups).

    Args:
        clients: columns client, b[effect] and sd b[effect].
        effect: which.
        ax: where to draw.
        sd: of the population; None for no band.
        upper: its upper limit, which clients' intervals know of; None for no pale band.
    """
    from matplotlib.ticker import MaxNLocator

    ax = axis_for(ax)
    order = clients.dropna(subset=[f"b[{effect}]"]).sort_values(f"b[{effect}]", ascending=False)
    mean, half = order[f"b[{effect}]"], CENTRAL * order[f"sd b[{effect}]"]
    rows = np.arange(len(order))
    if len(order) > MAX_SINGLE_CLIENTS:
        # Neighbours' intervals together: a picture has fewer lines than there are clients.
        parts = [[v.mean() for v in np.array_split(np.asarray(values), 200)] for values in (rows, mean, half)]
        rows, mean, half = map(np.array, parts)
        ax.fill_betweenx(rows, mean - half, mean + half, color=PERSONAL, alpha=0.3, linewidth=0)
        ax.plot(mean, rows, color=PERSONAL, lw=1.6)
    else:
        few = len(order) <= MAX_NAMED_CLIENTS  # of many, lines as wide as there is room, and points of that size
        ax.hlines(
            rows, mean - half, mean + half, color=PERSONAL, lw=2 if few else min(1.2, 100 / len(order)), alpha=0.6
        )
        ax.scatter(mean, rows, s=22 if few else max(0.5, 300 / len(order)), color=PERSONAL, zorder=3, linewidth=0)
    ax.axvline(0, color=QUIET, lw=1, ls="--")
    if sd is not None and np.isfinite(sd):
        ax.axvspan(-CENTRAL * sd, CENTRAL * sd, color=GLOBAL, alpha=0.15, linewidth=0, label="population, 90 %")
        if upper is not None and np.isfinite(upper) and upper > sd:
            ends = {"color": GLOBAL, "alpha": 0.06, "linewidth": 0}
            ax.axvspan(-CENTRAL * upper, CENTRAL * upper, label="at its sd's upper limit", **ends)
    if len(order) <= MAX_NAMED_CLIENTS:
        name_rows(ax, list(order["client"]))
    else:
        ax.set_yticks([])
        ax.set(ylabel=f"{len(order):,} clients, in order", ylim=(len(order), -1))
    ax.grid(visible=False, axis="y")
    ax.xaxis.set_major_locator(MaxNLocator(5))
    without = len(clients) - len(order)
    ax.set_xlabel(
        "deviation from the fixed effect, central 90 %" + f"\nnone of {counted(without, 'client')}" * bool(without)
    )
    title(ax, f"Random effect: {effect}")
    legend_below(ax)
    return ax


def _quantiles(run: RunTables) -> Iterator[Drawing]:
    for name in _random(run) if len(run.clients) > 3 else ():
        yield f"quantiles-{slug(name)}", {"clients": run.clients, "effect": name}


@figure(
    "quantiles", "Population and clients",
    "If the clients' effects are normal, they lie on a line. Ends that bend away are clients further out, or nearer, "
    "than in a normal distribution. Effects of small clients are shrunk to zero, and hide a deviation.",
    position=4, source="run", needs=_quantiles, order=13,
)  # fmt: skip
def normal_quantiles(clients: pd.DataFrame, effect: str, ax: Any = None) -> Any:
    """Posterior means and central 90 % of a random effect beside a normal's quantiles; the line is through quartiles.

    Args:
        clients: columns b[effect] and sd b[effect].
        effect: which.
        ax: where to draw.
    """
    from scipy.special import ndtri

    ax, order = axis_for(ax), clients.dropna(subset=[f"b[{effect}]"]).sort_values(f"b[{effect}]")
    mean, half = order[f"b[{effect}]"].to_numpy(), CENTRAL * order[f"sd b[{effect}]"].to_numpy()
    at = ndtri((np.arange(len(order)) + 0.5) / len(order))
    first, third = np.quantile(mean, [0.25, 0.75])
    slope = (third - first) / np.ptp(np.quantile(at, [0.25, 0.75]))
    ax.axline((0, (first + third) / 2), slope=slope, color=QUIET, lw=1, ls="--")
    if len(order) <= MAX_SINGLE_CLIENTS:
        ax.vlines(at, mean - half, mean + half, color=PERSONAL, lw=min(1, 100 / len(order)), alpha=0.4)
    client_points(ax, at, mean, min(14, 2000 / len(order)))
    ax.set(xlabel="standard normal quantile", ylabel="posterior mean, central 90 %")
    title(ax, f"Q-Q: {effect}")
    return ax
