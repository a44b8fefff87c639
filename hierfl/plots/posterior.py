"""Pictures of an InferenceData, each drawing on one axis that it returns: ArviZ's own plots where they exist.

They take what ``run.posterior()`` gives or ``az.from_netcdf("posterior.nc")`` reads. Of a client's many numbers one is
shown, by default the one that the picture is about: :func:`telling` or :func:`worst_mixed`; another is asked for as
``which=("b", {"client": "s3", "b_dim_0": 1})``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..arviz_io import ASKED, import_arviz
from ..errors import UserError
from .style import COLOURS, GLOBAL, INK, NAMED, PERSONAL, QUIET, _axis

#: a personal variable's name, and where in it a number stands: {dimension: label}
Which = tuple[str, Mapping[str, Any]]
#: draws of the posterior predictive that a check shows
SHOWN = 50
PROBABILITY = 0.9


@contextmanager
def _quietly() -> Iterator[Any]:
    """ArviZ without warnings of its own use of other packages; NumPy's global generator is left as it was."""
    az, state = import_arviz(), np.random.get_state()  # noqa: NPY002
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield az
        finally:
            np.random.set_state(state)  # noqa: NPY002


def _posterior(data: Any) -> Any:
    """The posterior group.

    Raises:
        UserError: where there are no draws of a client's latents.
    """
    found = getattr(data, "posterior", None)
    if found is None or not found.data_vars:
        raise UserError("these data hold no draws of a client's latents")
    return found


def _number(data: Any, which: Which, client: bool) -> Any:
    """The draws of one number, of one client or of all of them: (chain, draw) or (chain, draw, client).

    Raises:
        UserError: where that is no number of these data.
    """
    posterior, (name, place) = _posterior(data), which
    if name not in posterior:
        raise UserError(f"there is no {name!r} among {', '.join(posterior.data_vars)}")
    wanted = [d for d in posterior[name].dims if d not in ("chain", "draw") and (client or d != "client")]
    if set(wanted) != set(place):
        raise UserError(f"a number of {name} is told by {', '.join(wanted) or 'nothing more'}; not {dict(place)}")
    for d, label in place.items():
        if label not in posterior[d].values.tolist():
            known = ", ".join(map(str, posterior[d].values[:5]))
            raise UserError(f"{d} has no {label!r}; it has {known}{', ...' * (posterior.sizes[d] > 5)}")
    return posterior[name].sel(place, drop=True)


def _words(which: Which) -> str:
    """A number's name: of an only one the variable's."""
    name, place = which
    told = [str(v) for k, v in place.items() if k != "client"]
    return f"{name}[{', '.join(told)}]" if told else name


def _argmax(values: Mapping[str, Any]) -> Which:
    """Where the largest of some arrays' numbers stands; NaN is none."""
    best: tuple[float, Which] | None = None
    for name, array in values.items():
        flat = np.asarray(array.values, float).ravel()
        if not len(flat) or np.isnan(flat).all():
            continue
        k = int(np.nanargmax(flat))
        place = {d: array[d].values[i] for d, i in zip(array.dims, np.unravel_index(k, array.shape), strict=True)}
        if best is None or flat[k] > best[0]:
            best = float(flat[k]), (name, place)
    if best is None:
        raise UserError("of none of these numbers anything is known")
    return best[1]


def telling(data: Any) -> Which:
    """The number in which clients differ most: variance of the clients' means over their mean posterior variance."""
    posterior, draws = _posterior(data), ("chain", "draw")
    found = {}
    for name, values in posterior.data_vars.items():
        between, within = values.mean(draws).var("client"), values.var(draws).mean("client")
        found[name] = between / within.where(within > 0)
        if bool(found[name].isnull().all()):  # (points, which have no spread)
            found[name] = between
    name, place = _argmax(found)
    return name, dict(place)


def mixing(data: Any) -> tuple[Any, Any]:
    """R-hat and bulk ESS of every number of every client (of so many that it takes seconds), as ArviZ's Datasets.

    Raises:
        UserError: where there is one chain only, or draws of a guide.
    """
    posterior = _posterior(data)
    if posterior.sizes["chain"] < 2:
        raise UserError(
            "R-hat compares chains, and here is one: draws of a guide or point have none, a method that samples has "
            "more with --set chains=4"
        )
    if posterior.sizes["draw"] < 4:
        raise UserError(f"R-hat needs at least 4 draws of each chain, and here are {posterior.sizes['draw']}")
    numbers = sum(v.size for v in posterior.data_vars.values()) / posterior.sizes["chain"] / posterior.sizes["draw"]
    some = posterior.isel(client=slice(None, None, max(1, round(numbers / ASKED))))
    with _quietly() as az:
        return az.rhat(some), az.ess(some)


def worst_mixed(data: Any) -> Which:
    """The number with the largest R-hat."""
    rhat, _ = mixing(data)
    name, place = _argmax(rhat.data_vars)
    return name, dict(place)


