"""Scoring steps on the logarithms of spreads, as long as the ones before say."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .base import AggregationContext

#: a logarithm of a spread moves by no more in a round, and is kept above: what lies there is no spread at all
LONGEST_STEP, LEAST_LOG = 1.0, -7.0
#: log of what a step is multiplied by, at least and at most
SHORTEST, LONGEST = math.log(0.125), math.log(4.0)
#: where a step is longer than this share of the one before it, they are too short, and are made longer
SLOW, LONGER, HALF = 0.7, math.log(1.25), math.log(2.0)


def scored(
    name: str, log: Tensor, score: Tensor, information: Tensor, length: Tensor, context: AggregationContext
) -> Tensor:
    """A scoring step on logarithms of spreads (B,).

    Clients' posteriors and q(w) follow a spread rounds later: a step may be too long, so that rounds go to and fro, or
    far too short. Each logarithm has a factor of its own, which is halved where its step points back along the one
    before, and grows where that has hardly become shorter. Where a sample of the clients reports, its noise decides
    where steps point, and factors stay where they are.

    Args:
        name: of the spreads in ``context.rule_state``, which keeps the last step and its factor.
        log: where they are.
        score, information: gradient (B,) and expected information (B, B).
        length: share of a step, (1,) or ().
        context: of the round.
    """
    kept, step = context.rule_state, torch.linalg.solve(definite(information), score)
    # (logarithms: a rule that has not begun remembers zeros)
    last, factor = (kept.get(f"{name}/{key}", torch.zeros_like(step)) for key in ("step", "log_factor"))
    share = step / torch.where(last == 0, torch.inf, last)
    longer = torch.where(share > SLOW, factor + LONGER, factor)
    adapted = torch.where(share < 0, factor - HALF, longer).clamp(SHORTEST, LONGEST)
    # (a round that takes a step again says nothing of it)
    says = (context.reported == context.num_clients) & (kept["tries"].flatten()[0] == 0)
    factor = torch.where(says, adapted, factor)
    kept.update({f"{name}/step": step, f"{name}/log_factor": factor})
    return (log + length * (factor.exp() * step).clamp(-LONGEST_STEP, LONGEST_STEP)).clamp_min(LEAST_LOG)


def definite(information: Tensor) -> Tensor:
    """An information (B, B) that has an inverse, whatever was sent."""
    return information + torch.diag(1e-9 * information.diagonal().clamp_min(torch.finfo(information.dtype).tiny))
