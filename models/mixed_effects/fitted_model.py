"""A fitted mixed model: summaries, predictions, random effects and tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hierfl.argument_types import typed_call
from hierfl.data.formula.references import references_of
from hierfl.errors import NoAttribute, UserError
from hierfl.inference.run.result import Run

from .after.again import Origin
from .after.answers import AfterFit
from .after.histogram import numbers_of
from .after.new_clients import predicted_after
from .method import MixedEffects
from .report.compare import REPLICATES, Test, compared
from .report.elsewhere import NAMES_ELSEWHERE
from .report.fit_notes import fit_notes
from .report.own_spreads import residual_sds
from .report.predictions import Level, predicted
from .report.printed import Summary, check_level
from .report.ranef import random_effects
from .report.shrinkage import shrinkage_table
from .report.summary import effects_table

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class FittedMixedModel(AfterFit):
    """A fitted mixed model.

    Attributes:
        run: the fit.
        formula: as it was written.
        origin: the arguments of ``mixed_model``; None for a fit that another call has made.
    """

    run: Run
    formula: str
    origin: Origin | None = None

    @property
    def method(self) -> MixedEffects:
        """The model, and how it was fitted."""
        assert isinstance(self.run.fitted.method, MixedEffects)
        return self.run.fitted.method

    @property
    def left_out(self) -> dict[str, int]:
        """Numbers of rows without a value that were dropped, by client; clients that have lost all rows included."""
        return dict(self.run.fitted.federation.about.get("left_out") or {})

    @typed_call
    def summary(self, level: float = 0.95) -> Summary:
        """Estimates with standard errors, intervals and tests, and warnings about the fit as a whole.

        Args:
            level: of the intervals.
        """
        check_level(level)
        table, numbers = effects_table(self.run.fitted, level)
        numbers |= numbers_of(self.run.fitted)
        ratio = self.method.response_family.ratio
        if ratio:
            coefficients = table["effect"].isin(self.method.network.fixed)
            for name, source in ((ratio, "estimate"), (f"{ratio} lower", "lower"), (f"{ratio} upper", "upper")):
                with np.errstate(over="ignore"):  # of a coefficient without an end
                    table[name] = np.exp(table[source].where(coefficients))
        notes = tuple(fit_notes({**self.run.fitted.federation.about, **numbers}))
        design, population = self.method.network, self.method.settings.population
        references = references_of(self.run.fitted.federation.about, design.fixed)
        return Summary(self.formula, design.family, population, level, table, numbers, notes, references)

    def __repr__(self) -> str:
        return str(self.summary())

    def __getattr__(self, name: str) -> Any:
        way = NAMES_ELSEWHERE.get(name)
        if way is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        raise NoAttribute(f"a fitted mixed model has no {name!r}: {way}")

    @property
    def log_likelihood(self) -> float:
        """The log likelihood at the estimates; REML's criterion for a REML fit, and NaN for a posterior."""
        return self._numbers.get("log_likelihood", float("nan"))

    @typed_call
    def predict(
        self, df: pd.DataFrame, level: Level = "client", interval: float | None = 0.9,
        given: pd.DataFrame | None = None,
    ) -> pd.DataFrame:  # fmt: skip
        """Predictions for the rows of a table: the mean, and intervals of the mean and of a new response.

        Args:
            df: with the formula's predictors, and for level "client" the clients' column; no response.
            level: "client", each row by its own client's model; "population", random effects at zero; "new", of a
                client that is not among those fitted.
            interval: probability of both intervals, from draws of the joint posterior. They include the uncertainty of
                the population and of the client. None for no intervals. A fit without draws refuses them in one line.
            given: for level "new", rows of the new clients with their responses; the clients' column says whose they
                are, or both tables are of one client and lack it. Each client's effects have the posterior given these
                rows. The population stays as it was fitted.

        Returns:
            The index of ``df``; for level "client" a column client; mean (of the response); with intervals lower and
            upper (of that mean), response_lower and response_upper (of a response); of an ordinal response
            ``p(LEVEL)``, the probability of each level as the table calls it. Where its levels are numbers the mean is
            theirs; where they are text it is that of positions, from 1. Of ``p(successes, trials)`` the mean is of
            as many trials as the table says, and of one trial where it has no such column. For levels
            "population" and "new" the mean is at the estimates, over the population for a new client; of a posterior it
            is over draws. A fit without draws has a client's mean over its posterior given the estimates.

        Raises:
            UserError: for a client that was not fitted, a table that lacks a column or holds one of another type than
                in the fit, or rows in which a column that was dropped is not the combination of others that it was.
        """
        if interval is not None:
            check_level(interval)
        if given is None:
            return predicted(self.run, df, level, interval)
        if level != "new":
            raise UserError(f"given= has rows of new clients: level='new', not {level!r}")
        return predicted_after(self.run, df, given, interval)

    @typed_call
    def ranef(self, level: str = "client") -> pd.DataFrame:
        """Random effects: a row for each group and effect, their posterior mean, sd and 90 % interval.

        The sd includes the population's uncertainty. Without draws it is conditional on the estimates. The sd of
        clients is then also conditional on the effects of groups that cross them, and on those of groups of clients.
        Such groups themselves have an sd without draws only if the response is gaussian.

        Args:
            level: "client", or the column of the groups inside clients, or of clients.

        Raises:
            UserError: for another level.
        """
        return random_effects(self.run, level)

    @typed_call
    def residual_sds(self, level: float = 0.9) -> pd.DataFrame:
        """The residual's standard deviation of each client, of a model with ``dispersion="~ (1 | site)"``.

        A row for each client: n, its rows; sd, the posterior's median; lower and upper. Where the formula has
        covariates it is where these are zero, and categories at their first level. Of a lognormal response it is that
        of log y. Without draws intervals are given the estimates.

        Args:
            level: of the intervals.

        Raises:
            UserError: for a model in which clients share it.
        """
        return residual_sds(self.run, level)

    @typed_call
    def shrinkage(self) -> pd.DataFrame:
        """Each client's coefficients by its own rows alone, by this model, and by all rows as if from one client.

        See :func:`.shrinkage.shrinkage_table`.
        """
        return shrinkage_table(self.run.fitted)

    @typed_call
    def compare(self, other: FittedMixedModel, test: Test = "auto", replicates: int = REPLICATES) -> pd.DataFrame:
        """A test of two nested models of one table, beside their AIC and BIC.

        Where fixed effects differ, log likelihoods, AIC and BIC are maximum likelihood's: REML's criteria are of
        different data, and REML fits are fitted again.

        Args:
            other: of the same rows; one model's effects are among the other's.
            test: "f", of coefficients of a gaussian response, from the larger model's REML fit with Satterthwaite's
                degrees of freedom (or Kenward and Roger's, with ``kenward_roger=True``); "likelihood-ratio", beside
                chi-squared; "bootstrap", the likelihood ratio beside those of tables that are simulated from the
                smaller model. "auto" is the F test of coefficients of a gaussian response, the bootstrap of
                coefficients of others that are learned from clients or groups, and else the likelihood ratio: with few
                clients its chi-squared rejects too often. Where the larger model has one more random effect, the null
                is on the boundary, and chi-squared distributions with r and r - 1 degrees of freedom are mixed, half
                each, r more variances and covariances (Self and Liang, 1987; Stram and Lee, 1994). With few groups, and
                of a curve, p is then too large (Crainiceanu and Ruppert, 2004).
            replicates: simulated tables of a bootstrap.

        Raises:
            UserError: for models of other rows, posteriors, or models that are not nested; for a test that is not of
                such models.
        """
        if not isinstance(other, FittedMixedModel):
            raise UserError(f"compare takes another fitted mixed model, not {type(other).__name__}")
        return compared((self.run, self.formula), (other.run, other.formula), test, replicates)

    @typed_call
    def posterior(self, **how: Any) -> Any:
        """The joint posterior for ArviZ; see :meth:`hierfl.inference.run.result.Run.posterior`."""
        if self.method.network.correlation is not None and how.setdefault("rows", False):
            raise UserError("rows of a model with correlation= have no log likelihood each: rows=False")
        return self.run.posterior(**how)
