"""Quadrature over the spreads of small heads: the posterior of log rho, which few clients leave wide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.local.laplace.step import GaussianHead
from hierfl.inference.messages.form import Field, Form, not_negative
from hierfl.inference.server.rules.base import AggregationContext
from hierfl.inference.server.rules.scoring import LARGEST, definite, of_all, scored
from hierfl.inference.state import State

from ..pfedeb.at_nodes import AtNodes
from ..pfedeb.head_nodes import LOG_WEIGHT_FLOOR, design
from .heads import MAX_GAIN_NATS
from .turns import Turns

#: the shared values of the nodes, and of the spread that they represent
NODES, POPULATION = "at_nodes", "heads"
#: where node 0 begins, whatever sigma_0
BEGIN = 0.3


def initial_nodes(blocks: int) -> State:
    """log rho (K, B) and log weights (K,); all at one place."""
    _, weights = design(blocks)
    log_rho = torch.full((1 + len(weights), blocks), BEGIN, dtype=torch.float64).log()
    return {f"{NODES}.log_rho": log_rho, f"{NODES}.log_weight": torch.cat([weights[:1] + LOG_WEIGHT_FLOOR, weights])}


@dataclass(frozen=True)
class RhoNodes:
    """What all clients' data say of each node of log rho, heads integrated out.

    The density of log rho is rho exp(-rho^2 / (2 scale^2)) times the marginal likelihood, the half-normal prior of
    :class:`~hierfl.models.pfedhb.heads.HeadSpreads`. It has a mode where that of rho alone is at zero. Node 0 seeks the
    mode by scoring, and the others lie around it (:func:`~hierfl.models.pfedeb.head_nodes.design`). A client sends for
    each node its score, information, and what heads gain over rho = 0. The latter is the logarithm of a node's weight,
    but for what the nodes share. The shared values are at_nodes.log_rho (K, B) and at_nodes.log_weight (K,).

    Args:
        rho_scale: scale of the prior.
        turns: rounds in which the step was taken.
    """

    rho_scale: float
    turns: Turns
    sends_gradients: ClassVar[bool] = False

    def form(self, old: Mapping[str, Tensor]) -> Form:
        """The terms, of all nodes."""
        log_rho = old[f"{NODES}.log_rho"]
        (k, b), dtype = log_rho.shape, log_rho.dtype
        return {
            "score": Field((k, b), dtype),
            "information": Field((k, b, b), dtype, not_negative),
            "gain": Field((k, 1), dtype, lambda gain: gain.abs() <= MAX_GAIN_NATS),
        }

    def message(self, names: Sequence[str], chunk: ClientChunk) -> State:
        """What the local step has left; zeros where it was not taken."""
        like, form = chunk.shared[f"{NODES}.log_rho"], self.form(chunk.shared)
        if not self.turns(chunk.round, chunk.shared):
            return {key: like.new_zeros((len(chunk.clients), *field.shape)) for key, field in form.items()}
        left = {key: chunk.values[f"{NODES}/{key}"].squeeze(1).to(like) for key in form}
        return {**left, "gain": left["gain"].nan_to_num(-MAX_GAIN_NATS).clamp(-MAX_GAIN_NATS, MAX_GAIN_NATS)}

    def update(self, old: State, total: State, context: AggregationContext) -> State:
        """Scoring on node 0; the others around it, and their weights."""
        if not self.turns(context.round, context.shared):
            return dict(old)
        log_rho = old[f"{NODES}.log_rho"].double()
        sums, length = of_all(total, context)
        penalty = (2 * log_rho).exp() / self.rho_scale**2
        height = sums["gain"].squeeze(-1) + (log_rho - penalty / 2).sum(-1)
        z, base = (v.to(log_rho.device) for v in design(log_rho.shape[-1]))
        weight = (height[1:] + base + 0.5 * z.square().sum(-1)).log_softmax(-1)
        information = sums["information"][0] + torch.diag(1 + 2 * penalty[0])
        context.rule_state.setdefault("tries", log_rho.new_zeros(1))
        score = sums["score"][0] + 1 - penalty[0]
        centre = scored("log_rho", log_rho[0], score, information, length, context)
        root = torch.linalg.cholesky(torch.linalg.inv(definite(information)))
        values = {
            f"{NODES}.log_rho": torch.cat([centre[None], centre + z @ root.mT]),
            f"{NODES}.log_weight": torch.cat([weight.new_full((1,), LOG_WEIGHT_FLOOR), weight]),
        }
        return {k: values[k].clamp(-LARGEST, LARGEST).to(v) for k, v in old.items()}


def at_nodes(step: GaussianHead) -> AtNodes:
    """A step on heads' posteriors at each node."""
    return AtNodes(step, POPULATION, NODES)


@dataclass(frozen=True)
class DrawsOfNodes:
    """Draws of heads from the mixture over nodes: each from the posterior at its node of rho.

    A node has draws in proportion to its weight; both of a pair are of one node.

    Args:
        step: the final step at the point, with draws.
    """

    step: GaussianHead

    @property
    def trains(self) -> Sequence[str]:
        """The draws."""
        return (self.step.drawn,)

    def run(self, chunk: ClientChunk, phase: object) -> ClientChunk:
        """The rows with other draws."""
        weights = chunk.shared[f"{NODES}.log_weight"].double().softmax(-1)
        final = self.step.final
        half = max(1, final // 2)
        places = (torch.arange(half, dtype=torch.float64, device=weights.device) + 0.5) / half
        at = torch.searchsorted(weights.cumsum(-1), places).clamp_max(len(weights) - 1)
        at = torch.cat([at, at[: final % 2], at])[:final]  # as :func:`pairs` has them
        drawn = None
        for number in at.unique().tolist():
            spread = {f"{POPULATION}.log_rho": chunk.shared[f"{NODES}.log_rho"][number]}
            own = {name: chunk.values[f"{name}_{NODES}"][:, :, number] for name in self.step.posterior}
            at_node = replace(chunk, shared={**chunk.shared, **spread}, values={**chunk.values, **own})
            values = self.step.run(at_node, phase).values[self.step.drawn]
            drawn = values if drawn is None else torch.where((at == number)[:, None], values, drawn)
        assert drawn is not None
        return chunk.put({self.step.drawn: drawn})
