r"""The bound of a user's guide q(z) prod_j q(v_j | z), as a sum over clients.

    L = E[log p(z) - log q(z)] + sum_j L_j,      L_j = E[log p(y_j, v_j | z) - log q(v_j | z)]             (1)

The first part is the server's, so that prior and entropy of the globals count once. Everyone takes the same draws of
the globals' noise in a round, so that the sum is one unbiased estimate of the bound of all data together. Parameters
are stopped in log q (path derivatives; Roeder, Wu and Duvenaud, 2017): where q is the posterior, each draw's
gradient is 0, and no noise is left. Where a Delta of the guide has a log density that moves with the parameters, as a
flow's draws have by its noise, nothing is stopped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from hierfl.data.column_batch import ColumnBatch
from hierfl.data.column_design import ColumnDesign

from ..densities import densities, log_prob
from ..enumerating import is_enumerated, summed_out
from ..levels import GIVEN_MARK, Model, level_of
from ..log_joint import Complete, traced
from ..sites import Coordinates, Sites
from .run import OWN_STREAM, SHARED_STREAM, Guide, log_density, unpadded, values_of

#: draws x clients x rows that are held at once
CELLS = 2_000_000


@dataclass(frozen=True)
class Parts:
    """A model and its guide.

    Attributes:
        model, sites, design: the model, of which columns.
        guide: the guide.
    """

    model: Model
    sites: Sites
    design: ColumnDesign
    guide: Guide
    names: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", frozenset(latent.name for latent in self.sites.latents))

    def _drawn(self, batch: ColumnBatch, shared: Tensor, own: Tensor, noise: dict[str, Tensor]) -> dict[str, Tensor]:
        return values_of(self.guide.run(batch, shared, own, noise))

    def _of_model(self, batch: ColumnBatch, values: dict[str, Tensor]) -> Any:
        latents = {name: value for name, value in values.items() if name in self.names}
        return traced(self.model, batch, Complete(latents, {}, {}, {}, batch.mask, self.sites.depth))

    def own_height(self, batch: ColumnBatch, values: dict[str, Tensor]) -> Tensor:
        """log p(y_j, v_j | z) of one client, ()."""
        trace = self._of_model(batch, values)
        own = []
        for site in densities(trace):
            level = level_of(site)
            if level != "global":
                latent = level == "data" and site["infer"].get(GIVEN_MARK)
                own.append((site, unpadded(log_prob(site), batch.mask) if latent else log_prob(site)))
        if any(is_enumerated(site) for site, _ in own):
            return summed_out(trace, own)
        return sum((density.sum() for _, density in own), torch.zeros((), dtype=torch.float64))

    def client(self, batch: ColumnBatch, shared: Tensor, own: Tensor, noise: dict[str, Tensor]) -> Tensor:
        """One draw of what L_j is the expectation of, ()."""
        values = self._drawn(batch, shared, own, noise)
        fixed = self.guide.given(batch, self.guide.stopped(shared), self.guide.stopped(own), values)
        return self.own_height(batch, values) - log_density(fixed, batch.mask, ("client", "data"))

    def server(self, batch: ColumnBatch, shared: Tensor, noise: dict[str, Tensor]) -> Tensor:
        """One draw of log p(z) - log q(z), ()."""
        own = self.guide.personal.start.to(shared)
        values = self._drawn(batch, shared, own, noise)
        fixed = self.guide.given(batch, self.guide.stopped(shared), own, values)
        prior = torch.zeros((), dtype=torch.float64)
        for site in densities(self._of_model(batch, values)):
            if level_of(site) == "global":
                prior = prior + log_prob(site).sum()
        return prior - log_density(fixed, batch.mask, ("global",))

    def unconstrained(self, values: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Globals (p,) and a client's latents (q,) as the rest of a fit takes them."""
        vectors = []
        for latents in (self.sites.globals, self.sites.clients):
            parts = [latent.transform.inv(values[latent.name]).reshape(latent.numel) for latent in latents]
            vectors.append(torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64))
        return vectors[0], vectors[1]

    def log_jacobian(self, x: Tensor) -> Tensor:
        """log |dz / dx| of the globals at x (p,), ()."""
        coordinates = Coordinates(self.sites.globals)
        return torch.as_tensor(coordinates.constrained(coordinates.split(x))[1], dtype=torch.float64)

    # -- all draws ----------------------------------------------------------------------------------------------------

    def template(self, like: Tensor) -> ColumnBatch:
        """One client, of whose rows nothing of the globals depends."""
        return self.design.template(like, max(1, self.sites.rows))

    def over_draws(self, function: Callable[..., Any], shared: Tensor, noise: Tensor) -> Any:
        """``function(batch, shared, noise)`` at the server, at noise (K, G) of the globals."""
        batch = self.template(shared)
        own = torch.zeros(self.guide.taken.get(OWN_STREAM, 0)).to(noise)
        return vmap(lambda draw: function(batch, shared, {SHARED_STREAM: draw, OWN_STREAM: own}))(noise)

    def globals(self, shared: Tensor, noise: Tensor) -> Tensor:
        """Draws of the globals, unconstrained, (K, p)."""
        own = self.guide.personal.start.to(shared)
        return self.over_draws(
            lambda batch, shared, noise: self.unconstrained(self._drawn(batch, shared, own, noise))[0], shared, noise
        )

    def over_clients(
        self, function: Callable[..., Any], columns: Tensor, mask: Tensor | None, params: tuple[Tensor, Tensor],
        noise: tuple[Tensor, Tensor],
    ) -> Any:  # fmt: skip
        """``function(batch, shared, own, noise)`` of each draw and client.

        Args:
            columns: (S, columns, n).
            mask: (S, n), or None.
            params: shared ones, a copy for each client (S, P), and the clients' own (S, R).
            noise: of the globals (K, G), the same for all clients, and of the clients' own (K, S, O).

        Returns:
            (K, S, ...).
        """

        def for_client(
            shared: Tensor, own: Tensor, of_all: Tensor, of_one: Tensor, rows: Tensor, present: Tensor | None
        ) -> Any:
            return function(self.design.named(rows, present), shared, own, {SHARED_STREAM: of_all, OWN_STREAM: of_one})

        both = vmap(vmap(for_client, (0, 0, None, 0, 0, None if mask is None else 0)), (None, None, 0, 0, None, None))
        return both(*params, *noise, columns, mask)
