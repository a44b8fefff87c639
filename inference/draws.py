"""Draws of a fitted method for ArviZ: every client's posterior and prior, and what they say of the training data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyro
import torch
from pyro.distributions import Delta, ImproperUniform
from torch import Tensor
from torch.distributions import Independent

from hierfl.arviz_io import to_inference_data
from hierfl.errors import NotFinite
from hierfl.ppl.empirical_draws import EmpiricalDraws
from hierfl.ppl.restrict import Site

from .elbo import guide_latents
from .langevin import STATS, Langevin, stats_of
from .method import State, visible
from .predict import BUDGET, Fitted, has_rows, over_draws, pieces, response, sample_keyed

#: draws by default; where latents belong to single examples each draw is a pass through the data
MOST, ENCODED = 200, 20
CONDITIONAL = "training data at draws of the guide; globals and their hyperparameters are held where the fit left them"
POINT = "; the guide is a point, so this is training likelihood, and leave-one-out says nothing about new data"
Groups = dict[str, dict[str, np.ndarray]]


def inference_data(
    fitted: Fitted, draws: int | None, rows: Sequence[int], float32: bool, limit: float, observed: bool = True
) -> Any:
    """See :meth:`hierfl.inference.run.Run.posterior`; ``rows`` are the clients' places."""
    federation = fitted.federation
    chains, kept = chains_of(fitted)
    dtype = torch.float32 if float32 else federation.dtype
    if draws is None:
        most = ENCODED if any(site.per_example for site in guide_sites(fitted).values()) else kept or MOST
        draws = max(2, min(most, int(limit / bytes_per_draw(fitted, rows, dtype))))
    draws = -(-draws // chains) * chains
    found = _gathered(fitted, rows, draws, dtype)
    names = [federation.ids[j] for j in rows]
    sizes = [len(federation.train[j]) for j in rows]
    constants: dict[str, tuple[tuple[str, ...], np.ndarray]] = {"n": (("client",), np.array(sizes))}
    for name, value in fitted.method.per_client(fitted.values(rows)).items():
        constants[name] = (("client",), value.cpu().numpy())
    for name in global_latents(fitted):
        point = fitted.shared[name].cpu().numpy()
        constants[name] = (tuple(f"{name}_dim_{k}" for k in range(point.ndim)), point)
    return to_inference_data(
        clients=names,
        posterior=found["posterior"],
        prior=found["prior"],
        log_likelihood=found["log_likelihood"],
        posterior_predictive=found["posterior_predictive"],
        sample_stats=found["sample_stats"],
        observed={"y": np.concatenate([federation.y[federation.train[j]].cpu().numpy() for j in rows])}
        if observed
        else {},
        obs_client=np.repeat(np.array(names), sizes).tolist(),
        constants=constants,
        about_log_likelihood=CONDITIONAL + ("" if has_random_guide(fitted) else POINT),
        draws_of=draws_of(fitted),
        coordinates=fitted.method.coordinates,
    )


#: numbers (draws x examples x classes) that clients drawn together hold in one tensor
TOGETHER = 2_000_000
#: groups whose arrays are of the data, (chains, draws, N); the others' are of the clients, (chains, draws, J, *event)
FLAT = ("log_likelihood", "posterior_predictive")


def _gathered(fitted: Fitted, rows: Sequence[int], draws: int, dtype: torch.dtype) -> Groups:
    """The arrays of all these clients, in their order."""
    federation = fitted.federation
    sizes = np.array([len(federation.train[j]) for j in rows])
    firsts = np.cumsum(sizes) - sizes
    found: Groups = {group: {} for group in (*FLAT, "posterior", "prior", "sample_stats")}
    together = 1000 if _separable(fitted) else 1
    cost = max(1, BUDGET // TOGETHER) * draws * max(1, federation.classes)
    for places in pieces(sizes.tolist(), together, cost):
        part = client_draws(fitted, [rows[place] for place in places], draws, dtype)
        for group, arrays in part.items():
            for name, value in arrays.items():
                if name not in found[group]:
                    shape = (int(sizes.sum()),) if group in FLAT else (len(rows), *value.shape[3:])
                    found[group][name] = np.empty((*value.shape[:2], *shape), value.dtype)
                if group not in FLAT:
                    found[group][name][:, :, places] = value
                    continue
                for row, place in enumerate(places):
                    first, n = firsts[place], sizes[place]
                    found[group][name][:, :, first : first + n] = value[:, :, row, :n]
    return found


def _separable(fitted: Fitted) -> bool:
    """Whether the rows of a plate can be drawn each by itself: responses, and latents from their prior."""
    one = replace(fitted, copies={}, personal={k: v[:1] for k, v in fitted.personal.items()})
    latents, sites = one.personal_sites([0], fitted.federation.template(), 0)
    personal = [sites[name].fn for name, site in latents.items() if not site.per_example]
    return all(has_rows(fn) or isinstance(fn, ImproperUniform) for fn in [response(sites).fn, *personal])


def client_draws(fitted: Fitted, rows: Sequence[int], draws: int, dtype: torch.dtype) -> Groups:
    """Some clients' arrays: posterior and prior (chains, draws, S, *event), the data's (chains, draws, S, n), padded.

    sample_stats, (chains, draws, S), has lp, the log density of the client's latents and data, where the guide is of
    the client's latents alone and no point; where it is a density, guide_lp, its own (:func:`hierfl.arviz_io.loo`
    needs both); of chains the step size and, of Metropolis-adjusted ones, acceptance_rate and diverging
    (:data:`hierfl.inference.langevin.STATS`).

    Labels are int16. One chain where the guide is no chain's, and for the prior.

    Raises:
        NotFinite: for a model that has diverged.
    """
    federation, clients = fitted.federation, [fitted.federation.ids[j] for j in rows]
    batch, noise, parts = federation.batch(rows), fitted.noise(rows, draws, "posterior"), []
    for number, piece in enumerate(fitted.pieces(batch, draws)):
        latents, sites = fitted.personal_sites(rows, piece, draws, noise=noise)
        y, place = response(sites), (number,) if number else ()
        density = y.fn.log_prob(y.value)
        density = density if piece.mask is None else torch.where(piece.mask, density, 0.0)
        fine = over_draws(density).isfinite().all(0).all(-1)
        if not bool(fine.all()):  # (nor can anything be drawn from it)
            client = clients[int((~fine).nonzero()[0])]
            raise NotFinite(f"the model of client {client} says nothing finite of its training data")
        keys = [(fitted.seed, "posterior_predictive", client, *place) for client in clients]
        counts = [piece.width] * len(rows) if piece.mask is None else piece.mask.sum(1).tolist()
        parts.append((density, sample_keyed(y.fn, draws, federation.device, keys, counts)))
    density, said = (torch.cat(same, -1) for same in zip(*parts, strict=True))

    chains, _ = chains_of(fitted)

    def drawn(value: Tensor, event: int, chains: int = chains) -> np.ndarray:
        """([K,] S, 1 or n, *event) -> (chains, K / chains, S, 1 or n, *event)."""
        value = value if value.dim() == 3 + event else value.expand(draws, *value.shape)
        return value.to(dtype).cpu().numpy().reshape(chains, -1, *value.shape[1:])

    groups: Groups = {"posterior": {}, "prior": {}}
    personal = {name: site for name, site in latents.items() if not site.per_example}  # a client's, not an example's
    for name, site in personal.items():
        groups["posterior"][name] = drawn(site.value, len(site.fn.event_shape)).squeeze(3)
    if personal and not any(isinstance(sites[name].fn, ImproperUniform) for name in latents):  # (a flat prior cannot)
        template, purposes = federation.template(len(rows)), [("prior", client) for client in clients]
        prior = fitted.prior_sites(template, fitted.values(rows), draws, purposes)
        for name in personal:
            groups["prior"][name] = drawn(prior[name].value, len(prior[name].fn.event_shape), 1).squeeze(3)
    stats: dict[str, Tensor] = {}
    if personal.keys() == latents.keys() and personal and not any(_point(site.fn) for site in personal.values()):
        p = sum(sites[k].fn.log_prob(site.value) for k, site in personal.items())
        stats["lp"] = p.squeeze(-1) + density.sum(-1)
        if not any(isinstance(site.fn, EmpiricalDraws) for site in personal.values()):
            stats["guide_lp"] = sum(site.fn.log_prob(site.value) for site in personal.values()).squeeze(-1)
    groups["sample_stats"] = {k: drawn(v[..., None], 0).squeeze(3) for k, v in stats.items()}
    groups["sample_stats"] |= chain_stats(fitted, rows, draws, dtype)
    predicted = drawn(said, 0)
    groups["log_likelihood"] = {"y": drawn(density, 0)}
    groups["posterior_predictive"] = {
        "y": predicted.astype(np.int16) if federation.task == "classification" else predicted
    }
    return groups


def chain_stats(fitted: Fitted, rows: Sequence[int], draws: int, dtype: torch.dtype) -> dict[str, np.ndarray]:
    """What the chains of the method's posterior steps tell of their draws: (chains, draws, S) each; empty without."""
    held = [fitted.personal[kept] for name in guide_sites(fitted) if (kept := stats_of(name)) in fitted.personal]
    if not held:
        return {}
    chains, _ = chains_of(fitted)
    some = EmpiricalDraws(held[0][list(rows)], 1).some(draws).to(dtype).cpu().numpy()
    told = dict(zip(STATS, np.moveaxis(some.reshape(chains, -1, *some.shape[1:]), -1, 0), strict=True))
    told["diverging"] = told["diverging"] > 0
    if not any(isinstance(step, Langevin) and step.metropolis for step in fitted.method.posterior()):
        return {"step_size": told["step_size"]}  # (where every step is taken)
    return told


def _point(fn: Any) -> bool:
    """Whether a guide's site is a point."""
    while isinstance(fn, Independent):
        fn = fn.base_dist
    return isinstance(fn, Delta)


def guide_sites(fitted: Fitted) -> dict[str, Site]:
    """The guide's latents, of somebody without data."""
    with pyro.validation_enabled(False), torch.no_grad():  # (what diverged is told elsewhere)
        return guide_latents(fitted.method, fitted.federation.template(), one_client(fitted), None)


def one_client(fitted: Fitted) -> State:
    """Values with which a model can be run on one row, whoever it is."""
    return visible(fitted.shared, {k: v[:1].unsqueeze(1) for k, v in fitted.personal.items()})


def bytes_per_draw(fitted: Fitted, rows: Sequence[int], dtype: torch.dtype) -> float:
    """How much one more draw adds to the file, about: posterior and prior; what it says of the data, twice; stats."""
    numbers = sum(math.prod(s.fn.event_shape) for s in guide_sites(fitted).values() if not s.per_example)
    each = len(rows) * (2 * numbers + len(STATS) + 1) + 2 * sum(len(fitted.federation.train[j]) for j in rows)
    return float(dtype.itemsize * each)


def chains_of(fitted: Fitted) -> tuple[int, int]:
    """How many chains the guide holds, and how many draws in all: 1 and 0 where it is not made of draws."""
    latents = guide_sites(fitted)
    held = {site.fn.draws.shape[2:4] if isinstance(site.fn, EmpiricalDraws) else None for site in latents.values()}
    if len(held) != 1 or None in held:
        return 1, 0
    personal = next(site.fn for site in latents.values())
    return personal.chains, personal.chains * personal.kept


def global_latents(fitted: Fitted) -> list[str]:
    """The shared values that are latents of the model, not parameters."""
    one = replace(fitted, copies={}, personal={k: v[:1] for k, v in fitted.personal.items()})
    _, sites = one.personal_sites([0], fitted.federation.template(), 0)
    return [name for name, site in sites.items() if site.kind == "fixed" and name in fitted.shared]


def draws_of(fitted: Fitted) -> str:
    """What a fit's draws are: of "chains", of a "guide", of a "point", or of latents of single "examples"."""
    if not has_random_guide(fitted):
        return "point"
    if any(site.per_example for site in guide_sites(fitted).values()):
        return "examples"
    return "chains" if chains_of(fitted)[1] else "guide"


def has_random_guide(fitted: Fitted) -> bool:
    """Whether some personal latent has a posterior that is no point."""
    return not all(_point(site.fn) for site in guide_sites(fitted).values())
