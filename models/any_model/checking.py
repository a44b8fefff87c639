"""One look at a model before a fit: what a single run does not show, each refusal one line that names the site.

A fit adds up log densities of single clients. So the model is run on a few clients together, some latents or rows of
one of them are changed, and nothing of the others' may move; and each client is run alone, and must have the same.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.distributions import biject_to

from hierfl.data.batch import Batch
from hierfl.data.column_design import ColumnDesign
from hierfl.errors import UserError

from .by_rows.layout import Layout, refuse_coupled_rows
from .densities import densities, log_prob
from .enumerating import summed_out
from .levels import CLIENT, Model, is_data, level_of
from .log_joint import client_log_joint
from .look import MAX_ROWS, Look, named
from .of_clients import refuse_varying
from .own_points import warn_undetermined
from .parameters import shape_of
from .refusing import refuse
from .running import running
from .sites import Coordinates, Sites, read_model
from .starting import refuse_impossible, refuse_infinite

#: relative to its size, what a log density may move by rounding
ROUNDING = 1e-8
#: the same of a density that is computed twice in one way, of other numbers beside it
REPEATED = 1e-13


def check_model(model: Model, design: ColumnDesign, batch: Batch | None = None) -> Sites:
    """Whether a model can be fitted by sums over clients.

    Args:
        model: of a batch of columns.
        design: the table's columns.
        batch: of some clients, at best all of them; None makes rows up, and says less.

    Returns:
        The model's sites.

    Raises:
        UserError: one line, for what cannot.
    """
    with torch.random.fork_rng(devices=[]):
        sites = read_model(model, design)
        if batch is not None and batch.x.dtype != torch.float64:
            raise UserError("the columns are in single precision: a model is fitted in double, dtype=torch.float64")
        if batch is not None:
            refuse_varying(model, design, batch, max(1, sites.rows))
        look = Look.for_model(model, design, sites, batch)
        first = look.run(look.batch, look.v)
        refuse(first, look.batch, sites.depth)
        _same_sites(sites, first)
        _same_parameters(sites, first)
        _no_chance(first, look.run(look.batch, look.v))
        _same_support(sites, first, look)
        whole = (look.stacked, look.batch.mask) if batch is None else (design.stacked(batch), batch.mask)
        if batch is not None:
            refuse_impossible(model, design, sites, *whole)
        refuse_infinite(model, design, sites, *whole)
        if batch is not None:
            warn_undetermined(model, design, sites, *whole)
        _not_coupled(first, look)
        _alone(first, look)
        layout = Layout.from_sites(sites)
        if layout is not None:
            refuse_coupled_rows(look, layout)
        if batch is not None and batch.mask is not None and not sites.rows:
            _padding(look, design, batch, batch.mask)
        return sites


def _parts(trace: Any) -> dict[str, Tensor]:
    return {site["name"]: log_prob(site) for site in densities(trace)}


def _moves(first: Tensor, two: Tensor) -> bool:
    return first.shape != two.shape or not torch.allclose(first, two, rtol=ROUNDING, atol=ROUNDING, equal_nan=True)


def _further(look: Look, names: list[str]) -> list[dict[str, Tensor]]:
    """Densities with these columns of the first client moved by 1: small units hide what depends on them."""
    try:
        return [_parts(look.run(look.further(*names), look.v))] if names else []
    except UserError:  # another number may be impossible in a column, such as an index or a label
        return [parts for name in names for parts in _further(look, [name])] if len(names) > 1 else []


def _couples(old: Tensor, new: Tensor) -> bool:
    """Whether others' densities move with what was changed of the first client, measured by how far its own do.

    So the answer is the same in all units of the data.
    """
    if old.shape != new.shape:
        return True
    apart = (new - old).abs()
    apart = torch.where(old.eq(new) | (old.isnan() & new.isnan()), 0.0, apart)
    first, others = apart[..., :1, :], apart[..., 1:, :]
    reach = first[first.isfinite()].amax().clamp(max=1.0) if bool(first.isfinite().any()) else first.new_ones(())
    allowed = ROUNDING * reach * (1 + old.abs()) + REPEATED * (1 + old.abs())
    return not bool((others <= allowed[..., 1:, :]).all())


def _same_sites(sites: Sites, trace: Any) -> None:
    for latent in sites.latents:
        if latent.name not in trace.nodes:
            raise UserError(
                f"site {latent.name!r} is a latent of some batches only: its number may not depend on the data"
            )
        level = level_of(trace.nodes[latent.name])
        if level != latent.level and not latent.parameter:
            raise UserError(
                f"site {latent.name!r} is within plates of some batches only: it may not depend on the data"
            )


def _same_parameters(sites: Sites, trace: Any) -> None:
    for latent in sites.globals:
        shape = shape_of(trace.nodes[latent.name]) if latent.parameter else None
        if shape not in (None, latent.shape):
            raise UserError(
                f"pyro.param {latent.name!r} has shape {latent.shape} for one client and {shape} for more: it is "
                "everyone's, "
                "and may depend neither on their number nor on rows; give it event_dim=, within the plate of clients, "
                "where each has its own"
            )


def _no_chance(first: Any, again: Any) -> None:
    before, two = _parts(first), _parts(again)
    for name in before:
        if name not in two or _moves(before[name], two[name]):
            raise UserError(
                f"site {name!r} has two log densities at the same latents: draw random numbers by pyro.sample alone"
            )


def _same_support(sites: Sites, trace: Any, look: Look) -> None:
    globals_ = Coordinates(sites.globals).split(look.x)
    for latent in (latent for latent in sites.latents if not latent.parameter):
        site, support = trace.nodes[latent.name], biject_to(trace.nodes[latent.name]["fn"].support)
        free = globals_[latent.name] if latent.axis is None else latent.transform.inv(site["value"])
        with running(look.model):
            moved = _moves(support(free), site["value"])
        if moved:
            raise UserError(
                f"site {latent.name!r} has bounds that other sites or the data set: write it by a latent of "
                "fixed bounds"
            )


def _not_coupled(first: Any, look: Look) -> None:
    moved = look.v.clone()
    moved[0] += 0.5
    before = _parts(first)
    own = False
    numbers = [name for name in look.batch.columns if name not in look.batch.level_names]
    runs = [("latents", _parts(look.run(look.batch, moved))), ("rows", _parts(look.run(look.other, look.v)))]
    for what, after in (*runs, *(("rows", parts) for parts in _further(look, numbers))):
        for name, old in before.items():
            if name not in after:
                raise UserError(f"site {name!r} is there for some rows only: sites may not depend on the data")
            level, new = level_of(first.nodes[name]), after[name]
            if level == "global":
                if _moves(old, new):
                    raise UserError(
                        f"site {name!r} is outside of the plate of clients, and its log density moves with the {what} "
                        "of a client: put it within, or take data and clients' latents out of it"
                    )
            elif _couples(old, new):
                raise UserError(
                    f"site {name!r} couples clients: the log density of one moves with the {what} of another, so that "
                    "it is no sum over clients"
                )
            # In units so large that data are near to 0, a density moves by its last digits alone.
            own |= what == "rows" and level != "global" and not torch.equal(old.nan_to_num(), new.nan_to_num())
    if not own:
        raise UserError("no site moves with the rows: give a site of the rows obs=batch[...]")


def _alone(first: Any, look: Look) -> None:
    own = [(site, log_prob(site)) for site in densities(first) if level_of(site) != "global"]
    clients = Coordinates(look.sites.clients)
    together = summed_out(first, own, {CLIENT: len(look.v)})
    for j, v in enumerate(look.v):
        with torch.no_grad():
            alone = client_log_joint(look.model, look.sites, look.x, v, look.client_alone(j), torch.ones_like(v))
        if _moves(alone - clients.constrained(clients.split(v))[1], together[j]):
            raise UserError(
                f"{_which(first, look, j)} other log densities for a client beside others than for one alone: do "
                "shapes broadcast as (clients, rows)?"
            )


def _which(first: Any, look: Look, j: int) -> str:
    alone = _parts(replace(look, v=look.v[j : j + 1]).run(look.client_alone(j), look.v[j : j + 1]))
    for name, old in _parts(first).items():
        if level_of(first.nodes[name]) != "global" and _moves(old[..., j : j + 1, :], alone[name]):
            return f"site {name!r} has"
    return "the model has"


def _padding(look: Look, design: ColumnDesign, batch: Batch, mask: Tensor) -> None:
    model, sites = look.model, look.sites
    lengths = mask.sum(-1)
    j = int(lengths.argmin())
    rows = min(int(lengths[j]), MAX_ROWS)
    columns = design.stacked(batch)[j : j + 1, :, :rows].clone()
    # Beside the start, where slopes are mostly 0, and what they are multiplied with is not seen.
    x, v, centring = look.x.to(columns), look.v[0].to(columns), torch.ones_like(sites.client_start)
    alone = client_log_joint(model, sites, x, v, named(design, columns, None), centring.to(columns))
    longer = named(design, *design.lengthened(columns, None, rows + 2))
    if _moves(alone, client_log_joint(model, sites, x, v, longer, centring.to(columns))):
        trace = Look(model, sites, longer, longer, x, v[None]).run(longer, v[None])
        outside = [
            site["name"]
            for site in densities(trace)
            if is_data(site) and level_of(site) == "client"
        ]  # fmt: skip
        which = f"site {outside[0]!r}" if outside else "a site"
        raise UserError(
            f"{which} counts rows of padding: put it within plate 'data', or mask it by "
            "poutine.mask(mask=batch.present[..., t, None]); sums and means over rows are of batch.present"
        )
