"""Have the chains mixed? Traces, ranks, effective draws, R-hat."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .distributions import density_curve, rank_bars
from .legible import legend_below, title
from .posterior_numbers import Posterior, Which, mixing, number_of, quietly, words_with_client, worst_mixed
from .registry import Drawing, figure, once
from .style import COLOURS, PERSONAL, QUIET, axis_for, client_points


def _worst(posterior: Posterior, name: str) -> Iterator[Drawing]:
    if posterior.chains:
        yield name, {"data": posterior.data, "which": posterior.worst_mixed}


@figure(
    "trace", "Chains", "The parameter with the largest R-hat of all.",
    position=2, source="posterior", needs=lambda posterior: _worst(posterior, "trace"), order=3,
)  # fmt: skip
def trace(data: Any, which: Which | None = None, ax: Any = None) -> Any:
    """Density and path of every chain of one number, side by side; the axis of the paths.

    Args:
        data: an InferenceData.
        which: the number; by default the one that mixed worst.
        ax: replaced by the two.
    """
    mixing(data)
    ax, (name, coordinates) = axis_for(ax), which or worst_mixed(data)
    chains = number_of(data, (name, coordinates), client=True).transpose("chain", "draw").values
    grid = ax.get_subplotspec().subgridspec(1, 2)
    figure = ax.figure
    ax.remove()
    pair = np.array([[figure.add_subplot(grid[0, k]) for k in range(2)]])
    for chain, (draws, colour) in enumerate(zip(chains, _colours(data), strict=True)):
        pair[0, 0].plot(*density_curve(draws), color=colour, lw=1.2, label=f"chain {chain}")
        pair[0, 1].plot(draws, color=colour, lw=0.5, alpha=0.8)
    pair[0, 0].set(yticks=[], ylim=(0, None))
    for panel, label in zip(pair[0], ("value", "draw"), strict=True):
        panel.set_xlabel(label, fontsize=9)
        panel.tick_params(labelsize=8)
    title(pair[0, 0], f"{words_with_client((name, coordinates))}: density, draws")
    pair[0, 1].set_title("\n" * pair[0, 0].get_title().count("\n"))
    legend_below(pair[0, 0], letters=32)
    return pair[0, 1]


@figure(
    "rank", "Chains", "If the bars are level, the chains draw from the same distribution.",
    position=3, source="posterior", needs=lambda posterior: _worst(posterior, "rank"), order=4,
)  # fmt: skip
def rank(data: Any, which: Which | None = None, ax: Any = None) -> Any:
    """Ranks of every chain's draws among all (Vehtari et al., 2021): level where chains have mixed; the axis."""
    ax, which = axis_for(ax), which or worst_mixed(data)
    rank_bars(number_of(data, which, client=True).transpose("chain", "draw").values, _colours(data), ax)
    title(ax, f"{words_with_client(which)}: ranks by chain")
    ax.set_xlabel("rank among all chains' draws", fontsize=9)
    ax.set_ylabel("chain", fontsize=9)
    ax.tick_params(labelsize=8)
    return ax


def _colours(data: Any) -> list[str]:
    """The colours of the chains."""
    return [COLOURS[k % len(COLOURS)] for k in range(data.posterior.sizes["chain"])]


@figure(
    "ess", "Chains", "If the lines are straight, longer chains would give more effective draws.",
    position=4, source="posterior", needs=lambda posterior: _worst(posterior, "ess"), order=5,
)  # fmt: skip
def ess_evolution(data: Any, which: Which | None = None, ax: Any = None) -> Any:
    """Effective draws of bulk and tail against draws: straight lines where chains are long enough; the axis."""
    ax, which = axis_for(ax), which or worst_mixed(data)
    draws = number_of(data, which, client=True).transpose("chain", "draw")
    chains, length = draws.shape
    # From 1.0 on ArviZ has no default for the tail, which is of central 90 %.
    more = {"tail": {"prob": (0.05, 0.95)}}
    lengths = np.unique(np.linspace(max(4, length // 20), length, max(2, min(20, length // 5))).astype(int))
    with quietly() as az:
        for method, colour in (("bulk", PERSONAL), ("tail", COLOURS[1])):
            effective = [float(az.ess(draws.values[:, :n], method=method, **more.get(method, {}))) for n in lengths]
            ax.plot(lengths * chains, effective, "o-", color=colour, ms=3, lw=1.2, label=method)
    ax.axhline(100 * chains, color=QUIET, lw=1, ls="--", label=f"{100 * chains}: 100 of each chain")
    ax.set(xlabel="draws of all chains", ylabel="effective draws")
    title(ax, f"{words_with_client(which)}: effective draws")
    legend_below(ax)
    return ax


@figure(
    "mixing", "Chains",
    "Each client's parameter that mixed worst. Different weights of a network can have the same predictions: if R-hat "
    "is large, look at predictions before draws.",
    position=1, source="posterior", order=2,
    needs=lambda posterior: once(posterior.chains, "mixing", data=posterior.data),
)  # fmt: skip
def rhat_and_ess(data: Any, ax: Any = None) -> Any:
    """Each client's worst R-hat against its least bulk ESS; the axis.

    Raises:
        UserError: where there is one chain only.
    """
    ax, (rhat, ess) = axis_for(ax), mixing(data)
    worst = np.max([v.max([d for d in v.dims if d != "client"]).values for v in rhat.data_vars.values()], 0)
    least = np.min([v.min([d for d in v.dims if d != "client"]).values for v in ess.data_vars.values()], 0)
    client_points(ax, least, worst)
    ax.axhline(1.01, color=QUIET, lw=1, ls="--", label="R-hat 1.01: chains that have mixed are below")
    if least.max() > 10 * least.min():
        ax.set_xscale("log")
    ax.set(xlabel="least bulk ESS of the client", ylabel="its worst R-hat", title="Have the chains mixed?")
    legend_below(ax)
    return ax
