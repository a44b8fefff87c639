"""The search for restricted estimates, from the likelihood's maximum; see :mod:`..restricted`.

Beside it clients say which columns are the same in all of their rows (:mod:`.containment`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hierfl.inference.state import State

from ...model.equations import MixedModel
from ..criterion import Surface, upright
from ..requests import CONTAINMENT, EXPANSION, Phase
from ..restricted import Restricted
from ..restricted_point import changes, covariance
from ..separation import directions
from .base import SearchPhase


class Restrict(SearchPhase):
    """The phase of restricted errors or estimates of other responses than gaussian, where they are asked for."""

    number, request = Phase.RESTRICT, EXPANSION

    @classmethod
    def wanted(cls, method: MixedModel) -> bool:
        """See :attr:`.MixedModel.restricted`."""
        return method.restricted

    def begin(self) -> None:
        """Begins at the likelihood's maximum, standard deviations above zero."""
        search, values = self.search, self.search.values
        at = search.surface.of_coordinates(search.surface.inside(values))
        ways, gone = directions(search.method, values)
        flat = ways[:, gone] / ways[:, gone].norm(dim=0)
        search.memory.update(Restricted.begin(at, len(values["beta"]), flat).state())

    def ask(self) -> State:
        """The next point."""
        return {"at": Restricted.read(self.search.memory).asked}

    def tell(self, sums: State) -> None:
        """Takes derivatives of the log likelihood, and the sums from which containment is read."""
        search, values = self.search, self.search.values
        restricted = Restricted.read(search.memory)
        restricted = restricted.updated(*search.surface.expansion(sums, restricted.asked, "ml", search.known))
        search.memory.update(restricted.state())
        values.update({name: sums[name] for name in CONTAINMENT.reply(search.method)})
        values["at"] = restricted.asked
        self.done = bool(restricted.done)
        if self.done:
            values.update(estimates(search.surface, restricted, values["curvature"]))
            values.update(upright(search.method, values))


def estimates(surface: Surface, search: Restricted, curvature: Tensor) -> State:
    """What is broadcast at the end: restricted estimates; instead of the others, too, where those are asked for.

    Args:
        surface: of the search.
        search: at its end.
        curvature: of the likelihood at its maximum, (K, K).
    """
    basis, numbers = search.basis, search.best_numbers
    p = len(surface.method.network.fixed)
    of_coefficients = basis[-p:, search.t :]
    changed = numbers.new_zeros(len(numbers) - p, p, p)  # nothing along directions that have no end
    changed[: search.t] = of_coefficients @ changes(search.highest, search.bend, search.turning) @ of_coefficients.T
    values = {
        "restricted": numbers, "restricted_covariance": basis @ covariance(search.highest) @ basis.T,
        "restricted_changes": changed,
    }  # fmt: skip
    if surface.method.settings.population != "reml":
        return values
    constant = 0.5 * search.p * math.log(2 * math.pi) + surface.reml_constant
    rest = torch.eye(len(numbers)).to(numbers) - basis @ basis.T
    curvature = basis @ search.curvature @ basis.T + rest @ curvature @ rest
    return {
        **values, **surface.method.parts(numbers), "curvature": curvature, "slope": basis @ search.gradient,
        "height": search.height + constant,
    }  # fmt: skip
