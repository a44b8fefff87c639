"""A model's log joint for all draws and clients of a plate at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from hierfl.data.column_batch import ColumnBatch
from hierfl.data.column_design import ColumnDesign

from .graphs.graphs import Graphs
from .log_joint import client_latents, client_log_joint, global_log_prior, locations_and_scales
from .marginals.transform import Marginals, unconstrained
from .sites import Coordinates, Model, Sites


@dataclass(frozen=True)
class Clients:
    """Rows of a plate: the data and the centring of S clients.

    Attributes:
        model, sites, design: what is computed, of which columns.
        columns: (S, columns, n); more rows of padding are added where latents of rows are more.
        mask: (S, n), or None.
        centring: of each number of the clients' latents, (S, q).
        graphs: of the model's log joint.
        at_once: of how many draws one is evaluated; 0 runs the model's text.
        marginals: from the globals x that are given to those of the model; None where they are the same.
    """

    model: Model
    sites: Sites
    design: ColumnDesign
    columns: Tensor
    mask: Tensor | None
    centring: Tensor
    graphs: Graphs | None = None
    at_once: int = 0
    marginals: Marginals | None = None
    _known: dict[bool, Any] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        # Latents of rows are as many as those of the longest client.
        columns, mask = self.design.lengthened(self.columns, self.mask, self.sites.rows)
        object.__setattr__(self, "columns", columns)
        object.__setattr__(self, "mask", mask)

    @property
    def has_centring(self) -> Tensor:
        """Which of the clients' numbers have a location and a scale, (q,)."""
        parts = [torch.full((latent.numel,), latent.name in self.sites.centred) for latent in self.sites.clients]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.bool)

    def _client_batch(self, columns: Tensor, mask: Tensor | None) -> ColumnBatch:
        return self.design.named(columns, mask)

    def _over_clients(self, function: Callable[..., Tensor], x: Tensor, v: Tensor) -> Tensor:
        """``function(x, v, batch, centring)`` of one draw and client, at draws (K, S, p) and (K, S, q)."""

        def for_client(x: Tensor, v: Tensor, columns: Tensor, mask: Tensor | None, centring: Tensor) -> Tensor:
            return function(x, v, self._client_batch(columns, mask), centring)

        rows = (0, 0, 0, None if self.mask is None else 0, 0)
        both = vmap(vmap(for_client, rows), (0, 0, None, None, None))
        return both(x, v, self.columns, self.mask, self.centring)

    def log_joint(self, x: Tensor, v: Tensor) -> Tensor:
        """h_j at draws x (K, S, p) and v (K, S, q): (K, S)."""
        return self.log_joint_at(unconstrained(self.marginals, x), v)

    def log_joint_at(self, x: Tensor, v: Tensor) -> Tensor:
        """The same at globals of the model, (K, S, p), whatever the marginals."""
        if self.graphs is None or not self.at_once:
            return self._as_written(x, v)
        number, part_size = len(x), self.at_once
        missing = -number % part_size
        if missing:  # the last part is filled up
            x, v = (torch.cat([values, values[-1:].expand(missing, -1, -1)]) for values in (x, v))
        parts = zip(x.split(part_size), v.split(part_size), strict=True)
        return torch.cat([self._by_graph(self.graphs, *part) for part in parts])[:number]

    def _as_written(self, x: Tensor, v: Tensor) -> Tensor:
        return self._over_clients(lambda x, v, batch, c: client_log_joint(self.model, self.sites, x, v, batch, c), x, v)

    def _by_graph(self, graphs: Graphs, x: Tensor, v: Tensor) -> Tensor:
        # What is recorded may depend on the order of numbers in memory.
        x, v, derivatives = x.contiguous(), v.contiguous(), x.requires_grad or v.requires_grad
        if derivatives not in self._known:
            mask = None if self.mask is None else self.mask.contiguous()
            fixed = (self.columns.contiguous(), mask, self.centring.contiguous())
            halves = graphs.for_function(self._traced, fixed, (x.detach(), v.detach()), derivatives)
            with torch.no_grad():
                self._known[derivatives] = None if halves is None else (halves.after, halves.before(*fixed))
        if self._known[derivatives] is None:
            return self._as_written(x, v)
        after, fixed_values = self._known[derivatives]
        with torch.set_grad_enabled(derivatives):
            log_joint: Tensor = after(x, v, *fixed_values)
        return log_joint

    def _traced(self, columns: Tensor, mask: Tensor | None, centring: Tensor, x: Tensor, v: Tensor) -> Tensor:
        clients = replace(self, columns=columns, mask=mask, centring=centring, graphs=None, marginals=None)
        return clients._as_written(x, v)

    def some(self, first: int, last: int) -> Clients:
        """Clients first..last-1 of these."""
        mask = None if self.mask is None else self.mask[first:last]
        marginals = None if self.marginals is None else self.marginals.some(first, last)
        centring = self.centring[first:last]
        return replace(self, columns=self.columns[first:last], mask=mask, centring=centring, marginals=marginals)

    def latents(self, x: Tensor, v: Tensor) -> Tensor:
        """The clients' latents on their supports, those of rows left out, at draws (K, S, p) and (K, S, q)."""
        return self._over_clients(lambda x, v, batch, c: client_latents(self.model, self.sites, x, v, batch, c), x, v)

    def locations_and_scales(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """The locations and scales of the clients' latents given x (S, p): (S, q) each; 0 and 1 where a site has
        none.
        """
        x = unconstrained(self.marginals, x)
        both = self._over_clients(
            lambda x, v, batch, c: locations_and_scales(self.model, self.sites, x, v, batch, c), x[None], v[None]
        )[0]
        return both[..., 0, :], both[..., 1, :]

    def recentred(self, x: Tensor, v: Tensor, new: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The same latents in the numbers of another centring, v' (S, q), with dv'/dx (S, q, p) and dv'/dv (S, q, q).

        v' = c' loc + scale^(c' - c) (v - c loc): location and scale may depend on x, and on the client's other latents.

        Args:
            x: (S, p).
            v: (S, q), in the numbers of :attr:`centring`.
            new: c', (S, q).
        """

        def for_client(x: Tensor, v: Tensor, columns: Tensor, mask: Tensor | None, c: Tensor, new: Tensor) -> Tensor:
            z = unconstrained(self.marginals, x)
            loc, scale = locations_and_scales(self.model, self.sites, z, v, self._client_batch(columns, mask), c)
            return new * loc + scale ** (new - c) * (v - c * loc)

        rows = (0, 0, 0, None if self.mask is None else 0, 0, 0)
        x, v = (values.detach().clone().requires_grad_() for values in (x, v))
        with torch.enable_grad():
            made = vmap(for_client, rows)(x, v, self.columns, self.mask, self.centring, new)
            slopes = [
                torch.autograd.grad(number.sum(), (x, v), retain_graph=True, materialize_grads=True)
                for number in made.unbind(-1)
            ]
        by_x, by_v = (torch.stack(values, -2) for values in zip(*slopes, strict=True))
        return made.detach(), by_x, by_v


def global_prior(model: Model, sites: Sites, design: ColumnDesign, x: Tensor) -> Tensor:
    """g at draws x (K, 1, p): (K, 1)."""
    template = design.template(x, max(1, sites.rows))
    return vmap(lambda numbers: global_log_prior(model, sites, numbers, template))(x[:, 0])[:, None]


def constrained(sites: Sites, x: Tensor) -> dict[str, Tensor]:
    """Globals on their supports from draws (..., p), {name: (..., *shape)}."""
    coordinates = Coordinates(sites.globals)
    if not sites.globals:
        return {}
    flat = x.reshape(-1, x.shape[-1])
    values = vmap(lambda numbers: coordinates.constrained(coordinates.split(numbers))[0])(flat)
    return {name: value.unflatten(0, x.shape[:-1]) for name, value in values.items()}
