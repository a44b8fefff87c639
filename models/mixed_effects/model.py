"""Generalised linear mixed models: coefficients that differ between clients.

    b_j | L  ~ N(0, L L^T)                         random effects, q numbers; L a lower triangle, or blocks of them
    eta_ij   = c + x_ij^T beta + z_ij^T b_j        beta the fixed effects, p numbers; c about where eta lies
    y_ij     ~ p(y | eta_ij)                       N(eta_ij, sigma^2), Poisson(exp(eta_ij)), ...: the family

c has the row's own offset in it; log p counts as often as the row's weight says. x and z are the table's columns
centred and scaled (:class:`~hierfl.data.formula.design.Units`); what is reported is in the table's own units. The
shared values are beta, L's entries, and the family's own numbers, such as log sigma.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from pyro import poutine
from pyro.distributions import MultivariateNormal
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.data.formula.design import Columns, Design
from hierfl.errors import UserError
from hierfl.inference.method.base import Method
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.method.settings import setting
from hierfl.inference.state import State
from hierfl.nn.architecture import Architecture
from hierfl.ppl.plates import clients, data, param, sample

from .covariance import Covariance
from .dispersed import BetaBinomialFamily, NegativeBinomialFamily, ZeroInflatedPoissonFamily
from .families import BinomialFamily, GammaFamily, GaussianFamily, PoissonFamily, ResponseFamily
from .ordinal import OrdinalFamily
from .prior_text import check_priors
from .survival import PiecewiseExponentialFamily, WeibullFamily, read_cuts

#: where priors of the population say nothing
ESTIMATED = {"population": ("ml", "reml")}


class MixedModel(Method):
    """The joint model, and the shared values that it has."""

    tabular = True
    network: Design

    @dataclass(frozen=True)
    class Settings:
        """What is estimated, how, and where it begins."""

        prior: Literal["hierarchical", "fixed"] = setting(
            "hierarchical", "standard deviations and correlations of random effects: learned | held at sd_0"
        )
        population: Literal["ml", "reml", "bayes"] = setting(
            "ml", "what is reported of the population: maximum likelihood | restricted (gaussian) | its posterior "
            "under the priors below"
        )  # fmt: skip
        covariance: Literal["full", "diagonal"] = setting(
            "full", "of a term's random effects: with correlations | without"
        )
        sd_0: float = setting(
            1.0,
            "initial standard deviation of random effects: times a gaussian response's, over that of their column",
            above=0,
            scale_of=("fixed",),  # (where it begins, otherwise)
        )
        noise_0: float = setting(1.0, "initial standard deviation of the residual, times the response's", above=0)
        nodes: int = setting(
            0, "other families: nodes of the quadrature along each random effect; 1 is Laplace's approximation, 0 what "
            "their number allows", at_least=0
        )  # fmt: skip
        tol: float = setting(1e-6, "the fit ends where the Newton step to go is shorter, in standard errors", above=0)
        draws: int = setting(
            1000, "draws of the joint posterior of population and clients to keep; 0 for none, and no uncertainty of "
            "the population in the clients'", at_least=0
        )  # fmt: skip
        one_round: bool = setting(
            False,
            "gaussian: clients send their cross-products, each by itself, and the server does the rest",
        )
        least_rows: int = setting(
            0,
            "one_round: rows that a client must have to send them; 0 for two more than columns of effects",
            at_least=0,
            unless={"one_round": (False,)},
        )
        profile: float = setting(
            0.0, "level of profile-likelihood intervals of all but coefficients, such as 0.95: some six rounds for "
            "each bound; 0 for none", at_least=0, below=1, unless={"population": ("bayes",)}
        )  # fmt: skip
        intercept_prior: str = setting(
            "", "bayes: of the intercept, covariates at their means: normal(MEAN, SD) | flat; empty for a normal "
            "around the data's, 2.5 of the response's spread wide", unless=ESTIMATED
        )  # fmt: skip
        beta_prior: str = setting(
            "", "bayes: of the other coefficients: normal(MEAN, SD) | flat; empty for normal(0, 2.5 of the response's "
            "spread over the column's)", unless=ESTIMATED
        )  # fmt: skip
        sd_prior: str = setting(
            "", "bayes: of random effects' standard deviations, of an intercept where covariates are at their means: "
            "half-t(DF, SCALE) | half-cauchy(SCALE) | half-normal(SCALE) | gamma(SHAPE, RATE); empty for half-t(3, 2.5 "
            "of the response's spread over the column's)", unless=ESTIMATED
        )  # fmt: skip
        residual_prior: str = setting(
            "", "bayes: of the residual's standard deviation, as sd_prior; empty for half-t(3, 2.5 of the response's "
            "spread)", unless=ESTIMATED
        )  # fmt: skip
        family_prior: str = setting(
            "", "bayes: of the numbers that another response has of its own (logarithms of size, shape, precision and "
            "distances of thresholds, log hazard ratios, logit of extra zeros): normal(MEAN, SD) | flat; empty for "
            "normal(0, 3)", unless=ESTIMATED
        )  # fmt: skip
        cuts: str = setting(
            "", "exponential: times at which the hazard steps, such as 3, 6, 12; empty for a constant one"
        )
        lkj: float = setting(
            1.0, "bayes: concentration of the correlations' LKJ prior; 1 is uniform", above=0, unless=ESTIMATED
        )

    settings: Settings

    def __init__(self, network: Architecture, **settings: Any) -> None:
        if not isinstance(network, Design):
            raise UserError("mixed-effects models are made from a Design (--formula), not from a network")
        super().__init__(network, **settings)
        s = self.settings
        check_priors(s)
        if s.population == "bayes" and not s.draws:
            raise UserError("a posterior of the population is made of its draws: draws must be above 0")
        if s.population == "reml" and not self.exact:
            raise UserError(f"population=reml is of a gaussian response, not a {network.family} one")
        blocks = network.blocks if s.covariance == "full" else (1,) * len(network.random)
        self.covariance = Covariance(blocks)
        if s.one_round and not self.exact:
            raise UserError(f"one_round is of a gaussian response, not a {network.family} one")
        if s.cuts and network.family != "exponential":
            raise UserError(f"cuts are of an exponential response's hazard, not of a {network.family} one")
        self.response_family = family_of(network, s)

    def shared(self, start: InitialWeights) -> State:
        p, learned = len(self.network.fixed), self.settings.prior == "hierarchical"
        root = self.covariance.diagonal(self.first_sd())
        values = {"effects.beta": torch.zeros(p), f"{'effects' if learned else 'held'}.root": root}
        values |= {f"effects.{name}": first for name, first in self.response_family.starts.items()}
        return {k: v.double() for k, v in values.items()}

    def first_sd(self) -> Tensor:
        """The random effects' standard deviations to begin with, of columns in the design's units, (q,)."""
        return torch.full((len(self.network.random),), self.settings.sd_0 * self.network.scale, dtype=torch.float64)

    def values(self) -> State:
        """The family's own numbers, by their short names."""
        return {name: param(f"effects.{name}") for name in self.response_family.starts}

    def root(self) -> Tensor:
        """L's entries, learned or held, (r,)."""
        return param("effects.root" if self.settings.prior == "hierarchical" else "held.root")

    def model(self, batch: Batch) -> None:
        if batch.x.dtype != torch.float64:
            raise UserError("mixed-effects models are fitted in double precision: dtype=torch.float64")
        columns = self.network.split(batch.x)
        q = len(self.network.random)
        prior = MultivariateNormal(columns.x.new_zeros(q), scale_tril=positive(self.covariance.matrix(self.root())))
        with clients(batch):
            b = sample("b", prior)  # (K, S, 1, q)
            with data(batch):
                eta = self.predictor(columns, param("effects.beta")) + linear(columns.z, b)
                with poutine.scale(scale=1.0 if columns.weight is None else columns.weight):
                    sample("y", self.response(eta, self.values(), columns), obs=batch.y)

    def predictor(self, columns: Columns, beta: Tensor) -> Tensor:
        """What the linear predictor is without random effects, (..., S, n)."""
        base = linear(columns.x, beta) + self.network.offset
        return base if columns.offset is None else base + columns.offset

    def response(self, eta: Tensor, values: Mapping[str, Tensor], columns: Columns) -> Any:
        """p(y | eta)."""
        return self.response_family.response(eta, values, columns)

    # -- what clients' likelihoods are functions of -------------------------------------------------------------------

    @property
    def sizes(self) -> dict[str, int]:
        """How many numbers each value has that clients' messages are functions of; coefficients come last."""
        sizes = {"root": self.covariance.entries} if self.settings.prior == "hierarchical" else {}
        sizes |= {name: first.numel() for name, first in self.response_family.starts.items()}
        return sizes if self.exact else {**sizes, "beta": len(self.network.fixed)}

    @property
    def k(self) -> int:
        """How many there are."""
        return sum(self.sizes.values())

    def parts(self, numbers: Tensor) -> State:
        """The values (..., size) that numbers (..., k) are, the family's single ones (...).

        Numbers (..., k + p) of a gaussian response have its coefficients at their end.
        """
        sizes = self.sizes
        if numbers.shape[-1] > self.k:
            sizes = {**sizes, "beta": len(self.network.fixed)}
        found = dict(zip(sizes, numbers.split(list(sizes.values()), -1), strict=True))
        return {k: v.squeeze(-1) if k in self.single else v for k, v in found.items()}

    def numbers(self, parts: Mapping[str, Tensor]) -> Tensor:
        """(..., k) of the values."""
        found = [parts[k].unsqueeze(-1) if k in self.single else parts[k] for k in self.sizes]
        return torch.cat(found, -1) if found else torch.zeros(0, dtype=torch.float64)

    @property
    def single(self) -> set[str]:
        """The family's own values that are one number."""
        return {name for name, first in self.response_family.starts.items() if not first.dim()}

    @property
    def exact(self) -> bool:
        """Whether a client's posterior is known in closed form."""
        return self.network.family == "gaussian"


