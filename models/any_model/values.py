"""What a model's sites are at draws of its latents: values on their supports, log likelihoods, simulated data.

One client and one draw at a time, as in :mod:`.log_joint`; :func:`torch.func.vmap` runs them for all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from pyro import poutine
from pyro.distributions import Unit
from torch import Tensor
from torch.func import vmap

from hierfl.data.column_batch import ColumnBatch

from .densities import densities, log_prob
from .enumerating import is_enumerated, summed_out
from .evaluating import Clients
from .levels import CLIENT, DATA, GIVEN_MARK, Model, level_of
from .log_joint import Given, traced
from .parameters import clients_axis, is_personal
from .sites import Coordinates, Level

#: draws x clients x rows whose sites are in memory at once
CELLS = 500_000
#: message for a model whose rows have no log density of their own
NO_ROW = (
    "no row has a log likelihood of its own: pyro.factor gives none, and where a client's discrete latents are summed "
    "out its rows have one together"
)
#: values of sites by name
Values = dict[str, Tensor]


@dataclass(frozen=True)
class Seen:
    """A site as it was found, of one client and draw.

    Attributes:
        level: whose it is.
        value: without the dimensions of the plates "client" and "data" that have one entry, (*shape); a row's keeps
            its rows first, (n, *shape).
        log_prob: of an observed site, (n,) or (); None of others.
        observed: whether it is data: neither a latent nor deterministic.
    """

    level: Level
    value: Tensor
    log_prob: Tensor | None
    observed: bool


def seen_sites(model: Model, batch: ColumnBatch, given: Given) -> dict[str, Seen]:
    """All sites of a model in one run, by name; what :func:`pyro.factor` adds has no value and is left out.

    Discrete latents are summed out, and have no value; nor have deterministic sites that depend on them. Observed
    sites then have one log density together, under their names (:func:`_joined`).
    """
    trace = traced(model, batch, given)
    summed = [site for site in densities(trace) if is_enumerated(site)]
    sites_seen = {}
    for name, site in trace.nodes.items():
        if site["type"] == "param":
            sites_seen[name] = _parameter(site)
        if site["type"] != "sample" or poutine.util.site_is_subsample(site) or isinstance(site["fn"], Unit):
            continue
        level, derived = level_of(site), bool(site["infer"].get("_deterministic"))
        if is_enumerated(site) or (summed and derived and _depends(site["value"], given.depth)):
            continue
        observed = not (derived or site["infer"].get(GIVEN_MARK))
        density = _row_density(site, level) if observed and not summed else None
        sites_seen[name] = Seen(level, bare(site, level, given.depth, derived=derived), density, observed=observed)
    if summed and any(site_seen.observed for site_seen in sites_seen.values()):
        sites_seen |= _together(
            trace, {name: site_seen for name, site_seen in sites_seen.items() if site_seen.observed}, summed
        )
    return sites_seen


def _parameter(site: dict[str, Any]) -> Seen:
    if not is_personal(site):
        return Seen("global", site["value"], None, observed=False)
    axis = clients_axis(site)
    return Seen("client", site["value"].squeeze(axis + 1).squeeze(axis), None, observed=False)


def _depends(value: Tensor, depth: int) -> bool:
    """Whether a deterministic value depends on a discrete latent: those have dimensions left of the one client's."""
    return value.dim() > depth and value.shape[0] != 1


def _together(trace: Any, observed: dict[str, Seen], summed: Sequence[dict[str, Any]]) -> dict[str, Seen]:
    """The observed sites, of which one has the log density of all: by row where all discrete latents are rows'."""
    by_row = all(level_of(site) == "data" for site in summed) and all(
        site_seen.level == "data" for site_seen in observed.values()
    )
    levels: set[Level] = {"data"} if by_row else {"client", "data"}
    sites = [(site, log_prob(site)) for site in densities(trace) if level_of(site) in levels]
    keep = {DATA: next(iter(observed.values())).value.shape[0]} if by_row else None
    prior = [(site, height) for site, height in sites if site["name"] not in observed]
    total = summed_out(trace, sites, keep) - summed_out(trace, prior, keep)  # priors may depend on what is summed out
    density = total.reshape(-1, total.shape[-1]).sum(0) if by_row else total.sum()
    first, *_ = observed
    made = {_joined(list(observed)): replace(observed[first], level="data" if by_row else "client", log_prob=density)}
    return {**observed, **made}


