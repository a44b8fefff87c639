"""What the server climbs and explores: functions of the population's numbers, made of the clients' sums alone.

Of other families clients send the log marginal likelihood itself. Of a gaussian response they send the coefficients of
a quadratic in beta (:mod:`.likelihood.gaussian`), from which the server makes, with A = X^T V^-1 X summed over clients,

    maximum likelihood   max over beta of l(beta, L, s)                                                     (13)
    restricted           log integral exp l(beta, L, s) d beta        (lme4's REML criterion)               (14)
    a posterior          log integral exp l(beta, L, s) p(beta) d beta + log p(L, s)                        (20)

In a round the sums are Taylor polynomials of second degree around where the clients were, so that derivatives of
whatever is made of them are exact there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from hierfl.inference.state import State

from ..likelihood.gaussian.likelihood import Gaussian
from ..likelihood.protocol import Coefficients
from ..likelihood.quadrature.region_nodes import RegionExpansion
from ..model.covariance import Covariance
from ..model.equations import MixedModel
from .climb import INFINITE_LENGTH, LONGEST
from .priors import Priors, log_normal

#: maximum likelihood | restricted | what clients' posteriors are mixed over
Criterion = Literal["ml", "reml", "mixing"]
#: standard deviations begin at no less than this share of the response's where their logarithms are searched
LEAST_SD = 0.1


@dataclass(frozen=True)
class Surface:
    """Heights of a method's criteria.

    Args:
        method: whose.
    """

    method: MixedModel

    # -- numbers and coordinates --------------------------------------------------------------------------------------

    def coordinates(self, numbers: Tensor) -> Tensor:
        """The coordinates of densities: L's entries replaced by log sd and correlations, (..., k)."""
        return self._with_roots(numbers, Covariance.coordinates)

    def of_coordinates(self, coordinates: Tensor) -> Tensor:
        """The numbers of coordinates (..., k)."""
        return self._with_roots(coordinates, Covariance.of_coordinates)

    def _with_roots(self, numbers: Tensor, change: Callable[[Covariance, Tensor], Tensor]) -> Tensor:
        sizes, covariances = self.method.sizes, self.method.covariances
        parts = zip(sizes, numbers.split(list(sizes.values()), -1), strict=True) if sizes else ()
        changed = [change(covariances[k], part) if k in covariances else part for k, part in parts]
        return torch.cat(changed, -1) if changed else numbers

    def inside(self, state: State) -> Tensor:
        """Coordinates (k,) of the estimates, whose standard deviations are above zero."""
        start, first = self.coordinates(self.method.numbers(state)), 0
        for level, size in self.method.sizes.items():
            if level in self.method.covariances:
                q = self.method.covariances[level].q
                least = (LEAST_SD / self.method.settings.sd_0 * self.method.first_sd(level)).log().to(start)
                start[first : first + q] = start[first : first + q].maximum(least)
            first += size
        return start

    def longest(self, criterion: Criterion) -> Tensor:
        """How far each number, or coordinate, goes in a round, (k,)."""
        of_root = LONGEST if criterion == "mixing" else LONGEST * self.method.network.scale
        far = {**dict.fromkeys(self.method.covariances, of_root), "beta": INFINITE_LENGTH * self.method.unit}
        return torch.cat([torch.full((n,), far.get(k, LONGEST)).double() for k, n in self.method.sizes.items()] or [
            torch.zeros(0).double()
        ])  # fmt: skip

    # -- heights --------------------------------------------------------------------------------------------------

    def log_prior(self, coordinates: Tensor) -> Tensor:
        """The log prior of coordinates (..., k), but for coefficients that are integrated out: (...)."""
        parts = dict(zip(self.method.sizes, coordinates.split(list(self.method.sizes.values()), -1), strict=True))
        priors, total = Priors(self.method), coordinates.new_zeros(coordinates.shape[:-1])
        normal = priors.beta()
        if "beta" in parts and normal is not None:
            total = total + log_normal(parts["beta"], *normal)
        for level in self.method.covariances:
            if level in parts:
                total = total + priors.covariance(parts[level], level)
        own = [parts[k] for k in self.method.response_family.starts]
        return total + priors.family(torch.cat(own, -1)) if own else total

    def beta(self, packed: Tensor, criterion: Criterion, numbers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The coefficients' mean (..., p), precision (..., p, p) and the criterion's height, given the other numbers.

        Args:
            packed: sums of :func:`.cross_products.packed`, (..., c).
            criterion: which.
            numbers: the others, (..., k).
        """
        likelihood = self.method.likelihood
        assert isinstance(likelihood, Gaussian)
        return likelihood.beta(packed, numbers, self.coefficients(criterion))

    def coefficients(self, criterion: Criterion) -> Coefficients:
        """What a criterion does with coefficients in which the clients' sums are quadratic."""
        mixing = criterion == "mixing"
        return Coefficients(criterion != "ml", Priors(self.method).beta() if mixing else None, mixing)

    @property
    def reml_constant(self) -> float:
        """What REML's criterion is more in the table's units than in the design's."""
        return -sum(math.log(scale) for scale in self.method.network.fixed_units.scale)

    def expansion(
        self,
        sums: Mapping[str, Tensor],
        at: Tensor,
        criterion: Criterion,
        nodes: RegionExpansion | None = None,
        *,
        coordinates: bool = False,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """A criterion's height (), gradient (k,) and curvature (k, k).

        Args:
            sums: of a round.
            at: the numbers at which clients were, or their coordinates, (k,).
            criterion: which; "mixing" is a density of coordinates.
            nodes: of regions, by which the nodes were placed.
            coordinates: whether ``at`` is coordinates, as of "mixing" it always is.
        """
        mixing = criterion == "mixing"
        turned = coordinates or mixing
        start = self.of_coordinates(at) if turned else at
        coefficients = self.coefficients(criterion)

        def value(where: Tensor) -> Tensor:
            step = (self.of_coordinates(where) if turned else where) - start
            height = self.method.likelihood.height(sums, start, step, nodes, coefficients)
            return height + self.log_prior(where) if mixing else height

        exact = self.method.likelihood.derivatives(sums, coefficients) if len(at) else None
        if exact is not None:
            return self._by_coordinates(*exact, at, mixing=mixing) if turned else exact
        if not len(at):
            return value(at), at, at.new_zeros(0, 0)
        with torch.enable_grad():
            leaf = at.detach().clone().requires_grad_()
            height = value(leaf)
            (slope,) = torch.autograd.grad(height, leaf, create_graph=True)
            bend = torch.stack([torch.autograd.grad(part, leaf, retain_graph=True)[0] for part in slope])
        return height.detach(), slope.detach(), -bend

    def _by_coordinates(
        self, height: Tensor, slope: Tensor, curvature: Tensor, at: Tensor, *, mixing: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """A criterion's height, gradient and curvature by coordinates x (k,), of those by numbers theta(x).

        With J = d theta / dx: J^T g, and J^T C J less what g^T theta(x) bends; and the prior, where they are mixed.
        Nothing bends where theta(x) = x and the prior is flat: with a fixed prior only log sigma is left.
        """
        with torch.enable_grad():
            leaf = at.detach().clone().requires_grad_()
            numbers = self.of_coordinates(leaf)
            prior = self.log_prior(leaf) if mixing else height.new_zeros(())
            (first,) = torch.autograd.grad(slope @ numbers + prior, leaf, create_graph=True)
            bend, turn = _jacobian(first, leaf), _jacobian(numbers, leaf)
        return height + prior.detach(), first.detach(), turn.mT @ curvature @ turn - bend


def _jacobian(vector: Tensor, leaf: Tensor) -> Tensor:
    """Derivatives of each number by each of the leaf's, zero where it is a constant."""
    zero = torch.zeros_like(leaf)
    return torch.stack([
        torch.autograd.grad(part, leaf, retain_graph=True)[0] if part.requires_grad else zero for part in vector
    ])  # fmt: skip


def upright(method: MixedModel, state: State) -> State:
    """Changes signs such that L's diagonal is above zero, and those of the derivatives with them."""
    sizes, covariances = method.sizes, method.covariances
    signs = {k: covariances[k].signs(state[k]) for k in sizes if k in covariances}
    if not signs:
        return state
    sign = torch.cat([signs.get(k, state["slope"].new_ones(size)) for k, size in sizes.items()])
    turned = {k: state[k] * signs_of_level for k, signs_of_level in signs.items()} | {"slope": state["slope"] * sign}
    turned["curvature"] = state["curvature"] * sign * sign[:, None]
    once = sign[:, None]
    by = {"cross_1": once, "cross_2": once[:, None] * once}
    turned |= {name: state[name] * by[name] for name in by if name in state}
    return {**state, **turned}
