"""Scoring steps on the logarithms of spreads, as long as the ones before say."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...state import State
from .base import AggregationContext

#: a logarithm of a spread moves by no more in a round, and is kept above: what lies there is no spread at all
LONGEST_STEP, LEAST_LOG = 1.0, -7.0
#: log of what a step is multiplied by, at least and at most
SHORTEST, LONGEST = math.log(0.125), math.log(4.0)
#: where a step is longer than this share of the one before it, its logarithm crawls; by how much the factor grows, and
#: what is taken from it where a step turns back
SLOW_STEP_SHARE, LOG_GROWTH, LOG_SHRINKAGE = 0.7, math.log(1.25), math.log(2.0)
#: sums are no larger
LARGEST = 1e30
#: length of a step that was taken as a whole
WHOLE_STEP_LENGTH = 0.9


def scored(
    name: str, log: Tensor, score: Tensor, information: Tensor, length: Tensor, context: AggregationContext
) -> Tensor:
    """A scoring step on logarithms of spreads (B,).

    Clients' posteriors and q(w) follow a spread rounds later: a step may be too long, so that rounds go to and fro, or
    far too short. Each logarithm has a factor of its own, which is halved where its step points back along the one
    before, and grows where that was taken as it was meant and this one is hardly shorter. Where noise decides in
    which direction steps point, factors fall to their least, which averages over rounds. Where not all clients report
    factors stay where they are.

    Args:
        name: of the spreads in ``context.rule_state``, which keeps the last step and its factor, and in which
            the rule has said by "tries" whether a step is taken again.
        log: where they are.
        score, information: gradient (B,) and expected information (B, B).
        length: share of a step, (1,) or ().
        context: of the round.
    """
    kept, information = context.rule_state, definite(information)
    step, zero = torch.linalg.solve(information, score), torch.zeros_like(log)
    # Logarithms: a rule that has not begun remembers zeros.
    last, whole, factor = (kept.get(f"{name}/{key}", zero) for key in ("step", "whole", "log_factor"))
    all_reported, again = context.reported == context.num_clients, kept["tries"].flatten()[0] > 0
    share = step / torch.where(last == 0, torch.inf, last)
    longer = torch.where((share > SLOW_STEP_SHARE) & (whole > 0), factor + LOG_GROWTH, factor)
    adapted = torch.where(share < 0, factor - LOG_SHRINKAGE, longer).clamp(SHORTEST, LONGEST)
    says = all_reported & ~again
    factor = torch.where(says, adapted, factor)
    # Root, step, root: with factors on one side alone it might lead downhill.
    root = (0.5 * factor).exp()
    move = root * torch.linalg.solve(information, root * score)
    new = (log + length * move.clamp(-LONGEST_STEP, LONGEST_STEP)).clamp_min(LEAST_LOG)
    taken = (length > WHOLE_STEP_LENGTH) & (move.abs() <= LONGEST_STEP) & (new > LEAST_LOG)
    # A round that takes a step again says nothing of it, and a sample's is no measure for the next round's.
    kept[f"{name}/step"] = torch.where(all_reported, torch.where(again, last, step), zero)
    kept[f"{name}/whole"] = torch.where(all_reported, torch.where(again, zero, taken.to(log)), zero)
    kept[f"{name}/log_factor"] = factor
    return new


def of_all(total: State, context: AggregationContext) -> tuple[State, Tensor]:
    """Sums over all clients, in double precision, from those that have reported, and a step's length by them, (1,).

    Scores are this round's, and a step by a sample's is part of the way. All other sums are averaged over rounds. Both
    with the share of the clients that has reported, and in the first rounds with one over their number: that is in
    ``context.rule_state["taken"]``, and a rule that begins again sets it to zero. Where all report nothing is averaged.

    Args:
        total: sums over those that have reported; the scores are called "score".
        context: of the round.
    """
    kept = context.rule_state
    part = (context.reported / context.num_clients).double().reshape(1)
    kept["taken"] = kept.get("taken", torch.zeros_like(part)) + 1
    length = torch.maximum(part, 1 / kept["taken"])
    sums = {key: (value.double() / part).clamp(-LARGEST, LARGEST) for key, value in total.items()}
    for key in sums.keys() - {"score"}:
        sums[key] = kept[f"mean/{key}"] = torch.lerp(kept.get(f"mean/{key}", sums[key]), sums[key], length)
    return sums, length


def definite(information: Tensor) -> Tensor:
    """An information (B, B) that has an inverse, whatever was sent."""
    return information + torch.diag(1e-9 * information.diagonal().clamp_min(torch.finfo(information.dtype).tiny))
