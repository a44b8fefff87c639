"""Draws of some clients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from pyro.distributions import ImproperUniform
from torch import Tensor

from hierfl.errors import NotFinite
from hierfl.ppl.empirical_draws import EmpiricalDraws

from ..evaluation.fitted import Fitted
from ..evaluation.keyed_draws import sample_keyed
from ..evaluation.response import over_draws, response
from ..evaluation.trace import is_point
from ..local.langevin.moved_head import MovedHead
from ..local.langevin.names import STATS, stats_of
from ..local.langevin.step import Langevin
from ..method.capabilities import in_users_units

Groups = dict[str, dict[str, np.ndarray]]


def client_draws(fitted: Fitted, rows: Sequence[int], draws: int, dtype: torch.dtype) -> Groups:
    """Some clients' arrays: posterior and prior (chains, draws, S, *event), the data's (chains, draws, S, n), padded.

    sample_stats, (chains, draws, S), has lp, the log density of the client's latents and data, where the guide is of
    the client's latents alone and no point, and their prior has not seen the data; where it is a density, guide_lp, its
    own (:func:`hierfl.arviz_io.loo` needs both); of chains the step size and, of Metropolis-adjusted ones,
    acceptance_rate and diverging (:data:`hierfl.inference.local.langevin.names.STATS`).

    Labels are int16. One chain where the guide is no chain's, and for the prior.

    Raises:
        NotFinite: for a model that has diverged.
    """
    federation, units, clients = fitted.federation, fitted.federation.units, [fitted.federation.ids[j] for j in rows]
    batch, noise, parts = federation.batch(rows), fitted.noise(rows, draws, "posterior"), []
    replicated = fitted.noise(rows, draws, "posterior_predictive")
    for piece in fitted.pieces(batch, draws):
        latents, sites = fitted.personal_sites(rows, piece, draws, noise=noise, joint=True)
        y = response(sites)
        density = y.fn.log_prob(y.value) if units is None else units.density(y.fn.log_prob(y.value))
        density = density if piece.mask is None else torch.where(piece.mask, density, 0.0)
        fine = over_draws(density).isfinite().all(0).all(-1)
        if not bool(fine.all()):  # nor can anything be drawn from it
            client = clients[int((~fine).nonzero()[0])]
            raise NotFinite(f"the model of client {client} says nothing finite of its training data")
        replicated.counts = piece.present()
        replica = sample_keyed(y.fn, replicated, y.name)
        parts.append((density, replica if units is None else units.users(replica)))
    density, drawn_y = (torch.cat(same, -1) for same in zip(*parts, strict=True))

    chains = fitted.trace.chains

    def drawn(value: Tensor, event: int, chains: int = chains) -> np.ndarray:
        """([K,] S, 1 or n, *event) -> (chains, K / chains, S, 1 or n, *event)."""
        value = value if value.dim() == 3 + event else value.expand(draws, *value.shape)
        return value.to(dtype).cpu().numpy().reshape(chains, -1, *value.shape[1:])

    groups: Groups = {"posterior": {}, "prior": {}}
    personal = {name: site for name, site in latents.items() if not site.per_example}  # a client's, not an example's
    for name, site in personal.items():
        value = in_users_units(fitted.method, name, site.value)
        groups["posterior"][name] = drawn(value, len(site.fn.event_shape)).squeeze(3)
    flat = any(isinstance(sites[name].fn, ImproperUniform) for name in latents)
    if personal and not flat and not fitted.method.prior_has_seen_data:
        noise = fitted.noise(rows, draws, "prior")
        values = {**fitted.values(rows), **fitted.shared_draws(draws)}
        prior = fitted.prior_sites(federation.template(len(rows)), values, noise)
        for name in personal:
            value = in_users_units(fitted.method, name, prior[name].value)
            groups["prior"][name] = drawn(value, len(prior[name].fn.event_shape), 1).squeeze(3)
    stats: dict[str, Tensor] = {}
    ours = personal.keys() == latents.keys() and not fitted.method.prior_has_seen_data
    if ours and personal and not any(is_point(site.fn) for site in personal.values()):
        p = sum(sites[k].fn.log_prob(site.value) for k, site in personal.items())
        stats["lp"] = p.squeeze(-1) + density.sum(-1)
        if not any(isinstance(site.fn, EmpiricalDraws) for site in personal.values()):
            stats["guide_lp"] = sum(site.fn.log_prob(site.value) for site in personal.values()).squeeze(-1)
    groups["sample_stats"] = {k: drawn(v[..., None], 0).squeeze(3) for k, v in stats.items()}
    groups["sample_stats"] |= chain_stats(fitted, rows, draws, dtype)
    predicted = drawn(in_users_units(fitted.method, "y", drawn_y), 0)
    groups["log_likelihood"] = {"y": drawn(density, 0)}
    groups["posterior_predictive"] = {
        "y": predicted.astype(np.int16) if federation.task == "classification" else predicted
    }
    return groups


def chain_stats(fitted: Fitted, rows: Sequence[int], draws: int, dtype: torch.dtype) -> dict[str, np.ndarray]:
    """What the chains of the method's posterior steps tell of their draws: (chains, draws, S) each; empty without."""
    stats_kept = [fitted.personal[kept] for name in fitted.trace.latents if (kept := stats_of(name)) in fitted.personal]
    if not stats_kept:
        return {}
    chains = fitted.trace.chains
    some = EmpiricalDraws(stats_kept[0][list(rows)], 1).some(draws).to(dtype).cpu().numpy()
    stats = dict(zip(STATS, np.moveaxis(some.reshape(chains, -1, *some.shape[1:]), -1, 0), strict=True))
    stats["diverging"] = stats["diverging"] > 0
    steps = fitted.method.schedule().final_steps
    if not any(isinstance(s, MovedHead) or (isinstance(s, Langevin) and s.metropolis) for s in steps):
        return {"step_size": stats["step_size"]}  # where every step is taken
    return stats
