"""Quadrature over the spreads of a population of heads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

import torch
from torch import Tensor

from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.local.laplace.population_terms import Groups
from hierfl.inference.messages.form import Field, Form
from hierfl.inference.server.rules.base import AggregationContext
from hierfl.inference.server.rules.scoring import definite, scored
from hierfl.inference.state import State

from .head_population import MESSAGE_FIELDS, STRETCH, bounded, line_search, posterior_mean, sums_of


def design(blocks: int) -> tuple[Tensor, Tensor]:
    """Standardised nodes (K, B) and the logarithms of their weights under N(0, I), (K,).

    One block has nine evenly spaced nodes. They reach further to the left, where the posterior of log rho has its
    longer tail. Two blocks have three Gauss-Hermite nodes each, and so on.
    """
    if blocks == 1:
        z = torch.arange(9, dtype=torch.float64)[:, None] * 0.8 - 3.6
        return z, -0.5 * z.square().sum(-1)
    rule = [(-math.sqrt(3), 1 / 6), (0.0, 2 / 3), (math.sqrt(3), 1 / 6)]
    points = list(product(rule, repeat=blocks))
    z = torch.tensor([[z for z, _ in point] for point in points], dtype=torch.float64)
    return z, torch.tensor([[w for _, w in point] for point in points], dtype=torch.float64).log().sum(-1)


@dataclass(frozen=True)
class HeadNodes:
    """q(w) and the evidence at nodes of log rho: the posterior of log rho, to integrate over.

    rho has the half-normal prior of :class:`~hierfl.models.pfedeb.head_population.HeadPopulation`, so that log rho has
    the density rho exp(-rho^2 / (2 scale^2)) times the marginal likelihood, which has a mode also where that of rho
    alone is at zero. Node 0 seeks this mode; the others lie around it. The shared values are NODES (K, d),
    NODES.covariance (K, packed), NODES.log_rho (K, B), NODES.log_weight (K,).

    Args:
        name: NODES.
        population: NAME of the :class:`~hierfl.models.pfedeb.head_population.HeadPopulation` beside it.
        order, blocks, groups, rho_scale, server_lr: as there.
    """

    name: str
    population: str
    order: Tensor
    blocks: Tensor
    groups: Groups
    rho_scale: float
    server_lr: float = 1.0
    sends_gradients: ClassVar[bool] = False

    @property
    def moving(self) -> tuple[str, ...]:
        """The means."""
        return (self.name,)

    def form(self, old: Mapping[str, Tensor]) -> Form:
        """The terms, of all nodes."""
        (k, d), b, dtype = old[self.name].shape, old[f"{self.name}.log_rho"].shape[-1], old[self.name].dtype
        shapes = ((d,), (self.groups.packed_size,), (b,), (b, b), (1,))
        form = {key: Field((k, *shape), dtype) for key, shape in zip(MESSAGE_FIELDS, shapes, strict=True)}
        form["precision"] = Field((k, self.groups.packed_size), dtype, self.groups.positive)
        return form | ({STRETCH: Field((k, 2), dtype)} if self.groups.number > 1 else {})

    def message(self, names: object, chunk: ClientChunk) -> State:
        """What the local step has left."""
        return {
            key: chunk.values[f"{self.name}/{key}"].squeeze(1)
            for key in (*MESSAGE_FIELDS, *([STRETCH] if self.groups.number > 1 else []))
        }

    def update(self, old: State, total: State, context: AggregationContext) -> State:
        """Newton's step on w at each node; scoring on node 0; the others around it."""
        name, order = self.name, self.order.to(old[self.name].device)
        blocks = self.blocks.to(order.device)
        sums = sums_of(total, context)
        current = {k: old[f"{name}.{k}"].double() for k in ("covariance", "log_rho")}
        log_scale = context.shared[f"{self.population}.log_scale"].double()
        current |= {"m": old[name].double()[:, order], "log_scale": log_scale.expand(len(current["log_rho"]), -1)}
        current, sums, length, evidence = line_search(current, sums, self.groups, blocks, context)
        log_rho, length = current["log_rho"], self.server_lr * length
        prior = (-2 * current["log_scale"]).exp()[:, blocks]
        mean = posterior_mean(current["m"], prior, sums, self.groups, context.rule_state, length)
        penalty = (2 * log_rho).exp() / self.rho_scale**2
        height = evidence.squeeze(-1) + (old[f"{name}.log_rho"].double() - penalty / 2).sum(-1)
        z, base = (v.to(order.device) for v in design(log_rho.shape[-1]))
        weight = (height[1:] + base + 0.5 * z.square().sum(-1)).log_softmax(-1)
        # near zero the likelihood is flat in log rho, and the density falls as the prior of rho does
        information = sums["information"][0] + torch.diag(1 + 2 * penalty[0])
        score = sums["score"][0] + 1 - penalty[0]
        centre = scored("log_rho", log_rho[0], score, information, length[0], context)
        root = torch.linalg.cholesky(torch.linalg.inv(definite(information)))
        values = {
            name: mean.m[:, order.argsort()],
            f"{name}.covariance": self.groups.packed(mean.covariance),
            f"{name}.log_rho": torch.cat([centre[None], centre + z @ root.mT]),
            f"{name}.log_weight": torch.cat([weight.new_full((1,), LOG_WEIGHT_FLOOR), weight]),
        }
        return {k: bounded(values[k]).to(v) for k, v in old.items()}


#: log weight of a node that does not count
LOG_WEIGHT_FLOOR = -100.0
