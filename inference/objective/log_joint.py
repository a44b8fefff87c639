"""The restricted log joint, and the log density of the globals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from pyro.distributions.util import scale_and_mask
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.errors import unknown
from hierfl.ppl.frozen_features import FrozenFeatures
from hierfl.ppl.restrict import Restrict, Site

from ..state import client_view
from .joint_model import JointModel
from .sites import guide_latents, model_sites


def log_joint(
    method: JointModel,
    batch: Batch,
    values: Mapping[str, Tensor],
    latents: Mapping[str, Tensor],
    *,
    frozen: FrozenFeatures | None = None,
) -> Tensor:
    """The rows' restricted log joints, log p(w_j | w) + sum_i log p(y_ij | x_ij, w_j, theta): (K, S).

    Args:
        method: whose model.
        batch: rows and data.
        values: every parameter and global latent.
        latents: values of the personal latents, {name: (K, S, 1, *event)}.
        frozen: outputs of networks that do not move.

    Raises:
        UserError: for a latent that the model does not have.
    """
    with Restrict(values, latents=latents, frozen=frozen) as restricted:
        method.model(batch)
    for name in latents:
        if name not in restricted.sites:
            raise unknown("latent", name, [k for k, site in restricted.sites.items() if site.kind == "latent"])
    terms = [log_density(site.fn, site).sum(-1) for site in restricted.sites.values() if site.per_client]
    return torch.stack(torch.broadcast_tensors(*terms)).sum(0)


def log_density(fn: Any, site: Site) -> Tensor:
    return scale_and_mask(fn.log_prob(site.value), site.scale, site.mask)


def sum_rows(terms: Tensor, rows: int) -> Tensor:
    """(..., S, n) or (..., S, 1) -> (S,): mean over the dimensions left of the clients, sum over data."""
    if terms.dim() > 2:
        terms = terms.flatten(0, -3).mean(0)
    terms = terms.sum(-1)
    return terms if terms.shape == (rows,) else terms.expand(rows)


def global_log_prob(
    method: JointModel, batch: Batch, shared: Mapping[str, Tensor], personal: Mapping[str, Tensor]
) -> Tensor:
    """log p(globals): the sites of the model outside the client plate, at the shared values, observed ones included.

    Args:
        batch: any batch; :meth:`~hierfl.data.federation.Federation.template` will do.
        shared: the globals.
        personal: one row of personal values (S, 1, *shape), which the sum does not depend on.
    """
    values = client_view(shared, personal)
    latents = guide_latents(method, batch, values, None)
    total = torch.zeros((), dtype=batch.n.dtype, device=batch.n.device)
    for site in model_sites(method, batch, values, latents).values():
        if not site.per_client and site.kind != "latent":
            total = total + log_density(site.fn, site).sum()
    return total
