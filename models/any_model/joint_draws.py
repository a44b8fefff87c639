"""Draws of the joint posterior of a fitted plain model, on the sites' supports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
import torch

from hierfl.inference.evaluation.fitted import Fitted

from .evaluating import Clients
from .everyones import everyones_draws
from .names import CENTRING, DRAWS, OWN_DRAWS, TRACE
from .printed import number_names, summary_table
from .trace import trace_table
from .values import Draws, Values, at_draws

if TYPE_CHECKING:
    import pandas as pd

    from .plain import PlainModel


def on_cpu(fitted: Fitted) -> Fitted:
    """A fit whose values and data are on the CPU, where the user's model makes its tensors."""
    shared, personal, initial = (
        {name: value.cpu() for name, value in values.items()}
        for values in (fitted.shared, fitted.personal, fitted.initial)
    )
    federation = fitted.federation.to("cpu")
    return replace(fitted, shared=shared, personal=personal, initial=initial, federation=federation)


@dataclass(frozen=True)
class JointDraws:
    """Draws of globals and clients' latents.

    Attributes:
        fitted: the fit, on the CPU.
    """

    fitted: Fitted

    @classmethod
    def from_fit(cls, fitted: Fitted) -> Self:
        """Returns the joint draws of a fit on any device."""
        return cls(on_cpu(fitted))

    def some(self, draws: int | None, rows: Sequence[int]) -> Self:
        """The first draws (None for all) of some clients."""
        fitted = self.fitted
        shared = {**fitted.shared, DRAWS: fitted.shared[DRAWS][:draws]}
        personal = {name: value[list(rows)] for name, value in fitted.personal.items()}
        personal[OWN_DRAWS] = personal[OWN_DRAWS][:, :draws]
        return type(self)(replace(fitted, shared=shared, personal=personal, federation=fitted.federation.select(rows)))

    @property
    def method(self) -> PlainModel:
        """The model, and how it was fitted."""
        return cast("PlainModel", self.fitted.method)

    @property
    def kept(self) -> int:
        """How many draws there are."""
        return len(self.fitted.shared[DRAWS])

    @property
    def client_names(self) -> list[str]:
        """Names of the J clients, in order."""
        return [str(name) for name in self.fitted.federation.ids]

    @cached_property
    def of_plate(self) -> Clients:
        """All clients with their data."""
        fitted, method = self.fitted, self.method
        batch = fitted.federation.batch(range(fitted.federation.clients))
        columns, centring = method.network.stacked(batch), fitted.personal[CENTRING]
        return Clients(method.program, method.sites, method.network, columns, batch.mask, centring)

    @cached_property
    def draws(self) -> Draws:
        """Draws of the joint posterior in the unconstrained space."""
        return Draws(self.fitted.shared[DRAWS], self.fitted.personal[OWN_DRAWS].movedim(0, 1))

    @cached_property
    def _sites(self) -> tuple[Values, Values]:
        values = at_draws(
            self.of_plate, self.draws, lambda site: site.value if site.level != "data" and not site.observed else None
        )
        levels = {latent.name: "global" for latent in self.method.sites.globals}
        levels |= {latent.name: "client" for latent in self.method.sites.clients} | dict(self.method.sites.derived)
        everyones = {name: value[:, 0] for name, value in values.items() if levels[name] == "global"}
        return everyones, {name: value for name, value in values.items() if levels[name] == "client"}

    @cached_property
    def globals(self) -> dict[str, np.ndarray]:
        """Draws of the globals on their supports, {site: (draws, *shape)}; deterministic sites included."""
        if not self.fitted.federation.clients:  # as at the server of a study
            return everyones_draws(self.method, self.fitted.shared)
        return {name: value.numpy() for name, value in self._sites[0].items()}

    @cached_property
    def clients(self) -> dict[str, np.ndarray]:
        """Draws of the clients' latents on their supports, {site: (draws, J, *shape)}; deterministic sites included.

        Draw d of :attr:`globals` and draw d of these are one draw of the joint posterior.
        """
        return {name: value.numpy() for name, value in self._sites[1].items()}

    @cached_property
    def row_sites(self) -> frozenset[str]:
        """Names of the sites that rows have each, observed and deterministic ones."""
        first = Draws(self.draws.x[:1], self.draws.v[:1])
        return frozenset(at_draws(self.of_plate, first, lambda site: site.value if site.level == "data" else None))

    @cached_property
    def log_densities(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Log densities of rows, (draws, N), and of sites that are observed once for each client, (draws, J)."""
        densities = at_draws(self.of_plate, self.draws, lambda site: site.log_prob)
        return self.split_rows({name: value for name, value in densities.items() if value.dim() > 2}), {
            name: value.numpy() for name, value in densities.items() if value.dim() == 2
        }

    def split_rows(self, values: Values) -> dict[str, np.ndarray]:
        """Values (D, J, n, *shape) without padding, (D, N, *shape)."""
        sizes = self.fitted.federation.sizes()
        return {
            name: torch.cat([value[:, j, :n] for j, n in enumerate(sizes)], 1).numpy() for name, value in values.items()
        }

    def client_table(self) -> pd.DataFrame:
        """Clients: a row for each, its number of rows, and mean and sd of each number of its latents."""
        import pandas as pd

        columns: dict[str, Any] = {"client": self.client_names, "n": list(self.fitted.federation.sizes())}
        for name, value in self.clients.items():
            numbers = value.reshape(*value.shape[:2], -1)
            for k, number in enumerate(number_names(name, value.shape[2:])):
                columns |= {number: numbers[..., k].mean(0), f"{number} sd": numbers[..., k].std(0)}
        return pd.DataFrame(columns)

    def globals_table(self) -> pd.DataFrame:
        """Globals: a row for each number, with :data:`.printed.COLUMNS`."""
        return summary_table(self.globals)

    def trace_table(self) -> pd.DataFrame:
        """A row for each of the last rounds, see :func:`.trace.trace_table`."""
        return trace_table(self.fitted.shared[TRACE])

    def notes(self, rounds: int) -> list[str]:
        """What a reader has to know of a fit of so many rounds, a line each."""
        latents = [latent.name for latent in self.method.sites.globals if not latent.point]
        values = self.globals if rounds and latents else {}
        fixed = [
            name for name in latents if name in values and len(values[name]) > 1 and not np.ptp(values[name], 0).any()
        ]
        words = [f"no spread, since the guide gives a single value: {', '.join(fixed)}"] if fixed else []
        return [*words, *self.method.notes(self.fitted, rounds)]

    def bytes_per_draw(self, *, rows: bool) -> float:
        """About how many bytes one more draw adds to an InferenceData."""
        federation, sites = self.fitted.federation, self.method.sites
        own = 2 * federation.clients * (len(sites.client_start) + len(sites.derived))
        observed = 2 * sum(federation.sizes()) * len(sites.observed) if rows else 0
        return 8.0 * (2 * (len(sites.start) + len(sites.derived)) + own + observed)
