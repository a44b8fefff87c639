"""Newton steps on the marginal likelihood."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from hierfl.devices import send

from ...clients.chunk import ClientChunk
from ...clients.scores import curvature
from ...messages.form import Field, Form, values_form
from ...state import State
from .base import AggregationContext
from .newton_step import newton_step


@dataclass(frozen=True)
class NewtonScoring:
    """Newton's method on the marginal likelihood, for a few shared numbers, from what draws of one latent know of it.

    Clients send the gradient g_j of their marginal log likelihood (Fisher's identity), its outer product, and two
    estimates of the curvature there (:class:`~hierfl.inference.clients.scores.Curvature`): the observed information I,
    and the profile information S, which is never smaller and never negative where the log joint is concave. The
    server's step

        theta <- theta + rate(t) H^-1 g,    g = sum_j g_j + prior's,

    takes I along the directions in which it is clearly positive beside S; elsewhere (far from a maximum, or where there
    is next to no information) the outer products, as Berndt, Hall, Hall and Hausman (1974) do. With draws it is
    stochastic approximation in that metric. None of it needs a step size for the data's units.

    Args:
        latent: the latent, in the client plate and on the real line.
        particles: K, draws per client; with sigma points 0.
        sigma_points: expectations at these instead of draws: exact where the log joint is quadratic in the latent and
            the guide is Gaussian. With draws, gradients have control variates.
        curvature_decay: how much of the last round's matrices stays.
        rate: share of the step, or a function of the round, from 1.
        radius: a step is shortened to so much in the metric of H (about so many standard errors) to begin with, and at
            least. After a shortened step along which the gradient has kept more than half of its slope the radius is
            doubled: standard errors are small beside the way from a far start. After one along which the slope has
            changed its sign, and become steeper, it is a quarter.
        least: lower bounds of some values, {name: (*shape)}. What is at its bound and wants to go below is held,
            and the others move as if it were not there.
        most: the longest step of some values' numbers, {name: number}: for logarithms and the like, which have units of
            their own.
    """

    latent: str
    particles: int
    sigma_points: bool = False
    curvature_decay: float = 0.0
    rate: float | Callable[[int], float] = 1.0
    radius: float = 5.0
    least: Mapping[str, Tensor] | None = None
    most: Mapping[str, float] | None = None
    sends_gradients: ClassVar[bool] = True

    def form(self, old: Mapping[str, Tensor]) -> Form:
        """Gradients, and three matrices; an outer product is nowhere below zero along its diagonal."""
        k, names = sum(value.numel() for value in old.values()), list(old)
        matrix = Field((k, k), next(iter(old.values())).dtype)

        def own(message: Mapping[str, Tensor]) -> Tensor:
            score = torch.cat([message[name].reshape(len(message["outer"]), -1) for name in names], 1)
            wanted = score[:, :, None] * score[:, None]
            gap = (message["outer"] - wanted).abs().amax((1, 2))
            return gap <= 1e-3 * wanted.abs().amax((1, 2))  # (compressed gradients have none: see Compressed)

        return {**values_form(old), "outer": replace(matrix, agrees=own), "profile": matrix, "observed": matrix}

    def message(self, names: Sequence[str], chunk: ClientChunk) -> State:
        """Each row's gradient, its outer product, and what it knows of the curvature."""
        exact, degree = self.sigma_points, 0 if self.sigma_points else 2
        known = curvature(chunk, names, self.latent, self.particles, degree, sigma_points=exact)
        gradient = known.scores
        score = torch.cat([gradient[name].reshape(len(chunk.clients), -1) for name in names], 1)
        outer = score[:, :, None] * score[:, None]
        return {**gradient, "outer": outer, "profile": known.profile, "observed": known.observed}

    def update(self, old: State, total: State, context: AggregationContext) -> State:
        """One step; nothing moves along what the clients say nothing about."""
        up = context.num_clients / context.reported
        prior = context.prior_gradient(list(old))
        g = torch.cat([(total[name] * up + prior[name]).flatten() for name in old])
        here = torch.cat([value.flatten() for value in old.values()])
        least = torch.full_like(here, -torch.inf)
        for name, value in (self.least or {}).items():
            first = sum(v.numel() for v in list(old.values())[: list(old).index(name)])
            least[first : first + value.numel()] = send(value.flatten(), here.device, here.dtype)
        known = {}
        for name in ("outer", "profile", "observed"):
            new = total[name] * up
            old_one = context.rule_state.get(name, new)
            # what is remembered must not be drowned for ever: then the round is skipped, as where it is not finite
            before = old_one.abs().amax()
            new = torch.where((before > 0) & (new.abs().amax() > LARGEST_GROWTH * before), torch.nan, new)
            # (a skipped round leaves nothing to remember)
            mixed = self.curvature_decay * old_one + (1 - self.curvature_decay) * new if self.curvature_decay else new
            known[name] = torch.where(old_one.abs().sum() > 0, mixed, new)
            if self.curvature_decay:
                context.rule_state[name] = known[name]
        free = ~((here <= least) & (g < 0))
        rate = self.rate(context.round) if callable(self.rate) else self.rate
        radius = self._radius(g, context)
        step, length = newton_step(g, known["profile"], known["observed"], known["outer"], free, radius)
        step = rate * step
        longest = torch.cat(
            [torch.full_like(v, (self.most or {}).get(name, torch.inf)).flatten() for name, v in old.items()]
        )
        # the whole step becomes shorter: a part of it alone may lead downhill
        step = step / (step.abs() / longest).max().clamp_min(1)
        context.rule_state.update(step=step, slope=g @ step, radius=radius, short=(length > radius).to(g))
        parts = (here + step).maximum(least).split([value.numel() for value in old.values()])
        return {name: part.view_as(value) for (name, value), part in zip(old.items(), parts, strict=True)}

    def _radius(self, g: Tensor, context: AggregationContext) -> Tensor:
        """How far the next step may go, from what the gradient is after the last one."""
        last, least = context.rule_state, g.new_full((), self.radius)
        if "step" not in last:
            return least
        kept = g @ last["step"] / last["slope"]  # (of the slope; not a number after no step, which changes nothing)
        grow = (last["short"] > 0) & (kept > 0.5)
        return (last["radius"] * torch.where(grow, 2.0, torch.where(kept < -1, 0.25, 1.0))).maximum(least)


#: how much larger than what is remembered a round's matrices may be
LARGEST_GROWTH = 1e6
