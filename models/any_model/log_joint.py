"""The log joint density of one client, in unconstrained numbers, at given latents.

    h(x, v) = log p(y_j, u_j | z) + log |du_j / dv|,      z = T(x),   u_j by v and its centring       client_log_joint
    g(x)    = log p(z) + log |dz / dx|                                                                global_log_prior

One draw and one client at a time: :func:`torch.func.vmap` runs them for all, so that the text of a model needs no
dimensions but its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from pyro import poutine
from pyro.poutine.messenger import Messenger
from torch import Tensor

from hierfl.data.column_batch import ColumnBatch
from hierfl.errors import UserError

from .densities import densities, log_prob
from .enumerating import EnumerateDiscrete, is_discrete, is_enumerated, summed_out
from .levels import DATA, GIVEN_MARK, Model, level_of
from .parameters import run
from .running import running
from .sites import Coordinates, Sites, location_and_scale


class Given(Messenger):
    """Gives every latent site its value, and masks padded rows.

    A client's site of a location and a scale (see :func:`location_and_scale`) is given as
    u = loc + scale^(1 - c) (v - c loc): c = 1 is the model as it is written, c = 0 its non-centred form.

    Args:
        values: of global sites and parameters, on their supports.
        free: of clients' sites and parameters, unconstrained.
        transforms: from those to the sites' supports.
        centring: c of some of them.
        mask: of the rows, or None; it counts for what is observed, as latents of padded rows have their prior.
        depth: how many dimensions the plates take.
    """

    def __init__(
        self,
        values: Mapping[str, Tensor],
        free: Mapping[str, Tensor],
        transforms: Mapping[str, Any],
        centring: Mapping[str, Tensor],
        mask: Tensor | None,
        depth: int = 2,
    ) -> None:
        super().__init__()
        self.values, self.free, self.transforms, self.centring, self.mask = values, free, transforms, centring, mask
        self.depth = depth
        self.log_det: Tensor | float = 0.0
        #: location and scale of the sites that have a centring
        self.locations_and_scales: dict[str, tuple[Tensor, Tensor]] = {}

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        name, observed = msg["name"], msg["is_observed"] or msg["done"]
        if self.mask is not None and observed and any(frame.name == DATA for frame in msg["cond_indep_stack"]):
            msg["mask"] = self.mask if msg["mask"] is None else msg["mask"] & self.mask
        if observed or poutine.util.site_is_subsample(msg):
            return
        if is_discrete(msg["fn"]):
            # Its probabilities sum to 1 where rows are masked: a masked one would count its values.
            msg["infer"]["enumerate"], msg["mask"] = "parallel", None
        elif name in self.values:
            self._fits(msg, self.values[name])
            msg["value"], msg["is_observed"] = self.values[name], True
            msg["infer"][GIVEN_MARK] = True
        elif name in self.free:
            v, transform = self.free[name], self.transforms[name]
            self._fits(msg, v, transform)
            if name in self.centring:
                both = location_and_scale(msg["fn"])
                if both is None:
                    raise UserError(f"site {name!r} has another kind of distribution in some batches")
                self.locations_and_scales[name] = loc, scale = both
                c = self.centring[name]
                grown = (1 - c) * scale.log()
                v = loc + grown.exp() * (v - c * loc)
                self.log_det = self.log_det + grown.expand(v.shape).sum()
            value = transform(v)
            self.log_det = self.log_det + transform.log_abs_det_jacobian(v, value).sum()
            msg["value"], msg["is_observed"] = value, True
            msg["infer"][GIVEN_MARK] = True

    def _pyro_param(self, msg: dict[str, Any]) -> None:
        name = msg["name"]
        if name in self.values:
            value = self.values[name]
        elif name in self.free:
            value = self.transforms[name](self.free[name])
        else:
            raise UserError(f"pyro.param {name!r} is there in some batches only: its number may not depend on the data")
        msg["value"], msg["done"] = value, True

    def _fits(self, msg: dict[str, Any], given: Tensor, transform: Any = None) -> None:
        fn, name = msg["fn"], msg["name"]
        shape = fn.batch_shape[-self.depth :] + fn.event_shape
        shape = shape if transform is None else transform.inverse_shape(shape)
        if shape == given.shape:
            return
        both = f"site {name!r} has shape {tuple(shape)} here and {tuple(given.shape)} where the model was read"
        if transform is None:
            raise UserError(f"{both}: a latent of everyone may depend neither on the data nor on the number of clients")
        raise UserError(
            f"{both}: if it depends on batch.width, ColumnDesign.from_columns(..., rows=...) gives the most rows"
        )


class Complete(Given):
    """The same, for a run in which nothing is drawn: every continuous latent must be given."""

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        super()._pyro_sample(msg)
        if msg["is_observed"] or msg["done"] or poutine.util.site_is_subsample(msg) or is_discrete(msg["fn"]):
            return
        raise UserError(f"site {msg['name']!r} is a latent of some batches only: its number may not depend on the data")


def client_log_joint(model: Model, sites: Sites, x: Tensor, v: Tensor, batch: ColumnBatch, centring: Tensor) -> Tensor:
    """log p(y_j, u_j | z) + log |du_j / dv| of the one client of a batch, ().

    Args:
        model: as its user writes it.
        sites: of it.
        x: the globals, unconstrained, (p,).
        v: the client's latents, unconstrained, (q,).
        batch: one client.
        centring: c of each of the client's numbers, (q,); 1 where a site has none.
    """
    given = _given(sites, x, v, batch, centring)
    trace = traced(model, batch, given)
    own = [(site, log_prob(site)) for site in densities(trace) if level_of(site) != "global"]
    if any(is_enumerated(site) for site, _ in own):
        return summed_out(trace, own) + given.log_det
    return sum((density.sum() for _, density in own), x.new_zeros(()) + given.log_det)


def _given(sites: Sites, x: Tensor, v: Tensor, batch: ColumnBatch, centring: Tensor) -> Complete:
    globals_, clients = Coordinates(sites.globals), Coordinates(sites.clients)
    free = globals_.split(x)
    values = {latent.name: latent.transform(free[latent.name]) for latent in sites.globals}
    transforms = {latent.name: latent.transform for latent in sites.clients}
    weights = {name: c for name, c in clients.split(centring).items() if name in sites.centred}
    return Complete(values, clients.split(v), transforms, weights, batch.mask, sites.depth)


def locations_and_scales(
    model: Model, sites: Sites, x: Tensor, v: Tensor, batch: ColumnBatch, centring: Tensor
) -> Tensor:
    """Location and scale of each of a client's numbers given the globals, (2, q); 0 and 1 where a site has none."""
    given = _given(sites, x, v, batch, centring)
    traced(model, batch, given)
    parts = []
    for latent in sites.clients:
        loc, scale = given.locations_and_scales.get(latent.name, (x.new_zeros(()), x.new_ones(())))
        parts.append(torch.stack([loc.expand(latent.shape).flatten(), scale.expand(latent.shape).flatten()]))
    return torch.cat(parts, -1) if parts else x.new_zeros(2, 0)