def _joined(names: Sequence[str]) -> str:
    """A name for several sites: "a & b", and of more than three "a to z"."""
    return " & ".join(names) if len(names) <= 3 else f"{names[0]} to {names[-1]}"


def _row_density(site: dict[str, Any], level: Level) -> Tensor:
    """Log density of an observed site, (n,) of rows, else ()."""
    whole = log_prob(site)
    if level != "data":
        return whole.sum()
    return whole.reshape(-1, whole.shape[-1]).sum(0)


def bare(site: Mapping[str, Any], level: Level, depth: int, *, derived: bool) -> Tensor:
    """A site's value without the dimensions of our plates: those of rows stay, in front.

    Args:
        site, level: the site, and whose it is.
        depth: how many dimensions the plates take; those left of them are of sums over discrete latents.
        derived: whether it is deterministic.
    """
    value = site["value"]
    if derived:  # its event dimensions are mostly not declared: the plates' dimensions are the first with one entry
        if level == "global":
            return value
        if level == "data":
            return value.reshape(value.shape[1:]) if value.dim() > 1 and value.shape[0] == 1 else value
        for _ in range(2):
            first = next((k for k, size in enumerate(value.shape) if size == 1), None)
            value = value if first is None else value.squeeze(first)
        return value
    fn = site["fn"]
    shape = fn.shape()[-depth - len(fn.event_shape) :]
    value = value.expand(shape) if value.dim() < len(shape) else value
    batch = value.dim() - len(fn.event_shape)
    plates = {frame.dim for frame in site["cond_indep_stack"] if frame.name not in (CLIENT, DATA)}
    plates |= {-1} if level == "data" else set()
    kept = [k for k in range(batch) if k - batch in plates or value.shape[k] != 1]
    value = value.reshape([value.shape[k] for k in kept] + list(value.shape[batch:]))
    return value.movedim(len(kept) - 1, 0) if level == "data" else value


@dataclass(frozen=True)
class Draws:
    """Draws of a posterior: the globals, and the latents of S clients.

    Attributes:
        x: unconstrained globals, (D, p).
        v: unconstrained latents, (D, S, q).
    """

    x: Tensor
    v: Tensor


def at_draws(clients: Clients, draws: Draws, wanted: Callable[[Seen], Tensor | None]) -> Values:
    """Something of each site, at draws of the posterior.

    Args:
        clients: S of them, with their data.
        draws: of their latents.
        wanted: what of a site; a site for which it is None is left out.

    Returns:
        By site, (D, S, *shape).
    """
    model, sites = clients.model, clients.sites
    own, everyones = Coordinates(sites.clients), Coordinates(sites.globals)

    def for_client(x: Tensor, v: Tensor, columns: Tensor, mask: Tensor | None, centring: Tensor) -> Values:
        values, _ = everyones.constrained(everyones.split(x))
        weights = {name: c for name, c in own.split(centring).items() if name in sites.centred}
        transforms = {latent.name: latent.transform for latent in sites.clients}
        given = Given(values, own.split(v), transforms, weights, mask, sites.depth)
        sites_seen = seen_sites(model, clients.design.named(columns, mask), given)
        return {name: value for name, site in sites_seen.items() if (value := wanted(site)) is not None}

    rows = (None, 0, 0, None if clients.mask is None else 0, 0)
    both = vmap(vmap(for_client, rows), (0, 0, None, None, None))
    most = max(1, CELLS // max(1, clients.columns.shape[0] * clients.columns.shape[-1]))
    parts = [
        both(x, v, clients.columns, clients.mask, clients.centring)
        for x, v in zip(draws.x.split(most), draws.v.split(most), strict=True)
    ]
    return {name: torch.cat([part[name] for part in parts]).detach() for name in parts[0]}
