"""A user's guide, read once: its parameters, and whether it is a guide of the model; each refusal is one line."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.distributions import Delta, Unit
from torch import Tensor
from torch.distributions import biject_to

from hierfl.data.column_batch import ColumnBatch
from hierfl.data.column_design import ColumnDesign
from hierfl.errors import UserError

from ..densities import densities, kind, log_prob, unwrapped
from ..levels import Level, Model, level_of
from ..refusing import refuse_plates
from ..running import running
from ..sites import Latent, Sites
from .noise import FromNoise
from .params import Packed
from .run import OWN_STREAM, SHARED_STREAM, Drawing, FirstParams, Guide, values_of

#: what a level is called
WHOSE: dict[Level, str] = {"global": "everyone's", "client": "a client's", "data": "a row's"}
#: draws at which a guide's values are looked at
LOOKS = 16
#: unconstrained numbers at which supports are compared
PROBE_POINTS = (-3.0, 0.0, 3.0)


def read_guide(program: Model, sites: Sites, design: ColumnDesign) -> Guide:
    """The guide of a model.

    Args:
        program: an ordinary Pyro guide of a batch.
        sites: of the model.
        design: the table's columns.

    Raises:
        UserError: for a site that is missing, unknown, or of another level or shape than in the model; for a
            parameter without a first value, or with a shape that is neither everyone's nor a client's.
    """
    rows = max(1, sites.rows)
    trace, first, mode = first_run(program, _template(design, 1, rows))
    two, more, _ = first_run(program, _template(design, 2, rows))
    _, longer, _ = first_run(program, _template(design, 1, rows + 1))
    _same_sites(trace, sites, _template(design, 1, rows))
    _same_shapes(two, sites)
    personal = frozenset(
        name for name, value in first.first_values.items() if _is_personal(name, value, more, longer, rows=rows)
    )
    params = first.params(personal)
    guide = Guide(
        program, Packed([p for p in params if not p.personal]), Packed([p for p in params if p.personal]),
        dict(mode.taken),
    )  # fmt: skip
    if not params:
        raise UserError("the guide has no pyro.param and no module: there is nothing to fit")
    _values(guide, sites, design, rows)
    return replace(guide, by_path=not _densities_move(guide, _template(design, 1, rows)))


def refuse_points(sites: Sites) -> None:
    """Parameters of the model itself, which have no prior: a user's guide says nothing of them."""
    for latent in sites.latents:
        if latent.parameter:
            raise UserError(
                f"pyro.param {latent.name!r} of the model has no prior: beside a guide of one's own, or client_guide, "
                "write it as pyro.sample with one"
            )


def _template(design: ColumnDesign, clients: int, rows: int) -> ColumnBatch:
    batch = design.template(torch.zeros((), dtype=torch.float64), rows)
    return replace(batch, columns={name: value.repeat(clients, 1) for name, value in batch.columns.items()})


def first_run(program: Model, batch: ColumnBatch) -> tuple[Any, FirstParams, FromNoise]:
    """A guide at the first values of its parameters, all random numbers 0: trace, parameters, numbers taken."""
    mode = FromNoise(None, {}, None)
    first = FirstParams(mode)
    with (
        torch.random.fork_rng(devices=[]), pyro.get_param_store().scope(), running(program, "the guide"),
        torch.no_grad(), poutine.trace() as tracer, first, Drawing(mode, {}), mode,
    ):  # fmt: skip
        torch.manual_seed(0)
        program(batch)
    return tracer.trace, first, mode


def _is_personal(name: str, value: Tensor, more: FirstParams, longer: FirstParams, *, rows: int) -> bool:
    """Whether a parameter has a dimension of clients, by its shapes for one client and two, and for one more row."""
    shapes = [tuple(value.shape), tuple(more.first_values[name].shape), tuple(longer.first_values[name].shape)]
    if any(len(shape) != len(shapes[0]) for shape in shapes):
        raise UserError(f"param {name!r} of the guide has another number of dimensions for more clients or rows")
    clients = [k for k, size in enumerate(shapes[0]) if shapes[1][k] != size]
    by_rows = [k for k, size in enumerate(shapes[0]) if shapes[2][k] != size]
    if any((shapes[0][k], shapes[1][k]) != (1, 2) for k in clients) or len(clients) > 1:
        raise UserError(
            f"param {name!r} of the guide has shape {shapes[0]} for one client and {shapes[1]} for two: give clients "
            "one dimension of their own, batch.num_clients long"
        )
    if any((shapes[0][k], shapes[2][k]) != (rows, rows + 1) for k in by_rows) or len(by_rows) > 1:
        raise UserError(
            f"param {name!r} of the guide has shape {shapes[0]} for {rows} rows and {shapes[2]} for {rows + 1}: give "
            "rows one dimension of their own, batch.width long"
        )
    if by_rows and not clients:
        raise UserError(
            f"param {name!r} of the guide has a number for each row and no dimension of clients: rows are clients' "
            "own, so write its shape as (batch.num_clients, batch.width)"
        )
    return bool(clients)


def _same_sites(trace: Any, sites: Sites, batch: ColumnBatch) -> None:
    latents, discrete = {latent.name: latent for latent in sites.latents}, dict(sites.discrete)
    in_guide = {site["name"]: site for site in densities(trace)}
    for name, site in trace.nodes.items():
        if site["type"] == "sample":
            refuse_plates(name, site, batch)
    for name, site in in_guide.items():
        if name in discrete:
            raise UserError(f"the guide samples site {name!r}, which is discrete and summed out: leave it out")
        if name in sites.observed:
            raise UserError(f"the guide samples site {name!r}, which the model observes: leave it out")
        if name not in latents and not site["infer"].get("is_auxiliary"):
            raise UserError(
                f"the guide samples site {name!r}, which the model does not have; its latents are "
                f"{', '.join(map(repr, latents))} (infer={{'is_auxiliary': True}} marks a helping site)"
            )
    for name, latent in latents.items():
        if name not in in_guide:
            raise UserError(f"the guide misses site {name!r}, a latent of the model: give it a pyro.sample there")
        _same_site(latent, in_guide[name])


