"""Generalised linear mixed models: coefficients that differ between clients.

    b_j | L  ~ N(0, L L^T)                 random effects, q numbers; L diagonal, or any lower triangle
    eta_ij   = x_ij^T beta + z_ij^T b_j    beta the fixed effects, p numbers
    y_ij     ~ N(eta_ij, sigma^2)          gaussian (sigma learned, or known for each row)
    y_ij     ~ Bernoulli(logistic(eta_ij)) or Poisson(exp(eta_ij))

L is a diagonal of standard deviations times the Cholesky factor of a correlation matrix. The shared values are beta,
log standard deviations, the factor's rows below their diagonal up to their length, and log sigma.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from pyro.distributions import MultivariateNormal
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.data.formula.design import INTERCEPT, Design
from hierfl.errors import UserError
from hierfl.inference.method.base import Method
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.method.settings import setting
from hierfl.inference.state import State
from hierfl.nn.architecture import Architecture
from hierfl.ppl.plates import clients, data, param, sample

from .families import linear_predictor, response

#: random effects' standard deviations stay above this share of where they began: a variance that wants to be zero would
#: drift to minus infinity on the log scale
SD_FLOOR = 1e-4


class MixedModel(Method):
    """The joint model, and the shared values that it has."""

    tabular = True
    network: Design

    @dataclass(frozen=True)
    class Settings:
        """Where to begin, in units of the response's spread."""

        prior: Literal["hierarchical", "fixed"] = setting(
            "hierarchical", "standard deviations and correlations of random effects: learned | held at sd_0"
        )
        covariance: Literal["full", "diagonal"] = setting(
            "full", "of a client's random effects: with correlations | without"
        )
        sd_0: float = setting(
            1.0,
            "initial standard deviation of random effects: times a gaussian response's, over the column's root mean "
            "square",
            above=0,
            scale_of=("fixed",),  # (where it begins, otherwise)
        )
        noise_0: float = setting(1.0, "initial standard deviation of the residual, times the response's", above=0)
        chains: int = setting(10, "Metropolis-adjusted Langevin chains of each client", at_least=1)
        steps: int = setting(
            20, "binomial, poisson: steps of each chain in a round, the first half of them not used", at_least=2
        )
        newton_rounds: int = setting(
            40, "rounds in which the server takes whole Newton steps; later ones shrink as 1/t, which averages",
            at_least=1,
        )  # fmt: skip
        draws: int = setting(400, "draws to keep of each chain after the last round; 0 for none", at_least=0)
        thin: int = setting(4, "steps of a chain from one of these draws to the next", at_least=1)

    settings: Settings

    def __init__(self, network: Architecture, **settings: Any) -> None:
        if not isinstance(network, Design):
            raise UserError("mixed-effects models are made from a Design (--formula), not from a network")
        super().__init__(network, **settings)
        if network.separate and self.settings.covariance == "full":
            raise UserError("random effects in terms of their own have no correlations: say covariance=diagonal")

    def shared(self, start: InitialWeights) -> State:
        s, d, q = self.settings, self.network, len(self.network.random)
        beta = torch.tensor([d.centre if name in INTERCEPT else 0.0 for name in d.fixed], dtype=torch.float64)
        values = {"beta": beta, "log_sd": self.first_sd().log()}
        if s.covariance == "full" and q > 1:
            values["corr"] = torch.zeros(q * (q - 1) // 2)
        if self.network.family == "gaussian" and not self.network.known:
            values["log_noise"] = torch.tensor(s.noise_0 * d.scale, dtype=torch.float64).log()
        learned = {"log_sd", "corr"} if s.prior == "fixed" else set()
        return {f"{'held' if k in learned else 'effects'}.{k}": v.double() for k, v in values.items()}

    def first_sd(self) -> Tensor:
        """The random effects' standard deviations to begin with, (q,)."""
        return self.settings.sd_0 * self.network.scale / torch.tensor(self.network.units, dtype=torch.float64)

    def value(self, name: str) -> Tensor:
        """A shared value by its short name, learned or held."""
        held = self.settings.prior == "fixed" and name in ("log_sd", "corr")
        return param(f"{'held' if held else 'effects'}.{name}")

    def spread(self) -> Tensor:
        """L, (q, q) or rows (S, 1, q, q): standard deviations times the Cholesky factor of the correlations."""
        sd, q = self.value("log_sd").exp(), len(self.network.random)
        if self.settings.covariance == "diagonal" or q == 1:
            return torch.diag_embed(sd)
        below = torch.zeros((q * (q - 1) // 2, q, q), dtype=sd.dtype, device=sd.device)
        for k, (row, column) in enumerate(torch.tril_indices(q, q, -1).T.tolist()):
            below[k, row, column] = 1
        rows = torch.eye(q, dtype=sd.dtype, device=sd.device) + torch.tensordot(self.value("corr"), below, 1)
        return sd[..., None] * rows / rows.norm(dim=-1, keepdim=True)

    def noise(self, known: Tensor | None) -> Tensor:
        """A gaussian response's standard deviation, broadcast to (S, n)."""
        return self.value("log_noise").exp() if known is None else known

    def model(self, batch: Batch) -> None:
        if batch.x.dtype != torch.float64:
            raise UserError("mixed-effects models are fitted in double precision: dtype=torch.float64")
        x, z, known = self.network.split(batch.x)
        q = len(self.network.random)
        prior = MultivariateNormal(x.new_zeros(q), scale_tril=self.spread())
        with clients(batch):
            b = sample("b", prior)  # (K, S, 1, q)
            with data(batch):
                eta = linear_predictor(x, self.value("beta")) + linear_predictor(z, b)
                sample("y", self.response(eta, known), obs=batch.y)

    def response(self, eta: Tensor, known: Tensor | None) -> Any:
        """p(y | eta)."""
        family = self.network.family
        return response(family, eta, self.noise(known) if family == "gaussian" else None)

    @property
    def exact(self) -> bool:
        """Whether a client's posterior is known in closed form."""
        return self.network.family == "gaussian"
