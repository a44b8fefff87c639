"""Shares of variance: intraclass correlations, and marginal and conditional R2.

Of a row's linear predictor eta there are the variance of x^T beta over rows, the mean over rows of z^T Sigma z of each
level (Johnson, Methods in Ecology and Evolution 5:944, 2014), and that of an observation beside them, on eta's scale
(Nakagawa, Johnson and Schielzeth, Journal of the Royal Society Interface 14:20170213, 2017):

    gaussian, lognormal          sigma^2
    student-t                    scale^2 df / (df - 2)
    binomial, ordinal            pi^2 / 3, the logistic distribution's
    binomial-probit, -cloglog    1, a normal's, and pi^2 / 6, a Gumbel's
    poisson, negative-binomial, nbinom1, generalised-poisson    log(1 + v / lambda^2), v their variance at mean lambda
    gamma                        log(1 + 1 / shape)
    exponential, weibull, cox    pi^2 / 6, of log H_0(t), a Gumbel's whatever the baseline hazard

lambda is the mean of a response over rows and random effects, exp(mean of eta + half the variance of eta), instead of
what a second fit without covariates would say. Others are refused: docs/mixed-after.md has their list.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import log1p, pi
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from hierfl.data.formula.units import INTERCEPT
from hierfl.errors import UserError
from hierfl.inference.run.result import Run

from ..model.equations import MixedModel
from ..model.levels import Level
from .coefficients import Coefficients
from .rows import fitted_rows

if TYPE_CHECKING:
    import pandas as pd

#: what the other rows of the partition are called
FIXED, RESIDUAL = "fixed effects", "residual"


@dataclass(frozen=True)
class Partition:
    """The parts of the variance of a row's linear predictor and response.

    Attributes:
        fixed: of fixed effects, over rows.
        random: of each level.
        residual: of an observation.
    """

    fixed: float
    random: dict[str, float]
    residual: float

    @property
    def total(self) -> float:
        """All of it."""
        return self.fixed + sum(self.random.values()) + self.residual

    def table(self) -> pd.DataFrame:
        """See :meth:`.answers.AfterFit.icc`."""
        import pandas as pd

        variance = pd.Series({**self.random, RESIDUAL: self.residual, FIXED: self.fixed}, name="variance")
        table = variance.to_frame()
        table["icc"] = variance / (self.total - self.fixed)
        table.loc[[RESIDUAL, FIXED], "icc"] = np.nan
        table["share"] = variance / self.total
        return table.rename_axis("level")

    def r2(self) -> pd.Series:
        """See :meth:`.answers.AfterFit.r2`."""
        import pandas as pd

        conditional = self.fixed + sum(self.random.values())
        return pd.Series({"marginal": self.fixed / self.total, "conditional": conditional / self.total}, name="r2")


def partition(run: Run, coefficients: Coefficients) -> Partition:
    """The variances of a fit; from sums over rows that the design keeps, and from rows where it does not.

    Raises:
        UserError: for a response of which the source has no variance; for random columns whose squares are not known.
    """
    method, n = coefficients.method, float(coefficients.estimates["counts"][1])
    names = [name for name in coefficients.names if name not in INTERCEPT]
    beta = np.array([coefficients.values[coefficients.names.index(name)] for name in names])
    moments = _second_moments(run, method, ["", *names])  # of a column of ones first
    mean = moments[0, 1:]
    covariance = moments[1:, 1:] - np.outer(mean, mean)
    fixed = float(beta @ covariance @ beta) * n / max(n - 1, 1)
    random = {_called(run, of): _of_level(run, coefficients, of) for of in method.levels}
    return Partition(fixed, random, _observation(run, coefficients, float(mean @ beta), fixed + sum(random.values())))


def _called(run: Run, level: Level) -> str:
    """The column that a level's groups are of."""
    return level.grouping.factor or run.fitted.federation.about["reader"].places.levels.client


def _of_level(run: Run, coefficients: Coefficients, level: Level) -> float:
    """The mean over rows of z^T Sigma z."""
    if level.smooth:
        raise UserError(f"shares of variance are of groups, and {level.grouping.factor} is a curve: no R2, no ICC")
    root = level.grouping.to_users(coefficients.estimates["beta"]) @ level.root(coefficients.estimates[level.name])
    sigma = (root @ root.mT).numpy()
    names = ["" if name in INTERCEPT else name for name in level.grouping.names]
    return float((sigma * _second_moments(run, coefficients.method, names, level)).sum())


