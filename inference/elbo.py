"""The restricted objective: a method's model and guide on the rows of a plate.

Given the globals, clients are independent, so the rows' objective is the joint model restricted to the plate's rows:

    ELBO_j = E_q(w_j) [ sum_i log p(y_ij | x_ij, w_j, theta) + log p(w_j | w) - log q(w_j) ].

It is returned per row; the gradient of the sum splits by row, so that one backward pass trains S clients. The KL is
analytic where it is exact (both sites from a registered pair, no Delta), the same draws' Monte-Carlo estimate
elsewhere. log p(globals) belongs to no client and is left to the server.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

import pyro
import torch
from pyro.distributions import Delta, Normal
from pyro.distributions.util import scale_and_mask
from torch import Tensor
from torch.distributions import Independent, TransformedDistribution, kl_divergence

from hierfl.data.batch import Batch
from hierfl.data.federation import Federation
from hierfl.data.padding import buckets, pad
from hierfl.errors import UserError, unknown
from hierfl.nn.layers.batch_norm import Norms, is_statistic
from hierfl.ppl.frozen_features import FrozenFeatures
from hierfl.ppl.guide_draws import draw_with
from hierfl.ppl.restrict import Restrict, Site
from hierfl.ppl.sigma_points import Noise
from hierfl.rng import ClientNoise

from .method import Local, Method, State, visible

#: of an ELBO: all, those of the data plate alone, or the others
Terms = Literal["all", "data", "prior"]


def guide_latents(
    method: Method, batch: Batch, values: Mapping[str, Tensor], noise: Noise | None, norms: Norms | None = None
) -> dict[str, Site]:
    """Runs the guide: each personal latent's distribution and value, (K, S, 1 or n, *event), no K at its centre."""
    with Restrict(values, draw=draw_with(noise), norms=norms) as seen:
        method.guide(batch)
    for name, site in seen.sites.items():
        if site.kind == "latent" and not site.per_client:
            raise UserError(
                f"guide site {name!r} stands outside the client plate; a global latent is a point: name it in shared()"
            )
    return {name: site for name, site in seen.sites.items() if site.kind == "latent"}


class _Peeked(Exception):
    """A guide has looked at data."""


class _Outline:
    """A batch without its data: what a guide of the client plate alone needs to know."""

    def __init__(self, batch: Batch) -> None:
        self.rows, self.row_numbers, self.n = batch.num_clients, batch.row_numbers, batch.n

    def __getattr__(self, name: str) -> Any:
        raise _Peeked(name)


def standing_latent(
    method: Method, batch: Batch, values: Mapping[str, Tensor], noise: ClientNoise, moving: Collection[str]
) -> Site | None:
    """The guide's only latent, if its distribution is the same at every step: it need not be asked again for it.

    It is where the guide asks for no value that moves, looks at no data, and has no other latent on which this one
    might depend. None otherwise.
    """
    with Restrict(values, draw=draw_with(noise)) as seen:
        try:
            method.guide(_Outline(batch))  # type: ignore[arg-type]
        except _Peeked:
            return None
    if len(seen.sites) != 1 or not seen.asked.isdisjoint(moving):
        return None
    (site,) = seen.sites.values()
    return site if site.kind == "latent" and site.per_client else None


def model_sites(
    method: Method,
    batch: Batch,
    values: Mapping[str, Tensor],
    latents: Mapping[str, Site],
    frozen: FrozenFeatures | None = None,
    noise: Noise | None = None,
    norms: Norms | None = None,
) -> dict[str, Site]:
    """Runs the model with the guide's draws, and dropout where there is noise for it."""
    drawn, drop = {name: site.value for name, site in latents.items()}, None
    if isinstance(noise, ClientNoise):

        def drop(name: str, x: Tensor) -> Tensor:
            return noise.normal(name, x.shape[-2], x.shape[-1:])[0]  # one mask for all particles

    with Restrict(values, latents=drawn, frozen=frozen, drop=drop, norms=norms) as seen:
        method.model(batch)
    unused = latents.keys() - seen.sites.keys()
    if unused:
        raise UserError(f"guide site {sorted(unused)[0]!r} is not a latent of the model")
    return seen.sites


