"""The restricted objective: a method's model and guide on the rows of a plate.

Given the globals, clients are independent, so the rows' objective is the joint model restricted to the plate's rows:

    ELBO_j = E_q(w_j) [ sum_i log p(y_ij | x_ij, w_j, theta) + log p(w_j | w) - log q(w_j) ].

It is returned per row; the gradient of the sum splits by row, so that one backward pass trains S clients. The KL is
analytic where it is exact (both sites from a registered pair, no Delta), the same draws' Monte-Carlo estimate
elsewhere. log p(globals) belongs to no client and is left to the server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from pyro.distributions import Delta, Normal
from pyro.distributions.util import scale_and_mask
from torch import Tensor
from torch.distributions import Independent, TransformedDistribution, kl_divergence

from hierfl.data.batch import Batch
from hierfl.nn.layers.batch_norm import Norms
from hierfl.ppl.frozen_features import FrozenFeatures
from hierfl.ppl.restrict import Site
from hierfl.ppl.sigma_points import Noise
from hierfl.rng import ClientNoise

from .joint_model import JointModel
from .log_joint import log_density, sum_rows
from .sites import guide_latents, model_sites

#: of an ELBO: all, those of the data plate alone, or the others
Terms = Literal["all", "data", "prior"]


def elbo(
    method: JointModel,
    batch: Batch,
    values: Mapping[str, Tensor],
    noise: Noise | None,
    *,
    frozen: FrozenFeatures | None = None,
    analytic: bool = True,
    moving: bool = False,
    latents: Mapping[str, Site] | None = None,
    norms: Norms | None = None,
    terms: Terms = "all",
) -> Tensor:
    """The rows' restricted ELBOs, averaged over the particles of ``noise``: (S,).

    Args:
        method: whose model and guide.
        batch: rows and data.
        values: every parameter and global latent.
        noise: None evaluates at the guide's centre (exact for point guides).
        frozen: outputs of networks that do not move.
        analytic: False estimates every KL from the draws.
        moving: leaves out the terms that have no gradient in the leaves of ``values``.
        latents: the guide's, where they have been drawn already.
        norms: how batch norm normalises; None for by its running statistics.
        terms: "data" for those of the data plate alone, "prior" for the others, which need no data.
    """
    if terms == "prior":  # of no data: nothing is dropped, nothing is normalised by a batch
        batch, norms = batch.narrow(), None
        if isinstance(noise, ClientNoise):
            noise = noise.narrow()
    latents = guide_latents(method, batch, values, noise, norms) if latents is None else latents
    total = torch.zeros(batch.num_clients, dtype=batch.n.dtype, device=batch.n.device)
    drop = noise if terms != "prior" else None
    for name, site in model_sites(method, batch, values, latents, frozen, drop, norms).items():
        if not site.per_client:
            continue  # log p(globals): the server's
        if terms != "all" and site.per_example != (terms == "data"):
            continue
        if moving and not _moves(site) and (site.kind != "latent" or not _moves(latents[name])):
            continue
        if site.kind != "latent":
            total = total + sum_rows(log_density(site.fn, site), batch.num_clients)
            continue
        q = latents[name]
        if analytic and _exact(q.fn) and _exact(site.fn):
            try:
                kl = kl_divergence(q.fn, site.fn)
            except NotImplementedError:
                pass
            else:
                total = total - sum_rows(scale_and_mask(kl, q.scale, q.mask), batch.num_clients)
                # The excess of the model's scale over the guide's, which TraceMeanField_ELBO leaves out.
                if isinstance(more := site.scale - q.scale, Tensor) or more:
                    total = total + sum_rows(
                        scale_and_mask(site.fn.log_prob(site.value), more, q.mask), batch.num_clients
                    )
                continue
        total = (
            total
            + sum_rows(log_density(site.fn, site), batch.num_clients)
            - sum_rows(log_density(q.fn, q), batch.num_clients)
        )
    return total


def _moves(site: Site) -> bool:
    """Whether a site's term may have a gradient: its value or one of its distribution's tensors has one."""
    if site.value.requires_grad or not isinstance(site.fn, Independent):
        return True
    base = site.fn.base_dist
    return type(base) is not Normal or base.loc.requires_grad or base.scale.requires_grad


def _exact(fn: Any) -> bool:
    """Whether a registered KL may be trusted: pyro's own drop a Delta's log_density."""
    while isinstance(fn, Independent):
        fn = fn.base_dist
    return not isinstance(fn, Delta | TransformedDistribution)
