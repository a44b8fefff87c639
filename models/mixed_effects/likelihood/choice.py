"""Which likelihood a model has."""

from __future__ import annotations

from hierfl.responses.registry import RESPONSES

from ..model.equations import MixedModel
from .gaussian.likelihood import Gaussian
from .gaussian.own_spreads import OwnSpreads
from .gaussian.row_variances import RowVariances
from .joint.gaussian import JointGaussian
from .joint.weighted import WeightedGaussian
from .protocol import Likelihood
from .quadrature.at_nodes import AtNodes
from .quadrature.crossed_laplace import CrossedLaplace
from .quadrature.likelihood import Quadrature


def likelihood_of(method: MixedModel) -> Likelihood:
    """Chooses a closed form where there is one, else quadrature, also over effects of groups of clients."""
    if method.network.spread:
        return OwnSpreads(method)
    if RESPONSES[method.network.family].closed_form:
        by_row = bool(method.network.own)
        if len(method.inside) > 1:
            return (WeightedGaussian if by_row or method.network.correlation else JointGaussian)(method)
        return (RowVariances if by_row else Gaussian)(method)
    if any(level.crossed for level in method.above):
        return CrossedLaplace(method)
    return AtNodes(method) if method.above else Quadrature(method)