def _second_moments(run: Run, method: MixedModel, names: Sequence[str], level: Level | None = None) -> np.ndarray:
    """Means over rows of products of columns, (m, m): those that the fixed effects have too come from sums.

    Args:
        run: the fit.
        method: whose.
        names: of columns, "" of a column of ones.
        level: the level whose columns they are; None for fixed ones.
    """
    design = method.network
    ones = any(name in INTERCEPT for name in design.fixed)
    if all(not name or name in design.fixed for name in names) and (
        names == [""] or (ones and design.fixed_correlation)
    ):
        correlation = np.array(design.fixed_correlation or [[1.0]])
        places = [design.fixed.index(name) if name else -1 for name in names]
        centre = np.array([design.fixed_units.centre[k] if k >= 0 else 1.0 for k in places])
        scale = np.array([design.fixed_units.scale[k] if k >= 0 else 0.0 for k in places])
        return np.outer(centre, centre) + np.outer(scale, scale) * correlation[np.ix_(places, places)]
    columns = _columns(fitted_rows(run).inputs, method, names, level).numpy()
    return columns.T @ columns / len(columns)


def _columns(inputs: Tensor, method: MixedModel, names: Sequence[str], level: Level | None) -> Tensor:
    """Columns of rows by name, as the table has them, (N, m)."""
    design, first = method.network, 0
    own = list(design.fixed)
    if level is not None:
        first = len(design.fixed)
        for grouping in design.groupings.values():
            own = list(grouping.names)
            if tuple(own) == level.grouping.names and grouping.factor == level.grouping.factor:
                break
            first += len(own)
    ones = torch.ones_like(inputs[:, 0])
    return torch.stack([inputs[:, first + own.index(name)] if name else ones for name in names], 1)


def _observation(run: Run, coefficients: Coefficients, mean: float, variance: float) -> float:
    """The variance of an observation beside eta, on its scale.

    Raises:
        UserError: for a response of which the source has none.
    """
    method, family = coefficients.method, coefficients.method.response_family
    if method.network.own:
        raise UserError("rows have variances of their own by a formula: no R2, no ICC of them all")
    if "precision" in method.network.extras:  # in whose unit sigma^2 is
        raise UserError("rows have variances of their own by precision weights: no R2, no ICC of them all")
    learned = family.own(*_first(method, coefficients)).items()
    own = {"df": getattr(family, "known_df", 0.0)} | {k: float(v) for k, v in learned if v.numel() == 1}
    if family.name in CONSTANT and not method.network.known:
        return CONSTANT[family.name](own)
    if family.name in OF_COUNTS:
        rate = _rate(run, coefficients, mean, variance)
        return float(np.log1p(OF_COUNTS[family.name](rate, own) / rate**2))
    with_errors = " with known standard errors" if method.network.known else ""
    raise UserError(
        f"a {family.name} response{with_errors} has no variance of an observation on its predictor's scale: no R2, no "
        "ICC"
    )


def _first(method: MixedModel, coefficients: Coefficients) -> tuple[Sequence[str], Tensor, dict[str, Tensor]]:
    """What a response's own numbers are made of."""
    values = {name: value[None] for name, value in coefficients.estimates.items()}
    return method.network.fixed, values["beta"], values


def _rate(run: Run, coefficients: Coefficients, mean: float, variance: float) -> float:
    """The mean count over rows and random effects: the exp of eta's mean and half its variance."""
    method, more = coefficients.method, 0.0
    if "offset" in method.network.extras:
        offset = fitted_rows(run).columns(method).offset
        assert offset is not None
        more = float(offset.mean())
    intercept = [coefficients.values[k] for k, name in enumerate(coefficients.names) if name in INTERCEPT]
    return float(np.exp(sum(intercept) + mean + more + variance / 2))


def _of_students(own: Mapping[str, float]) -> float:
    """The variance of scale t(df), where there is one."""
    if own["df"] <= 2:
        raise UserError(f"Student's t with {own['df']:.3g} degrees of freedom has no variance: no R2, no ICC")
    return own["scale"] ** 2 / (1 - 2 / own["df"])


#: responses whose observations' variance has no mean in it, of their own numbers
CONSTANT: dict[str, Callable[[Mapping[str, float]], float]] = {
    **dict.fromkeys(("gaussian", "lognormal"), lambda own: own["sd(residual)"] ** 2),
    **dict.fromkeys(("binomial", "ordinal"), lambda own: pi**2 / 3),
    **dict.fromkeys(("binomial-cloglog", "exponential", "weibull", "cox"), lambda own: pi**2 / 6),
    "binomial-probit": lambda own: 1.0,
    "gamma": lambda own: log1p(1 / own["shape"]),
    "student-t": _of_students,
}
#: counts' variances given their mean
OF_COUNTS: dict[str, Callable[[float, Mapping[str, float]], float]] = {
    "poisson": lambda mean, own: mean,
    "negative-binomial": lambda mean, own: mean + mean**2 / own["size"],
    **dict.fromkeys(("nbinom1", "generalised-poisson"), lambda mean, own: mean * (1 + own["dispersion"])),
}