def family_of(design: Design, settings: Any) -> ResponseFamily:
    """A design's response.

    Args:
        design: whose.
        settings: of the method.
    """
    made: Mapping[str, Callable[[], ResponseFamily]] = {
        "gaussian": lambda: GaussianFamily(design.known, settings.noise_0 * design.scale),
        "binomial": BinomialFamily, "poisson": PoissonFamily, "gamma": GammaFamily,
        "negative-binomial": NegativeBinomialFamily, "zero-inflated-poisson": ZeroInflatedPoissonFamily,
        "beta-binomial": BetaBinomialFamily, "ordinal": lambda: OrdinalFamily(design.levels),
        "exponential": lambda: PiecewiseExponentialFamily(read_cuts(settings.cuts)),
        "weibull": lambda: WeibullFamily(design.offset),
    }  # fmt: skip
    return made[design.family]()


def linear(columns: Tensor, coefficients: Tensor) -> Tensor:
    """The sum of columns (..., p) times coefficients (..., p), one after the other.

    (Along a last dimension of a few numbers torch sums eight times slower than it adds, measured on a CPU.)
    """
    total = columns[..., 0] * coefficients[..., 0]
    for k in range(1, columns.shape[-1]):
        total = total + columns[..., k] * coefficients[..., k]
    return total


#: the log likelihood of a client where it is no number: low, and such that sums over clients are numbers
IMPOSSIBLE = -1e100


def sound(values: Tensor) -> Tensor:
    """Where numbers can be sent: squares of others are none, and a message that holds one is refused as a whole."""
    return values.abs() < -IMPOSSIBLE


#: a standard deviation of zero has no density: beside the largest entry of L it is taken for this much
LEAST_DIAGONAL = 1e-9


def positive(root: Tensor) -> Tensor:
    """The root of the same covariance as L (..., q, q), with a diagonal above zero."""
    sign = torch.where(root.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(root)
    root = root * sign.unsqueeze(-2)
    least = LEAST_DIAGONAL * root.detach().abs().amax((-1, -2)).clamp_min(LEAST_DIAGONAL)
    diagonal = root.diagonal(dim1=-2, dim2=-1)
    return root + torch.diag_embed(diagonal.maximum(least.unsqueeze(-1)) - diagonal)
