"""Clients whose head has no finite posterior at the end: they have the population's."""

from __future__ import annotations

import logging
from typing import Any

import pyro
import torch
from torch import Size

from hierfl.plurals import counted
from hierfl.rng import ClientNoise

from ...clients.chunk import ClientChunk
from ...state import State
from .posterior import pairs
from .target import Target

log = logging.getLogger("hierfl")


def finite_draws(step: Any, chunk: ClientChunk, moved: State) -> State:
    """The same values, where a client's are not finite draws of the prior around its mean; a warning says how many.

    In rounds a client whose values are not finite keeps those of the round before (the engine undoes its step). After
    the rounds there is none to come.

    Args:
        step: a :class:`~hierfl.inference.local.laplace.step.GaussianHead`.
        chunk: its rows.
        moved: what it has made of them, {name: (S, *shape)}.
    """
    finite = torch.stack([v.flatten(1).sum(1).isfinite() for v in moved.values()]).all(0)
    rows = (~finite).nonzero().flatten().tolist()
    if not rows:
        return moved
    names = [chunk.federation.ids[chunk.clients[row]] for row in rows]
    log.warning(
        "the heads of %s diverged, and have the population's posterior: %s",
        counted(len(rows), "client"), ", ".join(names[:10]),
    )  # fmt: skip
    lost = chunk.take(rows)
    with pyro.validation_enabled(False), torch.no_grad():
        target = Target(lost, step.latent, lost.n.dtype, step.centred)
        m, r = (v[:, target.back] for v in target.prior())
    noise = ClientNoise(lost.keys.to(m.device), (lost.seed, "head"), max(1, step.final // 2), dtype=m.dtype)
    draws = m + r * pairs(noise, step.latent, m.shape[-1], step.final)  # (K, S, d)
    values = {step.drawn: draws.transpose(0, 1)[:, None, None], step.mean: m.unsqueeze(1)}
    made = State()
    for name, value in moved.items():
        made[name] = value.clone()
        made[name][rows] = values.get(name, value.new_zeros(Size([1]))).to(value)
    return made
