"""What no fit of sums over clients can do, as it is seen in one run of a model: one line each, which names the site."""

from __future__ import annotations

from typing import Any

from pyro import poutine
from pyro.distributions import Delta, ImproperUniform, Unit
from torch import Tensor
from torch.distributions import biject_to

from hierfl.data.column_batch import ColumnBatch
from hierfl.errors import UserError

from .densities import kind, log_prob, unwrapped
from .enumerating import is_enumerated
from .levels import CLIENT, DATA, DIMS, Level, is_data, level_of
from .parameters import refuse_own

#: names of the parts of a shape
PLATES_ADVICE = 'put it within pyro.plate("client", batch.num_clients, dim=-2)'


def refuse_discrete(name: str, level: Level, fn: Any) -> None:
    """A discrete latent that cannot be summed out.

    Raises:
        UserError: for one of everyone, and for one without a finite list of values.
    """
    if level == "global":
        raise UserError(f"site {name!r} is a discrete latent of everyone: only a client's can be summed out")
    if not fn.has_enumerate_support:
        raise UserError(
            f"site {name!r} is a discrete latent without a finite list of values ({kind(fn)}): write its sum out, "
            "or is obs= missing?"
        )


def refuse_prior(name: str, fn: Any) -> None:
    """A continuous latent without a density on a support that real numbers can be mapped to.

    Raises:
        UserError: for ImproperUniform, since neither draws from the prior nor a check of the posterior are possible;
            for a point mass; for a support without such a map.
    """
    inner = fn
    while hasattr(inner, "base_dist") and not isinstance(inner, ImproperUniform):
        inner = inner.base_dist
    if isinstance(inner, ImproperUniform):
        raise UserError(f"site {name!r} has an improper prior: give it a proper one, such as a wide Normal")
    if isinstance(unwrapped(fn), Delta):
        raise UserError(f"site {name!r} is a latent with one possible value: write pyro.deterministic({name!r}, ...)")
    try:
        biject_to(fn.support)
    except NotImplementedError as error:
        raise UserError(
            f"site {name!r} has a support to which real numbers are not mapped ({kind(fn)}): take another distribution"
            + (", LKJCholesky" if kind(fn).startswith("LKJ") else "")
        ) from error


def refuse(trace: Any, batch: ColumnBatch, depth: int) -> None:
    """All that one run shows.

    Args:
        trace: of the run, discrete latents enumerated.
        batch: what it ran on.
        depth: how many dimensions the plates take.

    Raises:
        UserError: see the texts.
    """
    sites = {name: site for name, site in trace.nodes.items() if site["type"] == "sample"}
    for name, site in trace.nodes.items():
        if site["type"] == "param":
            refuse_own(name, site, batch.num_clients)
        if site["type"] == "sample":
            refuse_plates(name, site, batch)
    drawn = {
        name: site
        for name, site in sites.items()
        if not poutine.util.site_is_subsample(site) and not site["infer"].get("_deterministic")
    }
    if all(level_of(site) == "global" for site in drawn.values()):
        raise UserError(f"no site is within the plate of clients: {PLATES_ADVICE}")
    if not any(is_data(site) for site in drawn.values()):
        raise UserError("no site is observed: give a site of the rows obs=batch[...]")
    for name, site in drawn.items():
        if level_of(site) == "global" and is_data(site) and not isinstance(unwrapped(site["fn"]), Unit):
            raise UserError(f"observed site {name!r} is outside of the plate of clients: {PLATES_ADVICE}")
        _shape(name, site, depth)
        _scale(name, site, depth)


def refuse_plates(name: str, site: dict[str, Any], batch: ColumnBatch) -> None:
    if poutine.util.site_is_subsample(site):
        if len(site["value"]) != site["fn"].size:
            raise UserError(f"plate {name!r} takes a subsample: every client uses all of its rows")
        return
    frames = {frame.name: frame for frame in site["cond_indep_stack"]}
    if CLIENT not in frames:
        other = next((f for f in frames.values() if f.dim == DIMS[CLIENT] and DATA in frames), None)
        if other is not None:
            raise UserError(
                f"site {name!r} is within plate {other.name!r} at dim -2, and in no plate 'client': name that of the "
                "clients 'client', pyro.plate(\"client\", batch.num_clients, dim=-2)"
            )
    if DATA in frames and CLIENT not in frames:
        raise UserError(f"site {name!r} is within plate 'data' and outside of plate 'client': nest data in client")
    sizes = {CLIENT: ("batch.num_clients", batch.num_clients), DATA: ("batch.width", batch.width)}
    for plate, dim in DIMS.items():
        if plate not in frames:
            continue
        frame, (text, size) = frames[plate], sizes[plate]
        if not frame.vectorized:
            raise UserError(f"plate {plate!r} at site {name!r} is a loop: write 'with pyro.plate(...)', dim={dim}")
        if frame.dim != dim:
            raise UserError(f"plate {plate!r} at site {name!r} is at dim {frame.dim}: give it dim={dim}")
        if frame.size != size:
            raise UserError(
                f"plate {plate!r} at site {name!r} has size {frame.size}, where {text} is {size}: write {text}, since "
                "a model is run on some clients at a time"
            )


def _shape(name: str, site: dict[str, Any], depth: int) -> None:
    planned = {frame.dim: frame.size for frame in site["cond_indep_stack"] if frame.vectorized}
    fn = site["fn"]
    shape = (log_prob(site).shape if site["is_observed"] else fn.batch_shape)[-depth:]
    for dim, size in zip(range(-len(shape), 0), shape, strict=True):
        if size > 1 and planned.get(dim, 1) != size:
            raise UserError(
                f"site {name!r} has {size} densities at dim {dim}, where it has {_named(planned, dim)}: "
                "is .to_event(1), or a plate, missing?"
            )


def _named(planned: dict[int, int], dim: int) -> str:
    return f"a plate of {planned[dim]}" if dim in planned else "no plate"


def _scale(name: str, site: dict[str, Any], depth: int) -> None:
    summed = is_enumerated(site) or len(site["fn"].batch_shape) > depth
    scale = site["scale"]
    if summed and (isinstance(scale, Tensor) or scale != 1.0):
        raise UserError(
            f"site {name!r} is scaled, and a discrete latent is summed out of it: which is first is unclear"
        )
