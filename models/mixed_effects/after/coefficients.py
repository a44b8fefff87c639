"""The coefficients that a summary reports: their joint covariance, and degrees of freedom of what they add up to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from hierfl.errors import UserError
from hierfl.inference.evaluation.fitted import Fitted
from hierfl.inference.state import State

from ..model.effects import effects_of
from ..model.equations import MixedModel
from ..model.names import by_short_name, fixed_values
from ..report.coefficients import (
    by_containment,
    coefficients_covariance,
    contrasts_satterthwaite,
    f_in_eigenvectors,
    has_restricted,
    satterthwaite,
)
from ..report.kenward_roger import KenwardRoger
from ..report.summary import seen_curvature

#: hypotheses depend on each other where the correlations of their estimates have an eigenvalue below this
DEPENDENT = 1e-10
#: a coefficient has no part in a contrast where its standard error in it is below this share of the largest
ROUNDING = 1e-9


@dataclass(frozen=True)
class Coefficients:
    """Coefficients in the table's units, r of them; of a posterior their means and covariance.

    Attributes:
        method: whose.
        estimates: shared values by their short names.
        names: as the summary has them.
        values: (r,).
        covariance: (r, r); not a number in rows and columns of a coefficient at infinity.
        draws: of a posterior, (D, r); None for estimates.
    """

    method: MixedModel
    estimates: State
    names: tuple[str, ...]
    values: np.ndarray
    covariance: np.ndarray
    draws: np.ndarray | None = None

    @classmethod
    def from_fit(cls, fitted: Fitted) -> Coefficients:
        """Returns the coefficients of a fit, from what it kept of its clients' sums."""
        method, estimates = fitted.method, {k: v.cpu() for k, v in by_short_name(fitted.shared).items()}
        assert isinstance(method, MixedModel)
        labels, effects = effects_of(method, {k: v[None] for k, v in estimates.items()})
        names = tuple(name for name in labels if name in method.network.fixed)  # which come first
        r, values = len(names), effects[0].numpy()[: len(names)]
        if method.settings.population == "bayes":
            draws = effects_of(method, {**fixed_values(fitted.shared), **method.parts(fitted.shared["effects.draws"])})[
                1
            ]
            drawn = draws[:, :r].cpu().numpy()
            return cls(method, estimates, names, drawn.mean(0), np.cov(drawn.T).reshape(r, r), drawn)
        jacobian, inverse, infinite = seen_curvature(method, estimates)
        own = coefficients_covariance(method, estimates)
        covariance = (jacobian[:r] @ inverse @ jacobian[:r].T if own is None else own).detach().clone()
        lost = infinite[:r] | ~(covariance.diagonal() > 0)
        covariance[lost], covariance[:, lost] = torch.nan, torch.nan
        return cls(method, estimates, names, values, covariance.numpy())

    @property
    def errors(self) -> np.ndarray:
        """Standard errors, (r,)."""
        return np.sqrt(self.covariance.diagonal())

    def of_contrasts(self, contrast: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Values (q,) of contrasts (q, r), and their covariance (q, q); no numbers where a part is at infinity."""
        lost = np.isnan(self.covariance.diagonal())
        usable = np.where(lost, 0.0, contrast)
        covariance = usable @ np.where(np.isnan(self.covariance), 0.0, self.covariance) @ usable.T
        without_end = (contrast[:, lost] != 0).any(1)
        covariance[without_end], covariance[:, without_end] = np.nan, np.nan
        return contrast @ self.values, covariance

    def df(self, contrast: np.ndarray) -> np.ndarray:
        """Degrees of freedom of each contrast (q, r), (q,): those of the summary's t, infinite for a normal's.

        Satterthwaite's of a gaussian response, or Kenward and Roger's where they were asked for. Of others no more than
        the fewest by containment among the coefficients of the contrast. A posterior has none: infinitely many.
        """
        degrees = np.full(len(contrast), np.inf)
        if self.draws is not None:
            return degrees
        rows = torch.as_tensor(contrast, dtype=torch.float64)
        if not self.method.likelihood.searches_beta:
            turn = rows @ self._turn
            test = self._kenward_roger
            degrees = (
                satterthwaite(self.method, self.estimates, turn) if test is None else test.degrees_of_freedom(turn)
            ).numpy()
        else:
            fixed = self.method.network.fixed
            places = [fixed.index(name) for name in self.names]
            contained = by_containment(self.method, self.estimates).cpu().numpy()[places]
            part = np.abs(contrast) * np.nan_to_num(self.errors)
            degrees = np.where(part > ROUNDING * part.max(1, keepdims=True), contained, np.inf).min(1)
            if has_restricted(self.method, self.estimates):
                fewer = contrasts_satterthwaite(self.method, self.estimates, rows).numpy()
                degrees = np.where(np.isinf(degrees), degrees, np.maximum(np.fmin(degrees, fewer), 1.0))
        with np.errstate(invalid="ignore"):
            return np.where(np.isfinite(degrees) & (degrees > 0), degrees, np.inf)

    @cached_property
    def _kenward_roger(self) -> KenwardRoger | None:
        """Kenward and Roger's correction, where it was asked for."""
        asked = self.method.settings.kenward_roger and not self.method.likelihood.searches_beta
        return KenwardRoger.from_estimates(self.method, self.estimates) if asked else None

    @property
    def _turn(self) -> Tensor:
        """The coefficients in the table's units by those of the design, (r, r), of a gaussian response."""
        fixed = self.method.network.fixed
        return self.method.network.fixed_units.to_users(fixed, (len(fixed),), self.estimates["beta"])

    def wald(self, contrast: np.ndarray, against: np.ndarray) -> Wald:
        """A test of contrasts (q, r) being ``against`` (q,).

        Raises:
            UserError: for a posterior, for coefficients at infinity, and for contrasts that depend on each other.
        """
        self.check_estimates("a Wald test")
        lost = np.isnan(self.covariance.diagonal())
        if (far := (contrast[:, lost] != 0).any(0)).any():
            raise UserError(f"{self._lost(lost)[int(far.argmax())]!r} has no finite standard error: no Wald test")
        values, covariance = self.of_contrasts(contrast)
        unit = np.sqrt(covariance.diagonal().clip(0))
        correlation = covariance / np.where(unit > 0, unit, 1.0) / np.where(unit > 0, unit, 1.0)[:, None]
        if np.linalg.eigvalsh(correlation)[0] < DEPENDENT:
            raise UserError("the hypotheses depend on each other, or one is of no coefficient: leave one out")
        away, q = values - against, len(contrast)
        if (test := self._kenward_roger) is not None:
            rows = torch.as_tensor(contrast, dtype=torch.float64) @ self._turn
            return Wald(*test.f_test(torch.as_tensor(away), rows), q, "Kenward and Roger")

        def df_of(turn: Tensor) -> Tensor:
            return torch.as_tensor(self.df(turn.numpy() @ contrast))

        f_value, df, p = f_in_eigenvectors(torch.as_tensor(away), torch.as_tensor(covariance), df_of)
        if not np.isfinite(df):
            return Wald(q * f_value, np.inf, float(stats.chi2.sf(q * f_value, q)), q, "")
        return Wald(f_value, df, p, q, "" if self.method.likelihood.searches_beta else "Satterthwaite")

    def check_estimates(self, what: str) -> None:
        """Refuses what is of estimates, of a posterior.

        Raises:
            UserError: for a posterior.
        """
        if self.draws is not None:
            raise UserError(f"{what} is of estimates: of a posterior, posterior() has the draws")

    def _lost(self, lost: np.ndarray) -> Sequence[str]:
        return [name for name, out in zip(self.names, lost, strict=True) if out]


@dataclass(frozen=True)
class Wald:
    """A Wald test.

    Attributes:
        statistic: F, or chi-squared where df is infinite.
        df: of F's denominator.
        p: the p value.
        q: hypotheses that are tested together.
        how: whose degrees of freedom they are; empty of others.
    """

    statistic: float
    df: float
    p: float
    q: int
    how: str

    @property
    def reference(self) -> str:
        """The distribution that it is beside."""
        if not np.isfinite(self.df):
            return f"chi-squared({self.q})"
        return f"F({self.q}, {self.df:.1f}){', ' if self.how else ''}{self.how}"