def _same_site(latent: Latent, site: dict[str, Any]) -> None:
    level = level_of(site)
    if level != latent.level:
        raise UserError(
            f"site {latent.name!r} is {WHOSE[latent.level]} in the model and {WHOSE[level]} in the guide: give it the "
            "model's "
            "plates"
        )
    if tuple(site["value"].shape) != latent.shape:
        raise UserError(
            f"site {latent.name!r} has shape {tuple(site['value'].shape)} in the guide and {latent.shape} in the "
            "model, for "
            "one client"
        )

    _same_support(latent, site)


def _same_support(latent: Latent, site: dict[str, Any]) -> None:
    """All that a distribution can draw must be possible in the model, not only what it draws at first."""
    fn = unwrapped(site["fn"])
    if isinstance(fn, Delta):  # of a computed value, whose draws are looked at
        return
    transform, value = biject_to(fn.support), site["value"]
    free = torch.zeros(transform.inverse_shape(value.shape), dtype=torch.float64)
    for at in PROBE_POINTS:
        drawn = transform(free + at).expand(value.shape)
        if not bool(latent.transform.codomain.check(drawn).all() & latent.transform.inv(drawn).isfinite().all()):
            raise _outside(latent, f" by {kind(fn)}")


def _outside(latent: Latent, how: str = "") -> UserError:
    return UserError(
        f"the guide draws site {latent.name!r}{how}, outside of its support in the model: take a distribution of the "
        "same "
        "support, such as LogNormal for what is positive"
    )


def _same_shapes(trace: Any, sites: Sites) -> None:
    """Checks the shapes of what two clients hide; the dimension of the clients is 1 long for one client."""
    for latent in sites.clients:
        assert latent.axis is not None
        wanted = (*latent.shape[: latent.axis], 2, *latent.shape[latent.axis + 1 :])
        shape = tuple(trace.nodes[latent.name]["value"].shape)
        if shape != wanted:
            raise UserError(
                f"site {latent.name!r} has shape {shape} in the guide and {wanted} in the model, for two clients"
            )


def _densities_move(guide: Guide, batch: ColumnBatch) -> bool:
    """Whether a Delta, or a factor, has a log density that moves with the parameters at the same values of sites."""
    shared, own = guide.shared.start.requires_grad_(), guide.personal.start.requires_grad_()
    noise = {stream: torch.full((many,), 0.3, dtype=torch.float64) for stream, many in guide.taken.items()}
    noise = {SHARED_STREAM: torch.zeros(0), OWN_STREAM: torch.zeros(0), **noise}
    with torch.no_grad():
        values = values_of(guide.run(batch, shared, own, noise))
    total = torch.zeros((), dtype=torch.float64)
    for site in densities(guide.given(batch, shared, own, values)):
        if isinstance(unwrapped(site["fn"]), Delta | Unit):
            density = getattr(unwrapped(site["fn"]), "log_density", None)
            total = total + torch.as_tensor(site["fn"].log_prob(site["value"]) if density is None else density).sum()
    if not total.requires_grad:
        return False
    slopes = torch.autograd.grad(total, [value for value in (shared, own) if value.numel()], materialize_grads=True)
    return any(bool(slope.any()) for slope in slopes)


def _finite(trace: Any) -> None:
    """Densities of all sites of a draw, at the first values of the parameters."""
    for site in densities(trace):
        if not (bool(site["value"].isfinite().all()) and bool(log_prob(site).isfinite().all())):
            raise UserError(
                f"the guide's site {site['name']!r} has no finite log density at the first values of its parameters: "
                "is a scale not positive, or a logarithm, root or division without bounds?"
            )


def _values(guide: Guide, sites: Sites, design: ColumnDesign, rows: int) -> None:
    """Values lie within the model's supports, and those of everyone do not move with the rows."""
    batch = _template(design, 1, rows)
    other = replace(batch, columns={k: v if k in design.level_names else 2 * v + 0.5 for k, v in batch.columns.items()})
    generator = torch.Generator().manual_seed(0)
    shared, own = guide.shared.start, guide.personal.start
    for _ in range(LOOKS):
        noise = {
            stream: torch.randn(guide.taken.get(stream, 0), generator=generator, dtype=torch.float64)
            for stream in (SHARED_STREAM, OWN_STREAM)
        }
        with torch.no_grad():
            drawn = guide.run(batch, shared, own, noise)
            values = values_of(drawn)
            _finite(drawn)
            moved = values_of(guide.run(other, shared, own, noise))
            again = values_of(guide.run(batch, shared, own, noise, outside=1.0))
        for latent in sites.latents:
            value = values[latent.name]
            if not torch.equal(value, again[latent.name]):
                raise UserError(f"the guide draws a random number for site {latent.name!r} outside of pyro.sample")
            if not latent.transform.inv(value).isfinite().all():
                raise _outside(latent)
            if latent.level == "global" and not torch.equal(value, moved[latent.name]):
                raise UserError(
                    f"the guide computes site {latent.name!r} from the rows, and it is everyone's: only clients' "
                    "latents "
                    "may depend on their rows"
                )
