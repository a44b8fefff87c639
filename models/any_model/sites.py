"""What a model's sites are, read from the plates around them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.distributions import Cauchy, Independent, Laplace, Logistic, MultivariateNormal, Normal, StudentT
from pyro.distributions.torch_distribution import ExpandedDistribution, MaskedDistribution, TorchDistributionMixin
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.distributions import biject_to

from hierfl.data.column_batch import ColumnBatch
from hierfl.data.column_design import ColumnDesign

from .enumerating import EnumerateDiscrete, is_discrete, is_enumerated
from .levels import CLIENT, DATA, Level, Model, level_of
from .parameters import clients_axis, is_personal, run
from .refusing import refuse, refuse_discrete, refuse_prior
from .running import running

__all__ = ["CLIENT", "DATA", "Coordinates", "Latent", "Level", "Model", "Sites", "level_of", "location_and_scale"]

#: numbers of a client beyond which those of rows have an arrow's form: a full covariance takes their number squared
MOST_BY_ROWS = 100
#: mark of a parameter's constraint
CONSTRAINT = "_constraint"
#: distributions whose values are loc + scale times a standard one's
LOCATION_SCALE = (Normal, StudentT, Laplace, Logistic, Cauchy)


@dataclass(frozen=True)
class Latent:
    """A continuous latent site.

    Attributes:
        name: of the site.
        level: whose it is.
        shape: of its value for one client, plates included.
        free: shape of the same value in the unconstrained space.
        transform: from there to the site's support.
        axis: of the clients in both shapes; None of a global one.
        point: whether it has no spread of its own: a parameter, or a latent by choice.
        parameter: whether it has no prior, and is no latent.
    """

    name: str
    level: Level
    shape: tuple[int, ...]
    free: tuple[int, ...]
    transform: Any
    axis: int | None = None
    point: bool = False
    parameter: bool = False

    @property
    def numel(self) -> int:
        """How many unconstrained numbers it has."""
        return math.prod(self.free)


@dataclass(frozen=True)
class Sites:
    """All sites of a model, for a batch of one client.

    Attributes:
        globals, clients: the continuous latents of everyone, and of a client, in the model's order; those of a
            client's rows are its own. Parameters are among them.
        observed: names of the sites that are observed, those of rows and those of clients.
        derived: names of deterministic sites, with their level.
        centred: names of the clients' latents that have a location and a scale.
        discrete: names of discrete latents, which are summed out, with their level.
        depth: how many dimensions the plates take.
        start: where the globals begin, unconstrained, (p,): the prior's mean, or 0 where that is none.
        client_start: likewise of the clients' latents given those, (q,).
    """

    globals: tuple[Latent, ...]
    clients: tuple[Latent, ...]
    observed: tuple[str, ...]
    derived: tuple[tuple[str, Level], ...]
    centred: frozenset[str]
    start: Tensor
    client_start: Tensor
    discrete: tuple[tuple[str, Level], ...] = ()
    depth: int = 2
    rows: int = 0

    def with_points(self) -> Sites:
        """The same with globals that are points."""
        return replace(self, globals=tuple(replace(latent, point=True) for latent in self.globals))

    @property
    def own_points(self) -> tuple[Latent, ...]:
        """Parameters of which each client has its own."""
        return tuple(latent for latent in self.clients if latent.parameter)

    @property
    def latents(self) -> tuple[Latent, ...]:
        """All continuous latents."""
        return self.globals + self.clients


class _AtPriorMeans(Messenger):
    """Gives every latent its prior's mean, or what 0 is on its support where that is no number.

    Args:
        depth: how many dimensions the plates take: those left of them are sums' over discrete latents; None before
            that is known, where discrete latents have the first of their values.
    """

    def __init__(self, depth: int | None) -> None:
        super().__init__()
        self.depth = depth

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        fn = msg["fn"]
        if msg["is_observed"] or msg["done"] or not isinstance(fn, TorchDistributionMixin):
            return
        if is_discrete(fn):
            refuse_discrete(msg["name"], level_of(msg), fn)
            if self.depth is None:
                msg["value"] = fn.enumerate_support(expand=True)[0]
            else:
                msg["infer"]["enumerate"] = "parallel"
            return
        refuse_prior(msg["name"], fn)
        transform = biject_to(fn.support)
        zero = torch.zeros(transform.inverse_shape(fn.shape()), dtype=torch.float64)
        try:
            mean = fn.mean.double().expand(fn.shape())
            usable = bool(transform.inv(mean).isfinite().all())
        except NotImplementedError:
            usable = False
        value = mean.clone() if usable else transform(zero)
        summed = 0 if self.depth is None else max(0, len(fn.batch_shape) - self.depth)
        msg["value"] = value[(0,) * summed]

    def _pyro_post_param(self, msg: dict[str, Any]) -> None:
        # That of a PyroParam is in the store alone.
        msg["infer"][CONSTRAINT] = pyro.get_param_store()._constraints[msg["name"]]


def read_model(model: Model, design: ColumnDesign) -> Sites:
    """The sites of a model of a table's columns, those of ``design.rows`` rows where latents depend on their number.

    Raises:
        UserError: see :func:`read_sites`.
    """
    like = torch.zeros((), dtype=torch.float64)
    sites = read_sites(model, design.template(like))
    if design.rows > 1:
        longer = read_sites(model, design.template(like, design.rows))
        if [(latent.name, latent.shape) for latent in longer.latents] != [
            (latent.name, latent.shape) for latent in sites.latents
        ]:
            sites = replace(longer, rows=design.rows)
    return sites


def read_sites(model: Model, batch: ColumnBatch) -> Sites:
    """Runs the model twice on a batch of one client, and reads its sites.

    Raises:
        UserError: for what no fit of sums can do, see :mod:`.refusing`.
    """
    plain = _read(model, batch, None)
    frames = [frame for site in plain.nodes.values() if site["type"] == "sample" for frame in site["cond_indep_stack"]]
    depth = max([2, *(-frame.dim for frame in frames if frame.vectorized)])
    trace = _read(model, batch, depth)
    refuse(trace, batch, depth)
    latents: dict[str, list[Latent]] = {"global": [], "client": []}
    starts: dict[str, list[Tensor]] = {"global": [], "client": []}
    observed, derived, discrete, centred = [], [], [], set[str]()
    for name, site in trace.nodes.items():
        if site["type"] == "param":
            parameter = _parameter(name, site)
            latents[parameter.level].append(parameter)
            starts[parameter.level].append(parameter.transform.inv(site["value"].detach().double()).flatten())
        if site["type"] != "sample" or poutine.util.site_is_subsample(site):
            continue
        level = level_of(site)
        if site["infer"].get("_deterministic"):
            derived.append((name, level))
        elif site["is_observed"]:
            observed.append(name)
        elif is_enumerated(site):
            discrete.append((name, level))
        else:
            latent, whose = _latent(name, level, site), "global" if level == "global" else "client"
            latents[whose].append(latent)
            has = level != "global" and location_and_scale(site["fn"]) is not None
            has = has and len(site["fn"].batch_shape) <= depth
            centred |= {name} if has else set()
            free = latent.transform.inv(site["value"]).flatten()
            starts[whose].append(torch.zeros_like(free) if has else free)
    begin = {level: torch.cat(parts).double() if parts else torch.zeros(0).double() for level, parts in starts.items()}
    return Sites(
        tuple(latents["global"]), tuple(latents["client"]), tuple(observed), tuple(derived), frozenset(centred),
        begin["global"], begin["client"], tuple(discrete), depth,
    )  # fmt: skip


def read_trace(model: Model, batch: ColumnBatch) -> Any:
    """A model's run on a batch of one client with every latent at its prior's mean; nothing is summed out."""
    return _read(model, batch, None)


def _read(model: Model, batch: ColumnBatch, depth: int | None) -> Any:
    summed = nullcontext() if depth is None else EnumerateDiscrete(first_available_dim=-1 - depth)
    with running(model), torch.no_grad(), poutine.trace() as tracer, summed, _AtPriorMeans(depth):
        run(model, batch)
    return tracer.trace


def _latent(name: str, level: Level, site: dict[str, Any]) -> Latent:
    shape = tuple(site["value"].shape)
    transform = biject_to(site["fn"].support)
    axis = None if level == "global" else len(shape) - site["fn"].event_dim - 2
    return Latent(name, level, shape, tuple(transform.inverse_shape(torch.Size(shape))), transform, axis)


def _parameter(name: str, site: dict[str, Any]) -> Latent:
    shape = tuple(site["value"].shape)
    transform = biject_to(site["infer"][CONSTRAINT])
    free = tuple(transform.inverse_shape(torch.Size(shape)))
    if is_personal(site):
        return Latent(name, "client", shape, free, transform, clients_axis(site), point=True, parameter=True)
    return Latent(name, "global", shape, free, transform, point=True, parameter=True)


def location_and_scale(fn: Any) -> tuple[Tensor, Tensor] | None:
    """Location and scale of a distribution over real numbers that has both; None of any other."""
    while isinstance(fn, Independent | ExpandedDistribution | MaskedDistribution):
        fn = fn.base_dist
    if isinstance(fn, MultivariateNormal):
        return fn.loc, fn.variance.sqrt()
    return (fn.loc, fn.scale) if isinstance(fn, LOCATION_SCALE) else None


@dataclass(frozen=True)
class Coordinates:
    """Latents as one vector of unconstrained numbers.

    Args:
        latents: in the order of the vector.
    """

    latents: Sequence[Latent]

    @property
    def size(self) -> int:
        """Length of the vector."""
        return sum(latent.numel for latent in self.latents)

    @property
    def spread(self) -> Tensor:
        """Which numbers are no points, (size,)."""
        parts = [torch.full((latent.numel,), not latent.point) for latent in self.latents]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.bool)

    def split(self, vector: Tensor) -> dict[str, Tensor]:
        """The vector (size,) cut into the latents' unconstrained values."""
        parts = vector.split([latent.numel for latent in self.latents]) if self.latents else ()
        return {site.name: part.reshape(site.free) for site, part in zip(self.latents, parts, strict=True)}

    def constrained(self, free: dict[str, Tensor]) -> tuple[dict[str, Tensor], Tensor | float]:
        """Values on the sites' supports, and the log determinant of that map."""
        values, log_det = {}, 0.0
        for latent in self.latents:
            values[latent.name] = value = latent.transform(free[latent.name])
            if not latent.point:  # a point is the mode of the density that the model states
                log_det = log_det + latent.transform.log_abs_det_jacobian(free[latent.name], value).sum()
        return values, log_det