def _clients(data: Any, most: int) -> list[str]:
    """So many clients' names, evenly from the largest to the smallest."""
    names, n = data.constant_data["client"].values, data.constant_data["n"].values
    order = np.argsort(-n, kind="stable")
    return [
        names[k] for k in order[np.unique(np.linspace(0, len(order) - 1, min(most, len(order))).round().astype(int))]
    ]


def forest(data: Any, which: Which | None = None, clients: Sequence[str] = (), ax: Any = None) -> Any:
    """One number in the population and at some clients: central 90 % and halves (``az.plot_forest``); the axis.

    Args:
        data: an InferenceData.
        which: the number; by default :func:`telling`.
        clients: by name; by default eleven from the largest to the smallest.
        ax: where to draw.
    """
    import xarray

    ax, (name, place) = _axis(ax), which or telling(data)
    place = {k: v for k, v in place.items() if k != "client"}
    names = list(clients) or _clients(data, 11)
    sizes = dict(zip(data.posterior["client"].values, data.constant_data["n"].values, strict=True))
    values = _number(data, (name, place), client=False)
    if strange := [who for who in names if who not in sizes]:
        raise UserError(f"no client {strange[0]!r}")
    rows = {f"{who}  (n = {sizes[who]})": values.sel(client=who, drop=True) for who in names}
    prior = getattr(data, "prior", None)
    if prior is not None and name in prior:  # of a client that is picked at random (its prior's width may be its own)
        drawn = prior[name].sel(place).stack(sample=("chain", "draw")).transpose("sample", "client").values
        rows = {"population": drawn[np.arange(len(drawn)), np.arange(len(drawn)) % drawn.shape[1]], **rows}
    # (as many draws of the prior as of all chains together)
    table = xarray.Dataset({k: (("chain", "draw"), np.asarray(v).reshape(1, -1)) for k, v in rows.items()})
    with _quietly() as az:
        az.plot_forest(table, combined=True, hdi_prob=PROBABILITY, colors=PERSONAL, ax=ax, textsize=9,
                       linewidth=1.4, markersize=4)  # fmt: skip
    ax.axvline(0, color=QUIET, lw=0.8, ls="--", zorder=0)
    ax.set_title(f"{_words((name, place))}: population and clients, 90 % HDI")
    return ax


def trace(data: Any, which: Which | None = None, ax: Any = None) -> Any:
    """Density and path of every chain of one number (``az.plot_trace``), side by side; the axis of the paths.

    Args:
        data: an InferenceData.
        which: the number; by default the one that mixed worst.
        ax: gives its place to the two.
    """
    mixing(data)
    ax, (name, place) = _axis(ax), which or worst_mixed(data)
    _number(data, (name, place), client=True)
    grid = ax.get_subplotspec().subgridspec(1, 2)
    figure = ax.figure
    ax.remove()
    pair = np.array([[figure.add_subplot(grid[0, k]) for k in range(2)]])
    with _quietly() as az:
        az.plot_trace(data, var_names=[name], coords={k: [v] for k, v in place.items()}, axes=pair, compact=False,
                      chain_prop={"color": _colours(data)}, trace_kwargs={"linewidth": 0.5})  # fmt: skip
    for one, title in zip(pair[0], (f"{_of((name, place))}: density", "draws of every chain"), strict=True):
        one.set_title(title, fontsize=9)
        one.tick_params(labelsize=8)
    return pair[0, 1]


def rank(data: Any, which: Which | None = None, ax: Any = None) -> Any:
    """Ranks of every chain's draws among all (``az.plot_rank``): level where chains have mixed; the axis."""
    ax, which = _axis(ax), which or worst_mixed(data)
    _number(data, which, client=True)
    name, place = which
    with _quietly() as az:
        az.plot_rank(data, var_names=[name], coords={k: [v] for k, v in place.items()}, ax=ax, colors=_colours(data))
    ax.set_title(f"{_of(which)}: ranks by chain")
    ax.set_xlabel("rank among all chains' draws", fontsize=9)
    ax.set_ylabel("chain", fontsize=9)
    ax.tick_params(labelsize=8)
    return ax


def _colours(data: Any) -> list[str]:
    """Of the chains."""
    return [COLOURS[k % len(COLOURS)] for k in range(data.posterior.sizes["chain"])]


