"""Whether a model has log densities and slopes where its fit starts."""

from __future__ import annotations

from typing import Any

import torch
from pyro.distributions import Unit
from pyro.distributions.torch_distribution import MaskedDistribution
from pyro.distributions.util import scale_and_mask
from torch import Tensor
from torch.distributions import constraints

from hierfl.data.column_design import ColumnDesign
from hierfl.errors import UserError

from .densities import densities, kind, log_prob, unwrapped
from .enumerating import is_enumerated
from .evaluating import Clients
from .levels import Model, is_data
from .look import START_SD, Look, named
from .running import running
from .sites import Sites


def refuse_infinite(model: Model, design: ColumnDesign, sites: Sites, columns: Tensor, mask: Tensor | None) -> None:
    """A log density, or a slope of one, that is no number where a fit starts: near to the start, on both of its sides.

    Args:
        model, design, sites: whose.
        columns: of S clients, (S, columns, n).
        mask: (S, n), or None.

    Raises:
        UserError: which names the site.
    """
    count = len(columns)
    ones = torch.ones(count, len(sites.client_start)).to(columns)
    clients = Clients(model, sites, design, columns, mask, ones)
    for side in (START_SD, -START_SD):
        x, v = (near.expand(1, count, -1).clone().requires_grad_() for near in _near(sites, columns, side))
        h = clients.log_joint(x, v)
        slopes = torch.autograd.grad(h.sum(), (x, v), materialize_grads=True) if h.requires_grad else (x, v)
        bad = ~(h.isfinite() & torch.cat(slopes, -1).isfinite().all(-1))[0]
        if bad.any():
            break
    else:
        return
    columns, mask = design.lengthened(columns, mask, sites.rows)
    j = int(bad.nonzero()[0])
    client = named(design, columns[j : j + 1], None if mask is None else mask[j : j + 1])
    at, own = x[0, 0].detach().requires_grad_(), v[0, :1].detach().requires_grad_()
    trace = Look(model, sites, client, client, at, own).run(client, own)
    for site in densities(trace):
        _finite_site(model, site, (at, own))
    raise UserError("the discrete latents leave no way to a client's data where the fit starts")


def refuse_impossible(model: Model, design: ColumnDesign, sites: Sites, columns: Tensor, mask: Tensor | None) -> None:
    """Data outside of a support that is fixed: many distributions have a finite log density there all the same.

    Args:
        model, design, sites: whose.
        columns: of S clients, (S, columns, n).
        mask: (S, n), or None.

    Raises:
        UserError: which names the site. Rows that are masked, or whose scale is zero, do not count.
    """
    batch = named(design, *design.lengthened(columns, mask, sites.rows))
    x, v = sites.start.to(columns), sites.client_start.to(columns).expand(len(columns), -1)
    for site in densities(Look(model, sites, batch, batch, x, v).run(batch, v)):
        fn = unwrapped(site["fn"])
        if not is_data(site) or isinstance(fn, Unit):
            continue
        try:
            support = site["fn"].support
        except NotImplementedError:  # a distribution of the user's own has none
            continue
        if support.is_discrete or fn.support in (constraints.positive, constraints.nonnegative):
            with running(model):
                outside = ~support.check(site["value"])
                counted = scale_and_mask(torch.ones_like(outside, dtype=torch.float64), site["scale"], _mask_of(site))
            if (outside & (counted != 0)).any():
                raise _impossible(site)


def _mask_of(site: dict[str, Any]) -> Any:
    """That of poutine.mask and plates, and that of a masked distribution."""
    mask, fn = site["mask"], site["fn"]
    while fn is not unwrapped(fn):
        if isinstance(fn, MaskedDistribution) and fn._mask is not None:
            mask = fn._mask if mask is None else mask & fn._mask
        fn = fn.base_dist
    return mask


def _impossible(site: dict[str, Any]) -> UserError:
    name = site["name"]
    return UserError(f"site {name!r} is observed at a value that is missing, or impossible under {kind(site['fn'])}")


def _near(sites: Sites, like: Tensor, side: float) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    starts = sites.start, sites.client_start
    made = [start + side * torch.randn(start.shape, generator=generator, dtype=torch.float64) for start in starts]
    return made[0].to(like), made[1].to(like)


def _finite_site(model: Model, site: dict[str, Any], latents: tuple[Tensor, Tensor]) -> None:
    name, density = site["name"], log_prob(site)
    if not density.isfinite().all() and not is_enumerated(site):
        if is_data(site):
            with running(model):
                outside = not bool(site["fn"].support.check(site["value"]).all())
            if outside:
                raise _impossible(site)
        nan = bool(density.isnan().any())
        raise UserError(
            f"site {name!r} has the log density {'nan' if nan else 'inf'} where the fit starts, at the prior's means: "
            "is a column empty or large, a scale not positive, or a logarithm, root or division without bounds?"
        )
    if density.requires_grad:
        slopes = torch.autograd.grad(density.sum(), latents, materialize_grads=True, retain_graph=True)
        if not all(slope.isfinite().all() for slope in slopes):
            raise UserError(
                f"site {name!r} has no finite gradient where the fit starts: bound a logarithm, root or division at "
                "its argument, as torch.where does not stop nan"
            )
