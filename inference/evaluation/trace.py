"""What a method's guide and model are made of, asked once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyro
import torch
from pyro.distributions import Delta
from torch.distributions import Independent

from hierfl.ppl.empirical_draws import EmpiricalDraws
from hierfl.ppl.restrict import Site

from ..objective.sites import guide_latents
from ..state import State, client_view
from .fitted import Fitted


def is_point(fn: Any) -> bool:
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
    return client_view(fitted.shared, {k: v[:1].unsqueeze(1) for k, v in fitted.personal.items()})


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
    return not all(is_point(site.fn) for site in guide_sites(fitted).values())
