"""Generalised linear mixed models: coefficients that differ between clients.

    b_j | L  ~ N(0, L L^T)                         random effects, q numbers; L a lower triangle, or blocks of them
    eta_ij   = c + x_ij^T beta + z_ij^T b_j        beta the fixed effects, p numbers; c about where eta lies
    y_ij     ~ p(y | eta_ij)                       N(eta_ij, sigma^2), Poisson(exp(eta_ij)), ...: the family

Groups inside a client (patients of a hospital) and groups of clients (regions of hospitals) have random effects, too:

    c_jg     ~ N(0, L_in L_in^T)                   eta_ij gains z_in^T c_jg of its group g
    w_r      ~ N(0, L_out L_out^T)                 and z_out^T w_r of its client's group r

c has the row's own offset in it; log p counts as often as the row's weight says. x and z are the table's columns
centred and scaled (:class:`~hierfl.data.formula.design.Units`); what is reported is in the table's own units. The
shared values are beta, L's entries, and the family's own numbers, such as log sigma.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from pyro import poutine
from pyro.distributions import MultivariateNormal
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.data.formula.design import Columns, Design
from hierfl.data.formula.grouping import Grouping
from hierfl.errors import UserError
from hierfl.inference.method.base import Method
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.method.settings import setting
from hierfl.inference.state import State
from hierfl.nn.architecture import Architecture
from hierfl.ppl.plates import clients, data, param, sample
from hierfl.responses.registry import RESPONSES, response_of

from ..likelihood.protocol import Likelihood
from .arithmetic import each, linear, of_groups, positive
from .covariance import Covariance
from .levels import Level, levels_of
from .prior_text import check_priors
from .response_settings import with_responses

#: where priors of the population say nothing
ESTIMATED = {"population": ("auto", "ml", "reml")}


class MixedModel(Method):
    """The joint model, and the shared values that it has."""

    tabular = True
    network: Design

    @dataclass(frozen=True)
    @with_responses(after="family_prior")
    class Settings:
        """What is estimated, how, and where it begins."""

        prior: Literal["hierarchical", "fixed"] = setting(
            "hierarchical", "standard deviations and correlations of random effects: learned | held at sd_0"
        )
        population: Literal["auto", "ml", "reml", "bayes"] = setting(
            "auto", "what is reported of the population: auto is restricted maximum likelihood of a gaussian response, "
            "and of others maximum likelihood with restricted errors and tests | maximum likelihood | restricted | its "
            "posterior under the priors below"
        )  # fmt: skip
        kenward_roger: bool = setting(
            False, "gaussian, restricted: standard errors of coefficients and F tests by Kenward and Roger's method",
            unless={"population": ("ml", "bayes")},
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
        lkj: float = setting(
            1.0, "bayes: concentration of the correlations' LKJ prior; 1 is uniform", above=0, unless=ESTIMATED
        )

    settings: Settings

    def __init__(self, network: Architecture, **settings: Any) -> None:
        if not isinstance(network, Design):
            raise UserError("mixed-effects models are made from a Design (--formula), not from a network")
        super().__init__(network, **settings)
        if self.settings.covariance == "diagonal":
            network = self.network = network.uncorrelated()
        #: by the names of the shared values that are their roots: the levels' effects, and their covariances
        self.levels = levels_of(network)
        self.groupings: dict[str, Grouping] = {level.name: level.grouping for level in self.levels}
        self.covariances: dict[str, Covariance] = {level.name: level.covariance for level in self.levels}
        self.covariance = self.covariances["root"]
        if self.settings.population == "auto":
            self.settings = replace(self.settings, population=self.likelihood.automatic)
        s = self.settings
        check_priors(s)
        if s.population == "bayes" and not s.draws:
            raise UserError("a posterior of the population is made of its draws: draws must be above 0")
        self.likelihood.check()
        if s.one_round and len(self.groupings) > 1:
            raise UserError("one_round is of clients without groups inside or above them: other fits take some rounds")
        if s.one_round and self.likelihood.searches_beta:
            raise UserError(f"one_round is of a gaussian response, not a {network.family} one")
        self.response_family = response_of(network, s)

    def shared(self, start: InitialWeights) -> State:
        p, learned = len(self.network.fixed), self.settings.prior == "hierarchical"
        where = "effects" if learned else "held"
        values = {"effects.beta": torch.zeros(p), **{f"{where}.{k}": root for k, root in self.first_roots().items()}}
        for level in self.above:
            values[f"effects.{level.effects}"] = torch.zeros(level.size, level.q)
        values |= {f"effects.{name}": first for name, first in self.response_family.starts.items()}
        return {k: v.double() for k, v in values.items()}

    def first_sd(self, level: str = "root") -> Tensor:
        """The standard deviations of a level's effects to begin with, of columns in the design's units, (q,)."""
        sd = self.settings.sd_0 * self.network.scale
        return torch.full((self.covariances[level].q,), sd, dtype=torch.float64)

    def first_roots(self) -> State:
        """The entries of each level's L to begin with."""
        return {k: of.diagonal(self.first_sd(k)) for k, of in self.covariances.items()}

    @property
    def likelihood(self) -> Likelihood:
        """What clients compute, and what the server makes of its sums."""
        raise NotImplementedError

    @property
    def inside(self) -> tuple[Level, ...]:
        """Levels inside a client."""
        return tuple(level for level in self.levels if level.inside)

    @property
    def above(self) -> tuple[Level, ...]:
        """Levels above the clients, whose effects the server integrates out."""
        return tuple(level for level in self.levels if level.where == "server")

    @property
    def at_site(self) -> tuple[Level, ...]:
        """Levels whose effects clients know: theirs, and those of groups inside."""
        return tuple(level for level in self.levels if level.where == "site")

    @property
    def regions(self) -> int:
        """Groups of clients, R."""
        return sum(level.groups for level in self.above)

    @property
    def slots(self) -> int:
        """Places for a client's groups, 0 where they have none."""
        return sum(level.size for level in self.inside)

    def values(self) -> State:
        """The family's own numbers, by their short names."""
        return {name: param(f"effects.{name}") for name in self.response_family.starts}

    def prior(self, level: str) -> MultivariateNormal:
        """Of a level's effects, L learned or held."""
        entries = param(f"{'effects' if self.settings.prior == 'hierarchical' else 'held'}.{level}")
        root = positive(self.covariances[level].matrix(entries))
        return MultivariateNormal(root.new_zeros(root.shape[-1]), scale_tril=root)

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
                effects |= {level.kind: param(f"effects.{level.effects}") for level in self.above}
                eta = self.predictor(columns, param("effects.beta"))
                for kind, values in effects.items():
                    z, group = columns.of(kind)
                    eta = eta + linear(z, values if group is None else of_groups(values, group))
                with poutine.scale(scale=1.0 if columns.weight is None else columns.weight):
                    sample("y", self.response(eta, self.values(), columns), obs=batch.y)

    def predictor(self, columns: Columns, beta: Tensor) -> Tensor:
        """What the linear predictor is without random effects, (..., S, n)."""
        base = linear(columns.x, beta) + self.network.offset
        return base if columns.offset is None else base + columns.offset

    def response(self, eta: Tensor, values: Mapping[str, Tensor], columns: Columns) -> Any:
        """p(y | eta)."""
        return self.response_family.distribution(eta, values, columns)

    # -- what clients' likelihoods are functions of -------------------------------------------------------------------

    @property
    def sizes(self) -> dict[str, int]:
        """How many numbers each value has that clients' messages are functions of; coefficients come last."""
        learned = self.settings.prior == "hierarchical"
        sizes = {k: of.entries for k, of in self.covariances.items()} if learned else {}
        sizes |= {name: first.numel() for name, first in self.response_family.starts.items()}
        return {**sizes, "beta": len(self.network.fixed)} if self.likelihood.searches_beta else sizes

    @property
    def k(self) -> int:
        """How many there are."""
        return sum(self.sizes.values())

    @property
    def parameters(self) -> int:
        """Numbers that are estimated, coefficients among them."""
        return sum({**self.sizes, "beta": len(self.network.fixed)}.values())

    def parts(self, numbers: Tensor) -> State:
        """The values (..., size) that numbers (..., k) are, the family's single ones (...).

        Draws of the population have a gaussian response's coefficients behind them, and the effects of groups of
        clients, regions (..., R + 1, q).
        """
        sizes = self.sizes
        if numbers.shape[-1] > self.k:
            sizes = {**sizes, "beta": len(self.network.fixed)}
            sizes |= {level.effects: level.size * level.q for level in self.above}
        found = dict(zip(sizes, numbers.split(list(sizes.values()), -1), strict=True))
        for level in self.above:
            if level.effects in found:
                found[level.effects] = found[level.effects].unflatten(-1, (level.size, -1))
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
    def restricted(self) -> bool:
        """Whether restricted estimates of another response than gaussian are searched."""
        asked = self.settings.population in ("auto", "reml")
        return asked and self.likelihood.searches_beta and self.k > len(self.network.fixed)

    @property
    def exact(self) -> bool:
        """Whether a client's posterior is known in closed form."""
        return RESPONSES[self.network.family].closed_form