def client_latents(model: Model, sites: Sites, x: Tensor, v: Tensor, batch: ColumnBatch, centring: Tensor) -> Tensor:
    """The client's latents on their supports, those of rows left out, as one vector, site after site."""
    trace = traced(model, batch, _given(sites, x, v, batch, centring))
    values = [trace.nodes[latent.name]["value"].flatten() for latent in sites.clients if latent.level == "client"]
    return torch.cat(values) if values else x.new_zeros(0)


def global_log_prior(model: Model, sites: Sites, x: Tensor, batch: ColumnBatch) -> Tensor:
    """log p(z) + log |dz / dx|, (); of the batch, one client, nothing is used."""
    globals_, clients = Coordinates(sites.globals), Coordinates(sites.clients)
    values, log_det = globals_.constrained(globals_.split(x))
    transforms = {latent.name: latent.transform for latent in sites.clients}
    given = Complete(values, clients.split(sites.client_start.to(x)), transforms, {}, batch.mask, sites.depth)
    height = x.new_zeros(()) + log_det
    for site in densities(traced(model, batch, given)):
        if level_of(site) == "global":
            height = height + log_prob(site).sum()
    return height


def traced(model: Model, batch: ColumnBatch, given: Given) -> Any:
    """The run of a model at given latents, its discrete ones enumerated."""
    with running(model), poutine.trace() as tracer, EnumerateDiscrete(first_available_dim=-1 - given.depth), given:
        run(model, batch)
    return tracer.trace
