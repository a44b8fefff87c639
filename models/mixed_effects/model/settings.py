"""Settings of mixed models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hierfl.inference.method.settings import setting

from .response_settings import with_responses

#: where priors of the population say nothing
ESTIMATED = {"population": ("auto", "ml", "reml")}


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
    covariance: Literal["full", "diagonal"] = setting("full", "of a term's random effects: with correlations | without")
    sd_0: float = setting(
        1.0,
        "initial standard deviation of random effects: times a gaussian response's, over that of their column",
        above=0,
        at_most=1000,  # from further away a fit does not come back
        scale_of=("fixed",),  # where it begins, otherwise
    )
    noise_0: float = setting(
        1.0, "initial standard deviation of the residual, times the response's", above=0, at_most=1e4
    )
    nodes: int = setting(
        0, "other families: nodes of the quadrature along each random effect; 1 is Laplace's approximation, 0 what "
        "their number allows", at_least=0, at_most=1000
    )  # fmt: skip
    tol: float = setting(
        1e-6, "the fit ends where the Newton step to go is shorter, in standard errors", above=0, at_most=0.1
    )
    draws: int = setting(
        1000, "draws of the joint posterior of population and clients to keep; 0 for none, and no uncertainty of "
        "the population in the clients'", at_least=0, at_most=100_000
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
        1.0,
        "bayes: concentration of the correlations' LKJ prior; 1 is uniform",
        above=0,
        at_most=1e12,
        unless=ESTIMATED,
    )
    ranges: str = setting(
        "", "noise inside clients (dp=site): least and most of columns of numbers and of the response, as in 'age 18 "
        "95; sbp 70 230'; values beyond count at the end; a study has them in its dictionary", newer=True
    )  # fmt: skip
    residuals: bool = setting(
        False, "at the end clients count their rows by the quantiles of their responses, in ten cells, for a table "
        "and a test of the model in the report", newer=True
    )  # fmt: skip
