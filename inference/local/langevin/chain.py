"""Langevin chains in a density on the real line: all rows of a plate and all chains at once.

A step of size gamma from u, where the log density has the gradient g, goes to

    u' = u + gamma g + sqrt(v) xi,    xi ~ N(0, I),    v = 2 gamma.

Where u are coordinates in which the density is near to a standard normal, v = gamma (2 - gamma), gamma at most 1: the
normal's own share of drift and noise is then solved exactly (Cotter, Roberts, Stuart and White, Statistical Science
2013, eq. 4.9 with gamma = 2 delta / (2 + delta)). In directions in which it is one nothing is ever refused, however
many they are. With cos(a) = 1 - gamma such a step is also

    p = xi + tan(a/2) (g + u),   (u', p') = (u cos a + p sin a, p cos a - u sin a),   p'' = p' + tan(a/2) (g' + u')

and several of them before a decision, p kept, are Hamiltonian Monte Carlo, the normal's share exact (Shahbaba, Lan,
Johnson and Neal, Statistics and Computing 2014). Together they turn by about a right angle, after which a normal's
draws are independent of what they were.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hierfl.rng import ClientNoise

from ...state import State
from .layout import like_event, sum_over_event
from .names import STATS
from .target import Density

#: a proposal that is so much less likely than where the chain is, in nats: the step is far too long
DIVERGENT_NATS = 1000.0
#: by how much all leaps of a step turn at most
TURN = 2 * math.pi / 3
#: steps of near-normal chains have random sizes, from this share of the longest one on: no direction turns half round
#: every time
SHORTEST = 0.5


@dataclass(frozen=True)
class Chain:
    """How chains move, and what is kept of them.

    Attributes:
        steps: burn-in included.
        metropolis: accept or reject.
        burn: steps at the beginning that are not kept.
        thin: every so many of the others are.
        target: acceptance to adapt each step size to during burn-in; None to leave it.
        near_normal: whether the density is near to a standard normal, see above.
        together: whether a row's chains have one step size, adapted to what all of them say.
        leaps: how many steps come before a decision (of near_normal chains that decide).
    """

    steps: int
    metropolis: bool = False
    burn: int = 0
    thin: int = 1
    target: float | None = None
    near_normal: bool = False
    together: bool = False
    leaps: int = 1

    @property
    def longest(self) -> float:
        """The largest step size: all leaps together turn by :data:`TURN` then, one alone by a right angle."""
        if not self.near_normal:
            return math.inf
        return 1 - math.cos(min(math.pi / 2, TURN / self.leaps))

    @property
    def kept(self) -> int:
        """Draws of each chain that are kept."""
        return (self.steps - self.burn) // self.thin

    def run(
        self,
        u: State,
        gamma: Tensor,
        noise: ClientNoise,
        fresh: Callable[[], Density],
        constrained: Callable[[State], State],
        renewed: bool = False,
    ) -> tuple[State, Tensor, Tensor]:
        """Runs the chains.

        Args:
            u: where they begin, {name: (C, S, 1, *event)}.
            gamma: step sizes to begin with, (C, S).
            noise: of the rows, C particles.
            fresh: the density for the next step.
            constrained: from the real line to where the model lives.
            renewed: whether each step has a density of its own (a minibatch's).

        Returns:
            What is kept, {name: (S, 1, C, kept, *event)}; step sizes in the end (C, S); statistics of what is kept,
            (S, 1, C, kept, 3), see :data:`~hierfl.inference.local.langevin.names.STATS`.
        """
        density = fresh()
        u = {k: v.contiguous() for k, v in u.items()}
        chains, rows = gamma.shape
        height, slope = density(u)
        chances, wild = torch.zeros_like(gamma), torch.zeros_like(gamma)  # since the last kept draw
        recent, count = gamma.log(), 0
        kept = {k: v.new_empty((rows, 1, chains, self.kept, *v.shape[3:])) for k, v in constrained(u).items()}
        stats = gamma.new_empty((rows, 1, chains, self.kept, len(STATS)))
        for step in range(self.steps):
            noise.at(step)
            burning = step < self.burn
            xi = {k: noise.normal(k, None, v.shape[3:]).contiguous() for k, v in u.items()}
            if not self.metropolis:
                u = self._proposal(u, slope, xi, gamma)
                if step + 1 < self.steps:
                    if renewed:
                        density = fresh()
                    height, slope = density(u)
            else:
                if self.near_normal:
                    turned = gamma * _uniform(noise, "/length").clamp_min(SHORTEST)
                    proposal, height_there, slope_there, log_ratio = self._leapt(u, height, slope, xi, turned, density)
                else:
                    proposal = self._proposal(u, slope, xi, gamma)
                    height_there, slope_there = density(proposal)
                    log_ratio = height_there - height
                    for k in u:
                        back = u[k] - proposal[k] - like_event(gamma, u[k]) * slope_there[k]
                        log_ratio = log_ratio + sum_over_event(0.5 * xi[k].square())
                        log_ratio = log_ratio - sum_over_event(back.square()) / (4 * gamma)
                taken = _uniform(noise, "/accept").log() < log_ratio  # not where the ratio is not a number
                u = {k: torch.where(like_event(taken, v), proposal[k], v) for k, v in u.items()}
                slope = {k: torch.where(like_event(taken, v), slope_there[k], v) for k, v in slope.items()}
                height = torch.where(taken, height_there, height)
                chance = log_ratio.exp().clamp(max=1).nan_to_num(0.0)
                if burning and self.target is not None:
                    gamma = self._adapted(gamma, chance, step)
                    # what is held afterwards is an average over the later half, which is steadier than the last one
                    past = max(1, step + 1 - self.burn // 2)
                    recent = recent + (gamma.log() - recent) / past
                    if step + 1 == self.burn:
                        gamma = recent.exp()
                elif not burning:
                    chances, wild = chances + chance, wild + ~(log_ratio > -DIVERGENT_NATS)
            if not burning and (step + 1 - self.burn) % self.thin == 0:
                for k, v in constrained(u).items():
                    kept[k][:, 0, :, count] = v.detach()[:, :, 0].transpose(0, 1)
                numbers = torch.stack([chances / self.thin, gamma, (wild > 0).to(gamma)], -1)
                stats[:, 0, :, count] = numbers.transpose(0, 1)
                count += 1
                chances, wild = torch.zeros_like(gamma), torch.zeros_like(gamma)
        return kept, gamma, stats

    def _proposal(self, u: State, slope: State, xi: State, gamma: Tensor) -> State:
        variance = gamma * (2 - gamma) if self.near_normal else 2 * gamma
        return {k: v + like_event(gamma, v) * slope[k] + like_event(variance, v).sqrt() * xi[k] for k, v in u.items()}

    def _leapt(
        self, u: State, height: Tensor, slope: State, xi: State, gamma: Tensor, density: Density
    ) -> tuple[State, Tensor, State, Tensor]:
        """The end of some leaps, height and slope there, and the logarithm of the ratio that decides."""
        begin, p = height + _log_normal(xi), xi
        kick, cos, sin = (gamma / (2 - gamma)).sqrt(), 1 - gamma, (gamma * (2 - gamma)).sqrt()
        for _ in range(self.leaps):
            p = {k: v + like_event(kick, v) * (slope[k] + u[k]) for k, v in p.items()}
            u, p = (
                {k: like_event(cos, v) * v + like_event(sin, v) * p[k] for k, v in u.items()},
                {k: like_event(cos, v) * v - like_event(sin, v) * u[k] for k, v in p.items()},
            )
            height, slope = density(u)
            p = {k: v + like_event(kick, v) * (slope[k] + u[k]) for k, v in p.items()}
        return u, height, slope, height + _log_normal(p) - begin

    def _adapted(self, gamma: Tensor, chance: Tensor, step: int) -> Tensor:
        """Robbins and Monro's step on log gamma."""
        assert self.target is not None
        rate = (step + 1) ** -0.6
        if self.together:
            chance = chance.mean(0, keepdim=True).expand_as(chance)
        gamma = (gamma.log() + rate * 4 * (chance - self.target)).exp()
        return gamma.clamp(max=self.longest)


def _log_normal(p: State) -> Tensor:
    """(C, S), up to a constant."""
    return sum(-sum_over_event(0.5 * v.square()) for v in p.values())  # type: ignore[return-value]


def _uniform(noise: ClientNoise, name: str) -> Tensor:
    """(C, S)."""
    return torch.special.ndtr(noise.normal(name, None, torch.Size()).squeeze(-1))
