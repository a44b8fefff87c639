"""The server's part: the Gaussian guide of the globals, by natural-gradient steps on sums.

    A = A_0 + sum_j A_j,    b = b_0 + sum_j b_j                  of the prior, and of the clients            (1)
    S^-1 <- A,              m <- m + S b                         where A is positive definite                (2)

(2) is the natural-gradient step of length 1 of the bound E[log p(x) + sum_j f_j(x)] + H[q] (Khan and Rue, 2023,
section 1.3); where A is not positive definite, see :func:`.local.kept_definite`.
A step after which the bound has fallen by more than its noise is taken back, and half of it is tried.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from hierfl.errors import UserError
from hierfl.inference.state import State

from .local import inverse_root, kept_definite

#: the longest step of a mean in standard deviations at first, where log joints are not quadratic
LONGEST = 3.0
#: the guide has arrived where a step moves means by less, in standard deviations, and log standard deviations by less:
#: with few draws, and with many
SETTLED, SETTLED_FINE = 0.03, 0.01
#: relative to its size, a bound that has fallen by less has lost nothing but digits
ROUNDING = 1e-9
#: a bound that has fallen by less for each number of the guide has lost nothing but what the draws' noise is: where
#: expected derivatives vanish, the average of the same draws' log joints has its maximum only nearly
NOISE = 1e-3
#: the shortest share of a step that is tried, and the shortest after a step that has moved as far as the one before
SHORTEST, DAMPED = 1 / 64, 1 / 8
#: how much of a step is taken where no one knows whether the bound rises
UNSURE_STEP = 0.5
#: so many rounds in which the bound has not risen are the end of the climb
PATIENCE = 12
#: the value of the bound before the first one has been computed
NO_BOUND = -1e300


@dataclass(frozen=True)
class Climb:
    """State of the climb: the best guide so far, and the step that was taken from it.

    Attributes:
        bound: at the best guide, (); NO_BOUND before the first.
        record: the highest so far, ().
        mean, precision: of the best guide.
        step: of the mean, from there, the whole of it.
        target: of the precision, likewise.
        share: share of both steps that was taken, ().
        reach: the longest step that may be taken, in standard deviations, ().
        length: length of the step before it was cut to ``reach``, in standard deviations, ().
        idle: number of rounds since the record, ().
        within: the longest move that no longer matters: :data:`SETTLED` with few draws, :data:`SETTLED_FINE` with many.
    """

    bound: Tensor
    record: Tensor
    mean: Tensor
    precision: Tensor
    step: Tensor
    target: Tensor
    share: Tensor
    reach: Tensor
    length: Tensor
    idle: Tensor
    within: Tensor
    #: the shortest share of a step that is tried
    least_share: ClassVar[float] = SHORTEST

    @classmethod
    def begin(cls, mean: Tensor, precision: Tensor, within: float = SETTLED) -> Self:
        """The state before the first round."""
        unit = mean.new_ones(())
        least = NO_BOUND * unit
        zero = torch.zeros_like(mean)
        return cls(
            least, least, mean, precision, zero, precision, unit, LONGEST * unit, 0 * unit, 0 * unit, within * unit
        )  # fmt: skip

    @classmethod
    def read(cls, state: State) -> Self:
        """What :meth:`state` has written."""
        return cls(**{f.name: state[f"climb.{f.name}"] for f in fields(cls)})

    def state(self) -> State:
        """All of it by name."""
        return {f"climb.{f.name}": getattr(self, f.name) for f in fields(self)}

    def guide(self) -> tuple[Tensor, Tensor]:
        """Mean and precision of the guide that is tried."""
        return self.mean + self.share * self.step, self.between()

    # -- the algebra of precisions, which another form of them has in another way --------------------------------------

    def between(self) -> Tensor:
        """The precision from :attr:`precision` to :attr:`target`, as far as :attr:`share`."""
        return self.precision + self.share * (self.target - self.precision)

    def towards(self, old: Tensor, curvature: Any) -> Tensor:
        """The precision that A of (1) asks for, from ``old``."""
        return kept_definite(old, curvature)

    def newton(self, target: Tensor, gradient: Tensor) -> Tensor:
        """The step of the mean, (p,)."""
        return torch.linalg.solve(target, gradient)

    def sd(self, precision: Tensor) -> Tensor:
        """Standard deviations (p,)."""
        return target_sd(precision)

    def noise(self, numbers: float, *, exact: bool) -> float:
        """Largest fall of the bound that counts as noise."""
        return 0 if exact else NOISE * numbers

    # ------------------------------------------------------------------------------------------------------------------

    def after(self, bound: Tensor, gradient: Tensor, curvature: Any, *, exact: bool, numbers: float) -> Self:
        """Updates the state with the bound and its derivatives at :meth:`guide`.

        Args:
            bound: there, ().
            gradient, curvature: b and A of (1).
            exact: whether all log joints are quadratic.
            numbers: how many the guide has, those of the clients included.

        Raises:
            UserError: where the bound at the first guide is not finite.
        """
        finite = bool(bound.isfinite() & gradient.isfinite().all() & curvature.isfinite().all())
        if not finite and float(self.record) <= NO_BOUND:
            raise UserError(
                "the model's log density or its derivatives are not finite where the fit begins: at the priors' means"
            )
        noise = ROUNDING * (1 + self.record.abs()) + self.noise(numbers, exact=exact)
        lost = not finite or bool(bound < self.record - noise)
        if not finite and float(self.share) <= self.least_share:
            return replace(self, step=torch.zeros_like(self.step), target=self.precision)
        if lost and float(self.share) > self.least_share:
            half_reach = (self.reach / 2).clamp_min(LONGEST)
            return replace(self, share=self.share / 2, reach=half_reach, idle=self.idle + 1)
        mean, old = self.guide()
        target = self.towards(old, curvature)
        step = self.newton(target, gradient)
        length = (step / self.sd(target)).abs().max() if len(step) else bound.new_zeros(())
        risen = bool(bound > self.record + noise)
        stuck = not risen and not exact and bool(length > 0.8 * self.length)
        share = 1.0 if lost else max(DAMPED, float(self.share) / 2) if stuck else min(1.0, 2 * float(self.share))
        reach = 2 * self.reach if risen and float(self.share) == 1 and bool(self.length > self.reach) else self.reach
        step = step if exact or bool(length <= reach) else step * (reach / length)
        return replace(
            self, bound=bound, record=bound if lost else torch.maximum(bound, self.record), mean=mean, precision=old,
            step=step, target=target, share=bound.new_tensor(share), reach=reach, length=length,
            idle=self.idle * 0 if risen else self.idle + 1,
        )  # fmt: skip

    def damped(self, gradient: Tensor, curvature: Any, share: float = UNSURE_STEP) -> Self:
        """Takes a share of the step after a round in which a client is missing: the bound is unknown.

        Args:
            gradient, curvature: b and A of (1), at :meth:`guide`.
            share: of the step, from where the guide is.
        """
        mean, old = self.guide()
        target = self.towards(old, curvature)
        step = self.newton(target, gradient)
        length = float((step / self.sd(target)).abs().max()) if len(step) else 0.0
        step = step * min(1.0, LONGEST / max(length, LONGEST))
        begun = self.begin(mean, old, float(self.within))
        return replace(begun, step=step, target=target, share=mean.new_tensor(share))

    @property
    def moved(self) -> float:
        """How far the last step moved from the best guide: a mean, in standard deviations, or a log standard
        deviation.
        """
        if not len(self.mean):
            return 0.0
        sd = self.sd(self.target)
        moved, widened = (self.step / sd).abs().max(), (sd / self.sd(self.precision)).log().abs().max()
        return float(torch.maximum(moved, widened))

    @property
    def converged(self) -> bool:
        """Whether the step from the best guide is negligible, or no step has gained for many rounds."""
        return self.moved < float(self.within) or float(self.idle) >= PATIENCE


def target_sd(precision: Tensor) -> Tensor:
    """Standard deviations (p,) of a Gaussian with this precision."""
    return inverse_root(precision).square().sum(-1).sqrt()
