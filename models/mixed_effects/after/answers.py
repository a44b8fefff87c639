"""What a fitted mixed model is asked after a summary."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from hierfl.argument_types import typed_call
from hierfl.data.formula.reader import Reader
from hierfl.errors import UserError
from hierfl.inference.run.result import Run

from ..report.printed import check_level
from ..report.summary import effects_table
from .again import MadeAgain
from .coefficients import Coefficients
from .grid import At, check_no_truths
from .hypotheses import hypotheses
from .influence import influences
from .means import Asked, Kind, Scale, contrasts, marginal_means
from .of_rows import OfRows
from .simultaneous import Adjust
from .type3 import type3
from .variance import partition

if TYPE_CHECKING:
    import pandas as pd


class AfterFit(OfRows, MadeAgain):
    """Answers of a fit from what it kept of its clients' sums."""

    run: Run

    @cached_property
    def _coefficients(self) -> Coefficients:
        return Coefficients.from_fit(self.run.fitted)

    @cached_property
    def _numbers(self) -> dict[str, float]:
        return effects_table(self.run.fitted)[1]

    @property
    def _reader(self) -> Reader:
        reader = self.run.fitted.federation.about["reader"]
        assert isinstance(reader, Reader)
        return reader

    # -- numbers ------------------------------------------------------------------------------------------------------

    @property
    def params(self) -> pd.Series:
        """The coefficients, in the table's units; of a posterior their means."""
        import pandas as pd

        coefficients = self._coefficients
        return pd.Series(coefficients.values, pd.Index(coefficients.names, name="effect"), name="estimate")

    @typed_call
    def vcov(self) -> pd.DataFrame:
        """The coefficients' covariance, of which the summary's standard errors are the roots of the diagonal.

        Of a gaussian response (X^T V^-1 X)^-1, or Kenward and Roger's; of others that at the restricted estimates, or
        the inverse of the curvature. Not a number for a coefficient at infinity.
        """
        import pandas as pd

        coefficients = self._coefficients
        return pd.DataFrame(coefficients.covariance, list(coefficients.names), list(coefficients.names))

    @typed_call
    def confint(self, level: float = 0.95) -> pd.DataFrame:
        """Intervals of all effects, lower and upper, as the summary has them.

        Args:
            level: of the intervals.
        """
        check_level(level)
        return effects_table(self.run.fitted, level)[0].set_index("effect")[["lower", "upper"]]

    @property
    def nobs(self) -> int:
        """Rows that were fitted, each once, whatever its weight."""
        return int(self._numbers["rows"])

    @property
    def aic(self) -> float:
        """2 k - 2 l: l the :attr:`log_likelihood` with random effects integrated out, k all numbers that are estimated,
        coefficients, variances, covariances and the response's own. Of REML l is its criterion, which may be compared
        between fits with the same coefficients alone. Not a number for a posterior.
        """
        return self._numbers.get("aic", float("nan"))

    @property
    def bic(self) -> float:
        """k log n - 2 l, n the :attr:`nobs`; k and l as those of :attr:`aic`."""
        return self._numbers.get("bic", float("nan"))

    # -- tests --------------------------------------------------------------------------------------------------------

    @typed_call
    def test(self, hypothesis: str) -> pd.DataFrame:
        """A Wald test of linear hypotheses about the coefficients, all together.

        F with the denominator's degrees of freedom by Fai and Cornelius from those of the summary's t (or Kenward and
        Roger's test, of a fit with ``kenward_roger=True``); chi-squared where they are infinite.

        Args:
            hypothesis: such as ``"x = z = 0"``, ``"arm[b] - arm[c]"`` (is zero) or ``"2 * x + z = 1, w = 0"``:
                coefficients by their names in the summary.

        Returns:
            One row: hypothesis, statistic, df, df_residual, p, reference.

        Raises:
            UserError: for text that says nothing of coefficients, hypotheses that depend on each other, a coefficient
                at infinity, and a posterior.
        """
        import pandas as pd

        sentences, contrast, against = hypotheses(hypothesis, self._coefficients.names)
        wald = self._coefficients.wald(contrast, against)
        return pd.DataFrame([{
            "hypothesis": ", ".join(dict.fromkeys(sentences)), "statistic": wald.statistic, "df": wald.q,
            "df_residual": wald.df, "p": wald.p, "reference": wald.reference,
        }])  # fmt: skip

    @typed_call
    def anova(self, type: Literal[3] = 3) -> pd.DataFrame:
        """A Wald test of each term beside all others, as :meth:`test` makes it, whatever the coding.

        Type 3: a term's hypothesis is of its sum-to-zero contrasts. A main effect is the mean over the levels of the
        categories that it interacts with, equal weights each, and is at zero of the numbers that it interacts with:
        ``arm * center(x)`` asks about arms at the mean of x.

        Args:
            type: 3; :meth:`compare` tests nested models.

        Returns:
            A row for each term: term, statistic, df, df_residual, p, reference.

        Raises:
            UserError: for another type; for a formula without an intercept or a term that an interaction contains, with
                columns that were dropped, as of empty cells, or with True and False as a number.
        """
        import pandas as pd

        if type not in (3, "III", "3"):
            raise UserError(f"anova is of type 3, not {type!r}: compare(other) tests nested models")
        coefficients = self._coefficients
        coefficients.check_estimates("anova")
        check_no_truths(self._reader, "type 3 tests")
        rows = []
        for name, contrast in type3(self._reader, coefficients.names).items():
            wald = coefficients.wald(contrast, np.zeros(len(contrast)))
            rows.append({
                "term": name, "statistic": wald.statistic, "df": wald.q, "df_residual": wald.df, "p": wald.p,
                "reference": wald.reference,
            })  # fmt: skip
        return pd.DataFrame(rows)

    # -- marginal means -----------------------------------------------------------------------------------------------

    @typed_call
    def means(
        self, of: str | Sequence[str], *, by: str | Sequence[str] = (), at: At | None = None, scale: Scale = "link",
        level: float = 0.95, adjust: Adjust = "none",
    ) -> pd.DataFrame:  # fmt: skip
        """Estimated marginal means: of each level of a category, others averaged over with equal weights.

        Numbers are at their means over all rows, each once whatever its weight, random effects at zero.

        Args:
            of: one or several predictors, none for the mean over all; numbers among them have values in ``at``.
            by: others within whose levels means are listed.
            at: where predictors are: a number, a level, or several, as in ``{"dose": 2, "arm": ["a", "b"]}``.
            scale: "link", of the linear predictor; "response", the mean of a response at these (of one trial): of a
                client whose random effects are zero, which is a median over clients, not their mean. Its interval is
                that of the linear predictor transformed, its standard error by the delta method; the response's own
                numbers, such as a shape, are taken for known.
            level: of the intervals.
            adjust: "none", each interval by itself; "mvt" by the multivariate t's distribution, with the fewest degrees
                of freedom among them, or "bonferroni": all intervals together (within ``by``).

        Returns:
            A row for each: the predictors, mean, standard_error, df, lower, upper; ``attrs["at"]`` says where numbers
            are. Not a number where an empty cell leaves a mean unknown. Of a posterior they are means, standard
            deviations and quantiles.

        Raises:
            UserError: for predictors or levels that are not there, numbers whose means are not known, or a formula with
                True and False as a number: ``factor(b)`` makes a category of them.
        """
        check_level(level)
        asked = Asked(_names(of), _names(by), at or {}, scale, level, adjust)
        return marginal_means(self._reader, self._coefficients, asked)

    @typed_call
    def contrast(
        self, of: str | Sequence[str], *, by: str | Sequence[str] = (), kind: Kind = "pairwise", at: At | None = None,
        scale: Scale = "link", level: float = 0.95, adjust: Adjust = "auto",
    ) -> pd.DataFrame:  # fmt: skip
        """Differences of estimated marginal means, with simultaneous intervals and p values.

        Args:
            of: one or several predictors, whose combinations of levels are compared.
            by: others within whose levels that is done; intervals hold together within each.
            kind: "pairwise", all pairs; "trt.vs.ctrl", each level less the first.
            at: see :meth:`means`; ``{"arm": ["b", "a", "c"]}`` orders levels.
            scale: "response" makes ratios of differences, exp of them, where they are odds, rate or hazard ratios or
                the like; of hurdles and truncated counts of rates before truncation, not of means.
            level: of the intervals.
            adjust: "tukey" by the studentized range, of all pairs (of unequal variances by Kramer); "mvt" by the
                multivariate t's distribution; "bonferroni"; "none". "auto" is Tukey's of pairs and else "mvt".

        Returns:
            A row for each: contrast, ``by``, estimate (or ratio), standard_error, df, statistic, p, lower, upper.

        Raises:
            UserError: as :meth:`means`; for one level.
        """
        check_level(level)
        asked = Asked(_names(of), _names(by), at or {}, scale, level, adjust)
        return contrasts(self._reader, self._coefficients, asked, kind)

    # -- variance, clients --------------------------------------------------------------------------------------------

    @typed_call
    def icc(self) -> pd.DataFrame:
        """The partition of variance: a row for each level of random effects, the residual and the fixed effects.

        Columns: variance; icc, the level's share of what fixed effects leave; share, of all. Of a random slope the
        variance is the mean over rows of z^T Sigma z (Johnson, 2014). The residual of other responses than gaussian is
        on the linear predictor's scale (Nakagawa, Johnson and Schielzeth, 2017); see :mod:`.variance`. Rows count once,
        whatever their weights.

        Raises:
            UserError: for a response of which the source has no such variance.
        """
        return partition(self.run, self._coefficients).table()

    @typed_call
    def r2(self) -> pd.Series:
        """Shares of variance: marginal, of fixed effects; conditional, of fixed and random effects; see :meth:`icc`.

        Raises:
            UserError: as :meth:`icc`.
        """
        return partition(self.run, self._coefficients).r2()

    @typed_call
    def influence(self) -> pd.DataFrame:
        """What each client does to the coefficients: a row for each client, no row is read again.

        Columns: client, rows, cooks_distance (over the number of coefficients), and each coefficient's estimate without
        the client: of a gaussian response exact given the variances of all, of others by one Newton step; note, where
        the others know nothing of a coefficient, as of a level that one client alone has.

        Raises:
            UserError: of a fit with groups of clients, or in which single clients' messages were not seen.
        """
        return influences(self.run, self._coefficients)


def _names(given: Any) -> list[str]:
    """One name or several."""
    return [given] if isinstance(given, str) else list(given)
