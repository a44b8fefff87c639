"""What a fit says of rows: fitted values, residuals, simulated responses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hierfl.argument_types import typed_call
from hierfl.inference.run.result import Run

from .histogram import histogram
from .residuals import Residual, fitted_values, residual_values
from .rows import RowLevel
from .simulation import simulations

if TYPE_CHECKING:
    import pandas as pd


class OfRows:
    """Answers of rows: those of the fit, where they are here, or those of a table."""

    run: Run

    @typed_call
    def fitted(self, df: pd.DataFrame | None = None, level: RowLevel = "client") -> pd.Series:
        """Means of responses at the estimates, without draws and intervals (:meth:`predict` has them).

        As R's ``fitted``; but of successes ``p(k, n)`` expected successes, where R has probabilities.

        Args:
            df: a table with the predictors; None for the rows that were fitted, where they are here.
            level: "client", with each client's effects at their mean given the estimates (of other responses than
                gaussian at their mode); "population" or "new", with effects at zero.

        Raises:
            UserError: as :meth:`predict`; where the fit's rows are not here.
        """
        return fitted_values(self.run, df, level)

    @typed_call
    def residuals(
        self, kind: Residual = "response", df: pd.DataFrame | None = None, *, level: RowLevel | None = None,
        seed: int = 0,
    ) -> pd.Series:  # fmt: skip
        """Residuals of the rows that were fitted, or of another table.

        Args:
            kind: "response", the response less its :meth:`fitted` mean, as R's ``resid(m, type = "response")``, but
                that times the trials n of ``p(k, n)`` (the default of R's ``resid`` of a ``glmer`` is of deviance);
                "pearson", that over the response's standard deviation there; "quantile", the normal quantile of where
                the response lies in its distribution, drawn between the ends of its step where that is discrete or a
                time was not watched to its event (Dunn and Smyth, 1996): standard normal where the model holds. Their
                distribution function, ``scipy.stats.norm.cdf``, are DHARMa's scaled residuals.
            df: a table with the predictors and the response; None for the rows that were fitted, where they are here.
            level: "client", "population" or "new", as :meth:`predict`. By default "client", but of quantiles "new":
                random effects are integrated out, so that rows of one client are not independent, but each one is
                standard normal. By "client" quantiles are of a distribution that the row's own response has moved.
            seed: of what is drawn.

        Raises:
            UserError: for an unknown kind; for a table that does not fit; where the fit's rows are not here.
        """
        return residual_values(self.run, df, kind, level, seed)

    @typed_call
    def residual_histogram(self) -> pd.DataFrame:
        """The rows of all clients by the quantile of their response, given each client's effects, in ten cells.

        Of continuous responses these are the counts of ``residuals("quantile", level="client")``, as probabilities.
        Of a study they are sums of what sites have counted, where it has ``residuals = true`` among its settings.

        Returns:
            lower, upper (of the cell), rows, expected. ``attrs`` has chi_squared, df and p of Pearson's test; p errs
            upwards, because effects were estimated from the same rows.

        Raises:
            UserError: for a fit without rows whose study has counted none.
        """
        return histogram(self.run)

    @typed_call
    def simulate(
        self, df: pd.DataFrame | None = None, n: int = 1, *, seed: int = 0, level: RowLevel = "new"
    ) -> pd.DataFrame:
        """Responses drawn at the estimates: a column for each of n replicates.

        Times to an event are drawn without censoring: each is the time of the row's event, also of rows that were
        censored.

        Args:
            df: a table with the predictors; None for the rows that were fitted, where they are here.
            n: replicates.
            seed: of what is drawn.
            level: "new", new random effects of each client and group that the table names; "client", those of the
                clients that were fitted, at their means given the estimates; "population", effects at zero.

        Raises:
            UserError: for a table that does not fit; where the fit's rows are not here.
        """
        return simulations(self.run, df, n, seed, level)
