"""Autograd leaves of a chunk's values, and gradients in shared values."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pyro
import torch

from hierfl.data.padding import buckets
from hierfl.nn.layers.batch_norm import is_statistic

from ..objective.elbo import elbo
from ..state import State
from .chunk import ClientChunk


def leaves(chunk: ClientChunk, names: Sequence[str]) -> State:
    """Autograd leaves that share the rows' memory, so that an optimiser's step is seen in them."""
    return {k: chunk.values[k].detach().requires_grad_() for k in names if not is_statistic(k)}


def elbo_gradient(chunk: ClientChunk, names: Sequence[str], particles: int, phase: object) -> State:
    """Each row's gradient of its restricted ELBO in shared values, at what was broadcast: {name: (S, *shape)}.

    A row's own copy of one of these values plays no part: the gradient belongs to the value that the server holds.

    Args:
        chunk: the rows.
        names: the shared values.
        particles: K, draws of the guide.
        phase: keys them.
    """
    values = {k: v for k, v in chunk.values.items() if k not in names}
    at_broadcast = dataclasses.replace(chunk, values=values).own(names)
    gradients = {k: torch.zeros_like(at_broadcast.values[k]) for k in names}
    with pyro.validation_enabled(False), torch.enable_grad():
        for first, last in buckets(chunk.sizes):
            part = at_broadcast.part(first, last)
            batch = part.batch()
            copies = leaves(part, names)
            noise = part.noise(phase, particles, part.sizes)
            objective = elbo(chunk.method, batch, {**part.view, **copies}, noise)
            if not objective.requires_grad:
                continue  # a value that only log p(globals) knows: the server's own gradient moves it
            slopes = torch.autograd.grad(objective.sum(), list(copies.values()), allow_unused=True)
            for name, gradient in zip(copies, slopes, strict=True):
                if gradient is not None:
                    gradients[name][first:last] = gradient
    return {k: g.squeeze(1) for k, g in gradients.items()}
