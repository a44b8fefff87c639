"""Generalised linear mixed models: coefficients that differ between clients.

    b_j | L ~ N(0, L L^T)                      random effects, q numbers; L a lower triangle, or blocks of them  (1)
    eta_ij  = c + x_ij^T beta + z_ij^T b_j     beta the fixed effects, p numbers; c about where eta lies    (4)
    y_ij    ~ p(y | eta_ij)                    N(eta_ij, sigma^2), Poisson(exp(eta_ij)), ...: the family    (5)

Clients may have standard deviations of residuals of their own, log sigma_ij = d_ij^T gamma + e_j: e_j is the last of
b_j, in units of the response's spread, and its column of z is zero.

Groups inside a client (patients of a hospital) and groups of clients (regions of hospitals) have random effects, too:

    c_jg    ~ N(0, L_in L_in^T)                eta_ij gains z_in^T c_jg of its group g                      (2)
    w_r     ~ N(0, L_out L_out^T)              and z_out^T w_r of its client's group r                      (3)

Numbers of equations, here and in the other files, are those of docs/algebra.md.

c has the row's own offset in it; log p counts as often as the row's weight says. x and z are the table's columns
centred and scaled (:class:`~hierfl.data.formula.design.Units`); what is reported is in the table's own units. The
shared values are beta, L's entries, and the family's own numbers, such as log sigma.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from pyro import poutine
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.data.formula.design import Columns
from hierfl.data.formula.parsed import CLIENT
from hierfl.errors import UserError
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.state import State
from hierfl.ppl.normal_of_root import NormalOfRoot
from hierfl.ppl.plates import clients, data, param, sample
from hierfl.responses.formulas import OWN_SPREAD

from .arithmetic import curve, each, linear, of_groups, positive
from .population import Population

#: a residual's standard deviation below this share of the response's is none: what is left are lost digits
EXACT_SHARE = 1e-6


class MixedModel(Population):
    """The joint model, and the shared values that it has."""

    def shared(self, start: InitialWeights) -> State:
        p, learned = len(self.network.fixed), self.settings.prior == "hierarchical"
        where = "effects" if learned else "held"
        values = {"effects.beta": torch.zeros(p), **{f"{where}.{k}": root for k, root in self.first_roots().items()}}
        for level in self.above:
            values[f"effects.{level.effects}"] = torch.zeros(level.size, level.q)
        values |= {f"effects.{name}": first for name, first in self.response_family.starts.items()}
        return {k: v.double() for k, v in values.items()}

    def values(self) -> State:
        """The family's own numbers, by their short names."""
        return {name: param(f"effects.{name}") for name in self.response_family.starts}

    def prior(self, level: str) -> NormalOfRoot:
        """The prior of a level's effects, L learned or held."""
        entries = param(f"{'effects' if self.settings.prior == 'hierarchical' else 'held'}.{level}")
        root = positive(self.covariances[level].matrix(entries))
        return NormalOfRoot(root.new_zeros(root.shape[-1]), root)

    def model(self, batch: Batch) -> None:
        if batch.x.dtype != torch.float64:
            raise UserError("mixed-effects models are fitted in double precision: dtype=torch.float64")
        columns = self.network.split(batch.x)
        with clients(batch):
            effects = {}  # (K, S, 1, q), and (K, S, 1, groups, q) of groups inside
            for level in self.at_site:
                prior = self.prior(level.name)
                effects[level.kind] = sample(level.effects, each(prior, level.size) if level.inside else prior)
            with data(batch):
                eta = self.predictor(columns, param("effects.beta"))
                for level in self.above:
                    shared = param(f"effects.{level.effects}")
                    if level.smooth:
                        eta = eta + curve(columns.for_level(level.kind)[0], shared)
                    else:
                        effects[level.kind] = shared
                for kind, values in effects.items():
                    z, group = columns.for_level(kind)
                    eta = eta + linear(z, values if group is None else of_groups(values, group))
                with poutine.scale(scale=1.0 if columns.weight is None else columns.weight):
                    values = {**self.values(), **self.spread(effects[CLIENT])}
                    sample("y", self.response(eta, values, columns), obs=batch.y)

    def predictor(self, columns: Columns, beta: Tensor) -> Tensor:
        """What the linear predictor is without random effects, (..., S, n)."""
        base = linear(columns.x, beta) + self.network.offset
        return base if columns.offset is None else base + columns.offset

    def spread(self, effects: Tensor) -> State:
        """The excess e_j (...), of clients' effects (..., q), of their residuals' log standard deviations over their
        formula,
        e_j (...), as :meth:`response` takes it; nothing where clients have none of their own.
        """
        return {OWN_SPREAD: effects[..., -1] / self.network.scale} if self.network.spread else {}

    def reproduces_rows(self, shared: Mapping[str, Tensor]) -> bool:
        """Whether the residual's standard deviation is nothing beside the response's: the likelihood has no maximum."""
        noise = shared.get("effects.log_noise")
        return noise is not None and bool((noise.exp() < EXACT_SHARE * self.network.scale).any())

    def response(self, eta: Tensor, values: Mapping[str, Tensor], columns: Columns) -> Any:
        """p(y | eta)."""
        return self.response_family.distribution(eta, values, columns)