def elbo(
    method: Method,
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
    if terms == "prior":  # (of no data: nothing is dropped, nothing is normalised by a batch)
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
            total = total + _rows(_log_density(site.fn, site), batch.num_clients)
            continue
        q = latents[name]
        if analytic and _exact(q.fn) and _exact(site.fn):
            try:
                kl = kl_divergence(q.fn, site.fn)
            except NotImplementedError:
                pass
            else:
                total = total - _rows(scale_and_mask(kl, q.scale, q.mask), batch.num_clients)
                # what the model's site counts more than the guide's (TraceMeanField_ELBO leaves it out)
                if isinstance(more := site.scale - q.scale, Tensor) or more:
                    total = total + _rows(scale_and_mask(site.fn.log_prob(site.value), more, q.mask), batch.num_clients)
                continue
        total = (
            total
            + _rows(_log_density(site.fn, site), batch.num_clients)
            - _rows(_log_density(q.fn, q), batch.num_clients)
        )
    return total


def log_joint(
    method: Method,
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
    with Restrict(values, latents=latents, frozen=frozen) as seen:
        method.model(batch)
    for name in latents:
        if name not in seen.sites:
            raise unknown("latent", name, [k for k, site in seen.sites.items() if site.kind == "latent"])
    terms = [_log_density(site.fn, site).sum(-1) for site in seen.sites.values() if site.per_client]
    return torch.stack(torch.broadcast_tensors(*terms)).sum(0)


def _moves(site: Site) -> bool:
    """Whether a site's term may have a gradient: its value or one of its distribution's tensors has one."""
    if site.value.requires_grad or not isinstance(site.fn, Independent):
        return True
    base = site.fn.base_dist
    return type(base) is not Normal or base.loc.requires_grad or base.scale.requires_grad


def _log_density(fn: Any, site: Site) -> Tensor:
    return scale_and_mask(fn.log_prob(site.value), site.scale, site.mask)


def _exact(fn: Any) -> bool:
    """Whether a registered KL may be trusted: pyro's own drop a Delta's log_density."""
    while isinstance(fn, Independent):
        fn = fn.base_dist
    return not isinstance(fn, Delta | TransformedDistribution)


def _rows(terms: Tensor, rows: int) -> Tensor:
    """(..., S, n) or (..., S, 1) -> (S,): mean over what stands left of the clients, sum over data."""
    if terms.dim() > 2:
        terms = terms.flatten(0, -3).mean(0)
    terms = terms.sum(-1)
    return terms if terms.shape == (rows,) else terms.expand(rows)


def global_log_prob(
    method: Method, batch: Batch, shared: Mapping[str, Tensor], personal: Mapping[str, Tensor]
) -> Tensor:
    """log p(globals): the sites of the model outside the client plate, at the shared values, observed ones included.

    Args:
        batch: any batch; :meth:`Federation.template` will do.
        shared: the globals.
        personal: one row of personal values (S, 1, *shape), which the sum does not depend on.
    """
    values = visible(shared, personal)
    latents = guide_latents(method, batch, values, None)
    total = torch.zeros((), dtype=batch.n.dtype, device=batch.n.device)
    for site in model_sites(method, batch, values, latents).values():
        if not site.per_client and site.kind != "latent":
            total = total + _log_density(site.fn, site).sum()
    return total


def check_rows(method: Method, federation: Federation, shared: State, personal: State) -> None:
    """Checks that what a client's ELBO is does not depend on who stands beside it in the plate.

    Two clients with a few examples each and states that differ, once together and once alone.

    Raises:
        UserError: if it does.
    """
    if federation.clients < 2:
        return
    picked = [federation.train[j][:3] for j in (0, 1)]
    own = {k: torch.stack([v, v * 1.1]).unsqueeze(1) for k, v in personal.items()}

    def value(rows: list[int]) -> Tensor:
        index, mask = pad([picked[j] for j in rows])
        batch = federation.gather(index, mask, rows)
        noise = ClientNoise(
            [("rows", j) for j in rows], 3, counts=[len(picked[j]) for j in rows],
            device=federation.device, dtype=federation.dtype,
        )  # fmt: skip
        return elbo(method, batch, visible(shared, {k: v[rows] for k, v in own.items()}), noise)

    with torch.no_grad():
        together, alone = value([0, 1]), torch.cat([value([0]), value([1])])
    if together.isfinite().all() and not torch.allclose(together, alone, rtol=1e-3, atol=1e-3):
        raise UserError(
            "the model or guide mixes clients: a client's ELBO changes with who stands beside it in the plate "
            f"({together.tolist()} together, {alone.tolist()} alone)"
        )


def check_shapes(
    method: Method, federation: Federation, shared: State, personal: State, rows: Sequence[str]
) -> dict[str, Site]:
    """Runs guide and model once on empty data and checks that every site has its plates' shape.

    A parameter with one dimension too few or too many broadcasts clients against data or particles without a word,
    and biases everything. Two clients, three particles and five examples leave it nowhere to hide.

    Args:
        method: whose model and guide.
        federation: for the shape of the data.
        shared: {name: (*shape)}.
        personal: one row, {name: (*shape)}.
        rows: shared values that clients train or differentiate by.

    Returns:
        The model's sites.

    Raises:
        UserError: naming the site.
    """
    clients, particles, width = 2, 3, 5
    own = {k: v.expand(clients, 1, *v.shape) for k, v in {**{k: shared[k] for k in rows}, **personal}.items()}
    batch, values = federation.template(clients, width), visible(shared, own)
    noise = ClientNoise([("shapes", j) for j in range(clients)], particles, device=batch.x.device, dtype=batch.n.dtype)
    with torch.no_grad():
        latents = guide_latents(method, batch, values, noise)
        sites = model_sites(method, batch, values, latents)
    for name, site in [*latents.items(), *sites.items()]:
        if site.kind == "latent" and not site.per_client:
            raise UserError(f"model site {name!r} is in the guide's client plate, but not in the model's")
        expected = (clients, width if site.per_example else 1)
        shape = tuple(site.fn.batch_shape)
        if site.per_client and (shape[-2:] != expected or shape[:-2] not in ((), (1,), (particles,))):
            raise UserError(
                f"site {name!r} has batch shape {shape} for {clients} clients, {width} examples and {particles} "
                f"particles, expected {expected}: a parameter has one dimension too few or too many (a scalar beside a "
                "vector needs shape (1,), one beside the data shape ()), or the site lacks .to_event"
            )
    return sites


def leaves(local: Local, names: Sequence[str]) -> State:
    """Autograd leaves that share the rows' memory, so that an optimiser's step is seen in them."""
    return {k: local.rows[k].detach().requires_grad_() for k in names if not is_statistic(k)}


def elbo_gradient(local: Local, names: Sequence[str], particles: int, phase: object) -> State:
    """Each row's gradient of its restricted ELBO in shared values, at what was broadcast: {name: (S, *shape)}.

    A row's own copy of one of these values plays no part: the gradient belongs to the value that the server holds.

    Args:
        local: the rows.
        names: the shared values.
        particles: K, draws of the guide.
        phase: keys them.
    """
    rows = {k: v for k, v in local.rows.items() if k not in names}
    at_broadcast = dataclasses.replace(local, rows=rows).own(names)
    gradients = {k: torch.zeros_like(at_broadcast.rows[k]) for k in names}
    with pyro.validation_enabled(False), torch.enable_grad():
        for first, last in buckets(local.sizes):
            part = at_broadcast.part(first, last)
            batch = part.batch()
            copies = leaves(part, names)
            noise = part.noise(phase, particles, part.sizes)
            objective = elbo(local.method, batch, {**part.values, **copies}, noise)
            if not objective.requires_grad:
                continue  # a value that only log p(globals) knows: the server's own gradient moves it
            found = torch.autograd.grad(objective.sum(), list(copies.values()), allow_unused=True)
            for name, gradient in zip(copies, found, strict=True):
                if gradient is not None:
                    gradients[name][first:last] = gradient
    return {k: g.squeeze(1) for k, g in gradients.items()}
