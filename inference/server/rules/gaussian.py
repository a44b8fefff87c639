"""The product of the clients' Gaussian factors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import ClassVar

import torch
from torch import Tensor

from hierfl.ppl.gaussian_factors import Gaussian, Kind, packed_size

from ...clients.chunk import ClientChunk
from ...messages.form import Field, Form, not_negative
from ...state import State
from .base import AggregationContext


@dataclass(frozen=True)
class GaussianProduct:
    """The mean of the product of Gaussian factors: Lambda = sum Lambda_j, mu = Lambda^-1 sum Lambda_j mu_j.

    pFedVMP, Eq. 12 and 13, of the clients that report in the round. Where none of them says anything the value stays as
    it was, whatever the prior. A scalar precision n_j is
    :class:`~hierfl.inference.server.rules.means.SampleWeighted`, tau_j
    :class:`~hierfl.inference.server.rules.means.PrecisionWeightedMean`.

    Args:
        factors: what each row says of the value (*shape, D): h (S, *shape, D) and Lambda as
            :meth:`~hierfl.ppl.gaussian_factors.Gaussian.packed` has it.
        kind: of Lambda.
        prior: precision of a factor N(0, I / prior) more; 0 for none.
        dtype: of the factors: double precision, since their numbers may differ by much.
    """

    factors: Callable[[ClientChunk], tuple[Tensor, Tensor]]
    kind: Kind
    prior: float = 0.0
    dtype: torch.dtype = torch.float64
    sends_gradients: ClassVar[bool] = False

    def form(self, old: Mapping[str, Tensor]) -> Form:
        """Lambda, which is a precision, or nothing; and h = Lambda mu, with mu on the value's scale."""
        ((name, value),) = old.items()
        *some, d = value.shape
        size = (*some, packed_size(d, self.kind))
        if self.kind != "full":
            weighted = Field((*some, d), self.dtype, scaled=True, weight=itemgetter("precision"))
            return {name: weighted, "precision": Field(size, self.dtype, not_negative)}

        def mean(message: Mapping[str, Tensor]) -> Tensor:
            """Not a number where Lambda has a negative direction; huge where h lies outside of its range."""
            return Gaussian.unpacked(message[name], message["precision"], "full").regularised_mean()

        linear = Field((*some, d), self.dtype, scaled=True, value=mean, agrees=lambda sent: mean(sent).isfinite())
        return {name: linear, "precision": Field(size, self.dtype)}

    def message(self, names: Sequence[str], chunk: ClientChunk) -> State:
        """(h_j, Lambda_j), the latter packed."""
        (name,) = names
        linear, precision = self.factors(chunk)
        return {name: linear, "precision": precision}

    def update(self, old: State, total: State, context: AggregationContext) -> State:
        """The product's mean."""
        ((name, value),) = old.items()
        product = Gaussian.unpacked(total[name], total["precision"], self.kind)
        if self.prior:
            weight = product.linear.new_full((*value.shape[:-1], 1), self.prior)
            product = product * Gaussian(torch.zeros_like(product.linear), weight, "scalar")
        spoken = (total["precision"] != 0).any(-1, keepdim=True)
        return {name: torch.where(spoken, product.mean(value), value)}