def ess_evolution(data: Any, which: Which | None = None, ax: Any = None) -> Any:
    """Effective draws of bulk and tail against draws (``az.plot_ess``): straight lines where chains are long enough."""
    ax, which = _axis(ax), which or worst_mixed(data)
    _number(data, which, client=True)
    name, place = which
    with _quietly() as az:
        az.plot_ess(data, var_names=[name], coords={k: [v] for k, v in place.items()}, kind="evolution", ax=ax,
                    textsize=9, n_points=max(2, min(20, data.posterior.sizes["draw"] // 5)))  # fmt: skip
    ax.set_title(f"{_of(which)}: effective draws")
    return ax


def _of(which: Which) -> str:
    """A number's name and its client's."""
    client = which[1].get("client")
    return f"{_words(which)}, client {client}" if client is not None else _words(which)


def rhat_and_ess(data: Any, ax: Any = None) -> Any:
    """Each client's worst R-hat against its least bulk ESS; the axis.

    Raises:
        UserError: where there is one chain only.
    """
    ax, (rhat, ess) = _axis(ax), mixing(data)
    worst = np.max([v.max([d for d in v.dims if d != "client"]).values for v in rhat.data_vars.values()], 0)
    least = np.min([v.min([d for d in v.dims if d != "client"]).values for v in ess.data_vars.values()], 0)
    ax.scatter(least, worst, s=26, color=PERSONAL, alpha=0.75, edgecolor="white", linewidth=0.6)
    ax.axhline(1.01, color=QUIET, lw=1, ls="--", label="1.01")
    if least.max() > 10 * least.min():
        ax.set_xscale("log")
    ax.set(xlabel="least bulk ESS of the client", ylabel="its worst R-hat", title="Have the chains mixed?")
    ax.legend(loc="best")
    return ax


def predictive_check(data: Any, ax: Any = None) -> Any:
    """All training data beside draws of the posterior predictive (``az.plot_ppc``); the axis."""
    ax = _axis(ax)
    draws = data.posterior_predictive.sizes["chain"] * data.posterior_predictive.sizes["draw"]
    values = []
    if np.array_equal(y := data.observed_data["y"].values, np.round(y)):  # (of whole numbers no density is smoothed)
        data, values = _whole(data), np.unique(y).astype(int).tolist()
    with _quietly() as az:
        az.plot_ppc(data, num_pp_samples=min(SHOWN, draws), random_seed=0, ax=ax, textsize=9,
                    colors=[PERSONAL, INK, GLOBAL])  # fmt: skip
    ax.set(xlabel="y", title="Posterior-predictive check, training data")
    ax.set_ylim(top=ax.get_ylim()[1] * 1.35)  # (room for the legend)
    if 0 < len(values) <= 20:  # (a bar begins at its number)
        ax.set_xticks([v + 0.5 for v in values], [str(v) for v in values])
    ax.legend(loc="upper right", fontsize=8)
    return ax


def _whole(data: Any) -> Any:
    """The responses as whole numbers."""
    data = data.copy()
    for group in ("observed_data", "posterior_predictive"):
        data[group]["y"] = data[group]["y"].round().astype(int)
    return data


def predictive_check_by_client(data: Any, ax: Any = None, most: int = NAMED) -> Any:
    """Of each client a mean of its data beside what its model's draws give, with their central 90 %; the axis.

    The mean is of the response; of labels, of being the one that the client has most of.

    Args:
        data: an InferenceData.
        ax: where to draw.
        most: clients, evenly from the largest to the smallest.
    """
    ax, names = _axis(ax), _clients(data, most)
    new = data.posterior_predictive["y"].stack(sample=("chain", "draw")).transpose("obs", "sample").values
    y, owner = data.observed_data["y"].values, data.observed_data["client"].values
    labels, outside = np.issubdtype(y.dtype, np.integer), 0
    for row, name in enumerate(names):
        mine = owner == name
        if not mine.any():
            continue
        own, drawn = y[mine], new[mine]
        if labels:
            common = np.bincount(own).argmax()
            own, drawn = own == common, drawn == common
        low, high = np.quantile(drawn.mean(0), [0.5 - PROBABILITY / 2, 0.5 + PROBABILITY / 2])
        outside += bool(own.mean() < low or own.mean() > high)
        ax.hlines(row, low, high, color=PERSONAL, lw=3, alpha=0.5, label="models' draws, 90 %" if not row else None)
        ax.plot(own.mean(), row, "o", color=INK, ms=4, label="data" if not row else None)
    ax.set_yticks(range(len(names)), names, fontsize=9 if len(names) <= 15 else 6)
    ax.set(ylim=(len(names) - 0.5, -0.5), xlabel="share of the commonest label" if labels else "mean of y")
    ax.set_title(f"Client by client: {outside} of {len(names)} outside")
    ax.grid(visible=False, axis="y")
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncol=2, fontsize=8)
    return ax


def panels(data: Any) -> dict[str, Callable[[Any], Any]]:
    """The pictures that an InferenceData allows, by name, each a function of an axis."""
    drawn: dict[str, Callable[[Any], Any]] = {}
    points = data.log_likelihood.attrs.get("draws_of") in ("point", "examples")  # (of clients' latents)
    random = "posterior" in data.groups() and not points
    if random:
        which = telling(data)
        drawn["forest"] = lambda ax: forest(data, which, ax=ax)
    if random and data.posterior.sizes["chain"] > 1 and data.posterior.sizes["draw"] >= 4:
        worst = worst_mixed(data)
        drawn["mixing"] = lambda ax: rhat_and_ess(data, ax)
        drawn["trace"] = lambda ax: trace(data, worst, ax)
        drawn["rank"] = lambda ax: rank(data, worst, ax)
        drawn["ess"] = lambda ax: ess_evolution(data, worst, ax)
    if {"posterior_predictive", "observed_data"} <= set(data.groups()):
        drawn["predictive-check"] = lambda ax: predictive_check(data, ax)
        drawn["predictive-check-clients"] = lambda ax: predictive_check_by_client(data, ax)
    return drawn
