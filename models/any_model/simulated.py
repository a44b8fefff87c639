"""Data that a model simulates: observed sites are drawn, and so are latents that are not given."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from pyro import poutine
from pyro.distributions import Unit
from torch import Tensor
from torch.func import vmap

from hierfl.data.column_batch import ColumnBatch
from hierfl.data.column_design import ColumnDesign
from hierfl.errors import UserError

from .fresh import Fresh
from .log_joint import Given
from .parameters import is_personal, run
from .running import in_double
from .sites import Coordinates, Level, Sites, level_of
from .values import Values, bare

log = logging.getLogger("hierfl")


class Drawn(Given):
    """Draws what is observed, and every latent that is not given, but for values that are ``fixed``, as in a trace.

    A client's points that are not given have the values with which a fit begins: what is read is everyone's.
    """

    fixed: Mapping[str, Tensor] = MappingProxyType({})

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        super()._pyro_sample(msg)
        given = msg["name"] in self.values or msg["name"] in self.free
        fixed = msg["infer"].get("_deterministic") or isinstance(msg["fn"], Unit)
        if given or fixed or poutine.util.site_is_subsample(msg):
            return
        value = self.fixed[msg["name"]] if msg["name"] in self.fixed else msg["fn"].sample()
        # Priors of tensors from before the fit, such as a module's, draw in single precision.
        msg["value"] = value.double() if value.is_floating_point() else value
        msg["is_observed"], msg["done"] = True, True

    def _pyro_param(self, msg: dict[str, Any]) -> None:
        if msg["name"] in self.values or msg["name"] in self.free or not is_personal(msg):
            super()._pyro_param(msg)


@dataclass(frozen=True)
class Simulator:
    """Simulates clients of a model, one at a time.

    Attributes:
        model, sites, design: the model, its sites, and the columns it reads.
    """

    model: Callable[[ColumnBatch], Any]
    sites: Sites
    design: ColumnDesign

    def __call__(
        self, columns: Tensor, count: int, seed: int, everyones: Mapping[str, Tensor] | None = None,
        own: tuple[Tensor, Tensor] | None = None, levels: tuple[Level, ...] = ("global", "client", "data"),
    ) -> Values:  # fmt: skip
        """One client's sites.

        Args:
            columns: its rows, (columns, n).
            count: D, how many draws.
            seed: keys them.
            everyones: the globals on their supports, {name: (D, *shape)}; None draws them from the prior.
            own: the client's latents, unconstrained, (D, q), and their centring (q,); None draws them from the prior.
                Those of rows are drawn in any case: what is simulated are new rows.
            levels: whose sites are wanted.

        Returns:
            By site (D, *shape), of rows (D, n, *shape); deterministic ones included.

        Raises:
            UserError: for a distribution that cannot be drawn from.
        """

        def read(trace: Any) -> Values:
            return {
                name: bare(site, level, self.sites.depth, derived=bool(site["infer"].get("_deterministic")))
                for name, site in _sites(trace).items()
                if (level := level_of(site)) in levels
            }

        return self._runs(columns, count, seed, dict(everyones or {}), own, read)

    def densities(
        self, several: Sequence[Tensor], count: int, everyones: Mapping[str, Tensor], own: tuple[Tensor, Tensor],
        observed: Sequence[str],
    ) -> list[Values]:  # fmt: skip
        """Log densities of observed sites at one set of values, for several rows: the same where none depends on them.

        Args:
            several: columns, (columns, n) each; the values are drawn at the first.
            count, everyones, own: as above.
            observed: the sites.
        """
        latents = {latent.name for latent in self.sites.latents}

        def drawn(trace: Any) -> Values:
            return {
                name: site["value"] for name, site in _sites(trace).items()
                if name not in latents and not site["infer"].get("_deterministic")
            }  # fmt: skip

        def read(trace: Any) -> Values:
            return {name: trace.nodes[name]["fn"].log_prob(trace.nodes[name]["value"]) for name in observed}

        fixed = self._runs(several[0], count, 0, everyones, own, drawn)
        return [self._runs(columns, count, 0, everyones, own, read, fixed) for columns in several]

    def _runs(
        self, columns: Tensor, count: int, seed: int, everyones: Mapping[str, Tensor],
        own: tuple[Tensor, Tensor] | None, read: Callable[[Any], Values], fixed: Mapping[str, Tensor] | None = None,
    ) -> Values:  # fmt: skip
        """What is read of runs of the model."""
        coordinates = Coordinates(self.sites.clients)
        transforms = {latent.name: latent.transform for latent in self.sites.clients}

        def simulate_draw(number: Tensor, given: Known, v: Tensor | None) -> Values:
            values, fixed_values = given
            free, weights = {}, dict[str, Tensor]()
            if own is not None and v is not None:
                of_rows = {latent.name for latent in self.sites.clients if latent.level == "data"}
                free = {name: value for name, value in coordinates.split(v).items() if name not in of_rows}
                weights = {name: c for name, c in coordinates.split(own[1]).items() if name in self.sites.centred}
            drawn = Drawn(values, free, transforms, weights, None, self.sites.depth)
            drawn.fixed = fixed_values
            with in_double(), poutine.trace() as tracer, drawn:
                run(self.model, self.design.named(columns, None))
            return read(tracer.trace)

        batched = torch.arange(count), (dict(everyones), dict(fixed or {})), None if own is None else own[0]
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(seed)
            try:
                return _at_once(simulate_draw, *batched)
            except NotImplementedError as error:
                raise UserError(f"the model cannot be simulated: {error} cannot be drawn from") from error
            except RuntimeError as error:  # an error of the model's own comes again
                log.debug("one draw after the other: %s", error)
            torch.manual_seed(seed)
            return _one_by_one(simulate_draw, *batched)


#: globals, and values that are fixed
Known = tuple[Mapping[str, Tensor], Mapping[str, Tensor]]
#: one draw: its number, what is known, latents
One = Callable[[Tensor, Known, Tensor | None], Values]


def _sites(trace: Any) -> dict[str, dict[str, Any]]:
    return {
        name: site
        for name, site in trace.nodes.items()
        if site["type"] == "sample" and not poutine.util.site_is_subsample(site) and not isinstance(site["fn"], Unit)
    }


def _at_once(run: One, numbers: Tensor, values: Known, v: Tensor | None) -> Values:
    with Fresh(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop", category=UserWarning)
        return dict(vmap(run, (0, 0, None if v is None else 0), randomness="different")(numbers, values, v))


def _one_by_one(run: One, numbers: Tensor, values: Known, v: Tensor | None) -> Values:
    """The same for distributions whose draws vmap cannot make, such as Beta and von Mises."""
    drawn = [
        run(
            number,
            ({k: value[d] for k, value in values[0].items()}, {k: value[d] for k, value in values[1].items()}),
            None if v is None else v[d],
        )
        for d, number in enumerate(numbers)
    ]
    return {name: torch.stack([site[name] for site in drawn]) for name in drawn[0]}
