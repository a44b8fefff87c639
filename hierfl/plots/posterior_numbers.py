"""Which of a posterior's many numbers is shown."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np

from ..arviz_data import dataset, group_names, import_arviz
from ..arviz_io import draws_of, of_clients
from ..convergence import MAX_DIAGNOSED_NUMBERS
from ..errors import UserError

#: a personal variable's name, and where in it a number is: {dimension: label}
Which = tuple[str, Mapping[str, Any]]


@contextmanager
def quietly() -> Iterator[Any]:
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
    of_all_clients = of_clients(data)
    if not of_all_clients.data_vars:
        raise UserError("these data hold no draws of a client's latents")
    return of_all_clients


def number_of(data: Any, which: Which, client: bool) -> Any:
    """The draws of one number, of one client or of all of them: (chain, draw) or (chain, draw, client).

    Raises:
        UserError: where that is no number of these data.
    """
    posterior, (name, point) = _posterior(data), which
    if name not in posterior:
        raise UserError(f"there is no {name!r} among {', '.join(posterior.data_vars)}")
    wanted = [d for d in posterior[name].dims if d not in ("chain", "draw") and (client or d != "client")]
    if set(wanted) != set(point):
        raise UserError(f"a number of {name} is named by {', '.join(wanted) or 'nothing more'}; not {dict(point)}")
    for d, label in point.items():
        if label not in posterior[d].values.tolist():
            labels = ", ".join(map(str, posterior[d].values[:5]))
            raise UserError(f"{d} has no {label!r}; it has {labels}{', ...' * (posterior.sizes[d] > 5)}")
    return posterior[name].sel(point, drop=True)


def words(which: Which) -> str:
    """A number's name: of an only one the variable's."""
    name, point = which
    labels = [str(v) for k, v in point.items() if k != "client"]
    return f"{name}[{', '.join(labels)}]" if labels else name


def _argmax(values: Mapping[str, Any]) -> Which:
    """The place of the largest number of some arrays; NaN does not count."""
    best: tuple[float, Which] | None = None
    for name, array in values.items():
        flat = np.asarray(array.values, float).ravel()
        if not len(flat) or np.isnan(flat).all():
            continue
        k = int(np.nanargmax(flat))
        point = {d: array[d].values[i] for d, i in zip(array.dims, np.unravel_index(k, array.shape), strict=True)}
        if best is None or flat[k] > best[0]:
            best = float(flat[k]), (name, point)
    if best is None:
        raise UserError("of none of these numbers anything is known")
    return best[1]


def most_variable(data: Any) -> Which:
    """The number in which clients differ most: variance of the clients' means over their mean posterior variance."""
    posterior, draws = _posterior(data), ("chain", "draw")
    ratios = {}
    for name, values in posterior.data_vars.items():
        between, within = values.mean(draws).var("client"), values.var(draws).mean("client")
        ratios[name] = between / within.where(within > 0)
        if bool(ratios[name].isnull().all()):  # points, which have no spread
            ratios[name] = between
    name, point = _argmax(ratios)
    return name, dict(point)


def mixing(data: Any) -> tuple[Any, Any]:
    """R-hat and bulk ESS of every number of every client (of so many that it takes seconds), as ArviZ's Datasets.

    Raises:
        UserError: where there is one chain only, or draws of a guide.
    """
    posterior = _posterior(data)
    if posterior.sizes["chain"] < 2:
        raise UserError(
            "R-hat compares chains, and here is one: draws of a guide or point have none, a method that samples has "
            "more with chains=4 (--set chains=4)"
        )
    if posterior.sizes["draw"] < 4:
        raise UserError(f"R-hat needs at least 4 draws of each chain, and here are {posterior.sizes['draw']}")
    numbers = sum(v.size for v in posterior.data_vars.values()) / posterior.sizes["chain"] / posterior.sizes["draw"]
    some = posterior.isel(client=slice(None, None, max(1, round(numbers / MAX_DIAGNOSED_NUMBERS))))
    with quietly() as az:
        return az.rhat(some), az.ess(some)


def worst_mixed(data: Any) -> Which:
    """The number with the largest R-hat."""
    rhat, _ = mixing(data)
    name, point = _argmax(rhat.data_vars)
    return name, dict(point)


def clients_by_size(data: Any, most: int) -> list[str]:
    """So many clients' names, evenly from the largest to the smallest."""
    names, n = data.constant_data["client"].values, data.constant_data["n"].values
    order = np.argsort(-n, kind="stable")
    return [
        names[k] for k in order[np.unique(np.linspace(0, len(order) - 1, min(most, len(order))).round().astype(int))]
    ]


def words_with_client(which: Which) -> str:
    """A number's name and its client's."""
    client = which[1].get("client")
    return f"{words(which)}, client {client}" if client is not None else words(which)


class Posterior:
    """An InferenceData with what several figures ask of it, found once."""

    def __init__(self, data: Any) -> None:
        self.data = data

    @property
    def random(self) -> bool:
        """Whether there are draws of clients' latents, not points or draws of single examples' or shared values."""
        points = draws_of(self.data) in ("point", "examples", "shared")
        return "posterior" in group_names(self.data) and not points

    @property
    def several(self) -> bool:
        """Whether there are clients to compare."""
        return self.data.constant_data.sizes["client"] > 1

    @property
    def chains(self) -> bool:
        """Whether there are several chains of several draws, which may have mixed or not."""
        if draws_of(self.data) == "posterior":
            return False
        return self.random and self.data.posterior.sizes["chain"] > 1 and self.data.posterior.sizes["draw"] >= 4

    @property
    def predicted(self) -> bool:
        """Whether there is a posterior predictive to check."""
        groups = ("posterior_predictive", "observed_data")
        return set(groups) <= set(group_names(self.data)) and all("y" in dataset(self.data, group) for group in groups)

    @cached_property
    def most_variable(self) -> Which:
        """See :func:`most_variable`."""
        return most_variable(self.data)

    @cached_property
    def worst_mixed(self) -> Which:
        """See :func:`worst_mixed`."""
        return worst_mixed(self.data)
