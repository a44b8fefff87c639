"""Draws of a fitted method for ArviZ: every client's posterior and prior, and what they say of the training data."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pyro
import torch
from pyro.distributions import Delta, ImproperUniform
from torch import Tensor
from torch.distributions import Independent

from hierfl.chains import Draws
from hierfl.errors import NotFinite
from hierfl.plates import Site
from hierfl.posterior import to_inference_data

from .method import State, visible
from .predict import Fitted, response, sample_keyed
from .svi import guide_latents

#: draws by default; where latents belong to single examples each draw is a pass through the data
MOST, ENCODED = 200, 20
CONDITIONAL = "training data at draws of the guide; globals and their hyperparameters are held where the fit left them"
POINT = "; the guide is a point, so this is training likelihood, and leave-one-out says nothing about new data"
Groups = dict[str, dict[str, np.ndarray]]


def inference_data(fitted: Fitted, draws: int | None, limit: float) -> Any:
    """See :meth:`hierfl.inference.run.Run.posterior`."""
    federation = fitted.federation
    chains, kept = chains_of(fitted)
    if draws is None:
        most = ENCODED if any(site.per_example for site in guide_sites(fitted).values()) else kept or MOST
        draws = max(2, min(most, int(limit / bytes_per_draw(fitted))))
    draws = -(-draws // chains) * chains
    parts = [client_draws(fitted, j, draws) for j in range(federation.clients)]

    def gathered(group: str) -> dict[str, np.ndarray]:
        join = np.stack if group in ("posterior", "prior", "sample_stats") else np.concatenate
        return {name: join([part[group][name] for part in parts], axis=2) for name in parts[0][group]}

    everyone = fitted.values(range(federation.clients))
    constants: dict[str, tuple[tuple[str, ...], np.ndarray]] = {"n": (("client",), np.array(federation.sizes()))}
    for name, value in fitted.method.per_client(everyone).items():
        constants[name] = (("client",), value.cpu().numpy())
    for name in global_latents(fitted):
        point = fitted.shared[name].cpu().numpy()
        constants[name] = (tuple(f"{name}_dim_{k}" for k in range(point.ndim)), point)
    return to_inference_data(
        clients=federation.ids,
        posterior=gathered("posterior"),
        prior=gathered("prior"),
        log_likelihood=gathered("log_likelihood"),
        posterior_predictive=gathered("posterior_predictive"),
        sample_stats=gathered("sample_stats"),
        observed={"y": np.concatenate([federation.y[i].cpu().numpy() for i in federation.train])},
        obs_client=np.repeat(np.array(federation.ids), federation.sizes()).tolist(),
        constants=constants,
        about_log_likelihood=CONDITIONAL + ("" if has_random_guide(fitted) else POINT),
        draws_of=draws_of(fitted),
    )


def client_draws(fitted: Fitted, j: int, draws: int) -> Groups:
    """One client's arrays: posterior and prior (chains, draws, *event), the data's (chains, draws, n_j).

    Where the guide is of the client's latents alone, no chain's and no point, sample_stats has its log density at the
    draws (chains, draws), and that of the client's latents and data: what :func:`hierfl.posterior.loo` needs.

    float32 or int16; one chain where the guide is no chain's, and for the prior.
    """
    federation = fitted.federation
    client = federation.ids[j]
    noise, parts = fitted.noise([j], draws, "posterior"), []
    for number, piece in enumerate(fitted.pieces(federation.batch([j]), draws)):
        latents, sites = fitted.personal_sites([j], piece, draws, noise=noise)
        y, place = response(sites), (number,) if number else ()
        density = y.fn.log_prob(y.value)
        if not bool(density.isfinite().all()):
            raise NotFinite(f"the model of client {client} says nothing finite of its training data")
        new = sample_keyed(y.fn, draws, federation.device, fitted.seed, "posterior_predictive", client, *place)
        parts.append((density, new))
    density, said = (torch.cat(same, -1) for same in zip(*parts, strict=True))

    chains, _ = chains_of(fitted)

    def drawn(value: Tensor, event: int, chains: int = chains) -> np.ndarray:
        """([K,] 1, 1 or n, *event) -> (chains, K / chains, 1 or n, *event)."""
        value = value if value.dim() == 3 + event else value.expand(draws, *value.shape)
        return value.squeeze(1).float().cpu().numpy().reshape(chains, -1, *value.shape[2:])

    groups: Groups = {"posterior": {}, "prior": {}}
    personal = {name: site for name, site in latents.items() if not site.per_example}  # a client's, not an example's
    for name, site in personal.items():
        groups["posterior"][name] = drawn(site.value, len(site.fn.event_shape)).squeeze(2)
    if personal and not any(isinstance(sites[name].fn, ImproperUniform) for name in latents):  # (a flat prior cannot)
        prior = fitted.prior_sites(federation.template(), fitted.values([j]), draws, "prior", client)
        for name in personal:
            groups["prior"][name] = drawn(prior[name].value, len(prior[name].fn.event_shape), 1).squeeze(2)
    groups["sample_stats"] = {}
    if personal.keys() == latents.keys() and personal and all(_spread(site.fn) for site in personal.values()):
        q, p = (sum(s[k].fn.log_prob(site.value) for k, site in personal.items()) for s in (latents, sites))
        joint = {"lp": p.squeeze(-1) + density.sum(-1), "guide_lp": q.squeeze(-1)}
        groups["sample_stats"] = {k: drawn(v[..., None], 0).squeeze(2) for k, v in joint.items()}
    predicted = drawn(said, 0)
    groups["log_likelihood"] = {"y": drawn(density, 0)}
    groups["posterior_predictive"] = {
        "y": predicted.astype(np.int16) if federation.task == "classification" else predicted
    }
    return groups


def _spread(fn: Any) -> bool:
    """Whether a guide's site is a density: no chain's draws, and no point."""
    while isinstance(fn, Independent):
        fn = fn.base_dist
    return not isinstance(fn, Delta | Draws)


def guide_sites(fitted: Fitted) -> dict[str, Site]:
    """The guide's latents, of somebody without data."""
    with pyro.validation_enabled(False), torch.no_grad():  # (what diverged is told elsewhere)
        return guide_latents(fitted.method, fitted.federation.template(), one_client(fitted), None)


def one_client(fitted: Fitted) -> State:
    """Values with which a model can be run on one row, whoever it is."""
    return visible(fitted.shared, {k: v[:1].unsqueeze(1) for k, v in fitted.personal.items()})


def bytes_per_draw(fitted: Fitted) -> float:
    """How much one more draw adds to the file, about."""
    federation = fitted.federation
    numbers = sum(math.prod(s.fn.event_shape) for s in guide_sites(fitted).values() if not s.per_example)
    return 8.0 * numbers * federation.clients + 8.0 * sum(federation.sizes())


def chains_of(fitted: Fitted) -> tuple[int, int]:
    """How many chains the guide holds, and how many draws in all: 1 and 0 where it is not made of draws."""
    latents = guide_sites(fitted)
    held = {site.fn.draws.shape[2:4] if isinstance(site.fn, Draws) else None for site in latents.values()}
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
    for site in guide_sites(fitted).values():
        fn = site.fn
        while isinstance(fn, Independent):
            fn = fn.base_dist
        if not isinstance(fn, Delta):
            return True
    return False
