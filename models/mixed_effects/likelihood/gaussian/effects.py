"""What a client of a gaussian response keeps of its random effects: exact moments, and draws."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.state import State

from ...model.equations import MixedModel
from ..moments import cholesky, kept, triangle
from .draws import Effects, gaussian_effects, gaussian_groups, gaussian_mode, moments


def conditional(method: MixedModel, chunk: ClientChunk, gram: Any, shared: State) -> State:
    """Effects' means and roots of their covariances, {name: (S, 1, *shape)}; G as of :class:`.likelihood.Gaussian`."""
    return conditional_of(method, gram, chunk.values["rows"], shared)


def conditional_of(method: MixedModel, gram: Any, rows: Tensor, shared: State) -> State:
    """The same from sums over rows, as :class:`.row_sums.RowSums` has them."""
    root = method.covariance.matrix(shared["root"])
    u, factor = gaussian_mode(method, gram, rows, shared)
    b, lower = u @ root.mT, triangle(root, factor)
    moments_of = {"b_mean": b.unsqueeze(1), "b_root": lower.unsqueeze(1)}
    if method.inside:
        mean, covariance = gaussian_groups(method, gram, rows, shared, b, lower)
        moments_of |= {"c_mean": mean.unsqueeze(1), "c_root": cholesky(covariance).unsqueeze(1)}
    return moments_of


def joint(method: MixedModel, chunk: ClientChunk, gram: Any, draws: State, phase: object) -> State:
    """Effects at draws of the population {name: (D, *shape)}; moments are the mixture's own."""

    def drawn(z: Mapping[str, Tensor]) -> tuple[Effects, Effects | None]:
        return gaussian_effects(method, gram, chunk.values["rows"], draws, z)

    return joint_of(method, chunk, draws, phase, drawn)


def joint_of(
    method: MixedModel, chunk: ClientChunk, draws: State, phase: object,
    drawn: Callable[[Mapping[str, Tensor]], tuple[Effects, Effects | None]],
) -> State:  # fmt: skip
    """The same of effects that follow from standard normals by level, as of :func:`.draws.gaussian_effects`."""
    noise = chunk.noise(phase, len(draws["beta"]))
    z = {"root": noise.normal("u", None, torch.Size((method.covariance.q,))).squeeze(2)}
    for level in method.inside:
        size = torch.Size((level.size, level.q))
        z[level.name] = noise.normal("v", None, size).squeeze(2).transpose(1, 2).flatten(1, 2)
    clients, inner = drawn(z)
    values = kept("b", *moments(clients), clients.draws)
    if inner is not None:
        of_groups = (method.inside[0].size, len(chunk.clients))
        mean, covariance = (v.unflatten(0, of_groups).transpose(0, 1) for v in moments(inner))
        values |= kept("c", mean, covariance, inner.draws.unflatten(1, of_groups).transpose(1, 2))
    return values
