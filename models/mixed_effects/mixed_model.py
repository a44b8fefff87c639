"""One call for a mixed model of a table, and everything that is asked of one.

    fitted = mixed_model(df, "y ~ 1 + x + (1 + x | site)", family="binomial")
    fitted.summary()

It is the fit of :mod:`.method`, with every client in this process. At sites, where rows may not leave, the same model
is a study (``hierfl federate``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from hierfl.calls import checked_call
from hierfl.data.formula.federate import from_formula
from hierfl.data.formula.missing import Missing
from hierfl.data.tables import ROUNDS
from hierfl.errors import NoAttribute, UserError, unknown
from hierfl.inference.run.result import Run

from .method import MixedEffects
from .report.compare import REPLICATES, Test, compared
from .report.elsewhere import ELSEWHERE
from .report.fit_notes import fit_notes
from .report.fitting import fitted
from .report.predictions import Level, predicted
from .report.ranef import random_effects
from .report.shrinkage import shrinkage_table
from .report.summary import effects_table, p_value

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd


@checked_call
def mixed_model(
    df: pd.DataFrame,
    formula: str,
    *,
    family: str = "gaussian",
    client: str | None = None,
    known_se: str | None = None,
    event: str | None = None,
    weights: str | None = None,
    na: Missing = "refuse",
    spellings: str | Mapping[str, str] = "refuse",
    population: Literal["auto", "ml", "reml", "bayes"] = "auto",
    rounds: int = ROUNDS,
    seed: int = 0,
    device: str = "cpu",
    **settings: Any,
) -> FittedMixedModel:
    """Fits a mixed model.

    Args:
        df: one row per observation; :func:`hierfl.read_table` reads files with other separators, decimal marks,
            missing values, orders and references.
        formula: such as ``y ~ 1 + x + (1 + x | site)``; the column right of the bar says whose a row is. Of
            ``(1 | site/patient)`` the patients lie inside the sites.
        family: of the response, a name of :data:`~hierfl.responses.registry.RESPONSES`.
        client: the clients' column; by default the outermost of the random terms'. With ``client="site"``,
            ``(1 | region/site)`` has regions above the sites.
        known_se: a column of known standard errors of a gaussian response.
        event: a column that says what ended a time until something happens: 1 the event, 0 the end of watching.
        weights: a column of how many rows each one stands for; so often its log density counts.
        na: of rows that lack a value: "refuse" the table, or "drop" them (:attr:`FittedMixedModel.left_out`).
        spellings: of names that differ in blanks, capitals or Unicode form alone, such as "ward A" and "Ward A ":
            "refuse" the table, "join" them to the most frequent one, or "keep" them apart; by column {"ward": "join"}.
        population: "auto", REML of a gaussian response and of others maximum likelihood with standard errors and
            tests at restricted estimates; "ml", "reml", or "bayes", a posterior under priors.
        rounds: of the fit, at most: it ends where it is done.
        seed: of the draws.
        device: that computes.
        **settings: others of :class:`.method.MixedEffects`, such as ``sd_prior="half-cauchy(5)"``.

    Raises:
        UserError: for a formula, a table or a setting that cannot be used.
    """
    federation, design = from_formula(
        df, formula, family=family, client=client, known_se=known_se, event=event, weights=weights, na=na,
        spellings=spellings,
    )  # fmt: skip
    method = MixedEffects(design, population=population, **settings)
    return FittedMixedModel(fitted(method, federation, seed, device, rounds), formula)


@dataclass(frozen=True)
class FittedMixedModel:
    """A fitted mixed model.

    Attributes:
        run: the fit.
        formula: as it was written.
    """

    run: Run
    formula: str

    @property
    def method(self) -> MixedEffects:
        """The model, and how it was fitted."""
        assert isinstance(self.run.fitted.method, MixedEffects)
        return self.run.fitted.method

    @cached_property
    def _table(self) -> tuple[pd.DataFrame, dict[str, float]]:
        return effects_table(self.run.fitted)

    @property
    def left_out(self) -> dict[str, int]:
        """Rows of each client that lacked a value and were dropped; clients that have lost all of theirs included."""
        return dict(self.run.fitted.federation.about.get("left_out") or {})

    def summary(self, level: float = 0.95) -> Summary:
        """Estimates, standard errors, intervals and tests, and what the fit as a whole is worth.

        Args:
            level: of the intervals.
        """
        check_level(level)
        table, numbers = effects_table(self.run.fitted, level)
        ratio = self.method.response_family.ratio
        if ratio:
            coefficients = table["effect"].isin(self.method.network.fixed)
            for name, source in ((ratio, "estimate"), (f"{ratio} lower", "lower"), (f"{ratio} upper", "upper")):
                with np.errstate(over="ignore"):  # (of a coefficient without an end)
                    table[name] = np.exp(table[source].where(coefficients))
        notes = tuple(fit_notes({**numbers, "dropped": self.run.fitted.federation.about.get("dropped")}))
        design, population = self.method.network, self.method.settings.population
        return Summary(self.formula, design.family, population, level, table, numbers, notes)

    def __repr__(self) -> str:
        return str(self.summary())

    def __getattr__(self, name: str) -> Any:
        way = ELSEWHERE.get(name)
        if way is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        raise NoAttribute(f"a fitted mixed model has no {name!r}: {way}")

    @property
    def log_likelihood(self) -> float:
        """At the estimates, of REML its criterion; not a number for a posterior."""
        return self._table[1].get("log_likelihood", float("nan"))

    @checked_call
    def predict(self, df: pd.DataFrame, level: Level = "client", interval: float | None = 0.9) -> pd.DataFrame:
        """What the model says of rows of such a table: the mean, and intervals of it and of a new response.

        Args:
            df: with the formula's predictors, and for level "client" the clients' column; no response.
            level: "client", each row by its own client's model; "population", random effects at zero; "new", of a
                client that is not among those fitted.
            interval: of both intervals, from draws of the joint posterior: what is not known of the population and
                of the client is in them. None for none. A fit without draws has none, and says so in a line.

        Returns:
            The index of ``df``; for level "client" a column client; mean (of the response); with intervals lower and
            upper (of that mean), response_lower and response_upper (of a response); of an ordinal response
            ``p(LEVEL)``, the probability of each level as the table calls it. Where its levels are numbers the mean is
            theirs; where they are text it is that of their places, from 1. Of ``p(successes, trials)`` the mean is of
            as many trials as the table says, and of one trial where it has no such column. A fit without draws has
            means at the estimates: over its posterior given them for a client, over the population for a new one.

        Raises:
            UserError: for a client that was not fitted, a table that lacks a column or holds one of another type than
                in the fit, or rows in which a column that was dropped is not the combination of others that it was.
        """
        if level not in get_args(Level):
            raise unknown("level", level, get_args(Level))
        if interval is not None:
            check_level(interval)
        return predicted(self.run, df, level, interval)

    def ranef(self, level: str = "client") -> pd.DataFrame:
        """Random effects: a row for each group and effect, their posterior mean, sd and 90 % interval.

        The sd has what is not known of the population in it (without draws it is conditional on the estimates).

        Args:
            level: "client", or the column of the groups inside clients, or of clients.

        Raises:
            UserError: for another level.
        """
        return random_effects(self.run, level)

    def shrinkage(self) -> pd.DataFrame:
        """Each client's coefficients by its own rows alone, by this model, and by all rows as if they were of one.

        See :func:`.shrinkage.shrinkage_table`.
        """
        return shrinkage_table(self.run.fitted)

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
                each, r more variances and covariances (Self and Liang, 1987; Stram and Lee, 1994).
            replicates: simulated tables of a bootstrap.

        Raises:
            UserError: for models of other rows, posteriors, or models that are not nested; for a test that is not of
                such models.
        """
        return compared((self.run, self.formula), (other.run, other.formula), test, replicates)

    def posterior(self, **how: Any) -> Any:
        """The joint posterior for ArviZ; see :meth:`hierfl.inference.run.result.Run.posterior`."""
        return self.run.posterior(**how)


@dataclass(frozen=True)
class Summary:
    """What :meth:`FittedMixedModel.summary` gives; it prints as a table.

    Attributes:
        formula, family, population: of the model.
        level: of the intervals.
        table: a row for each effect; columns as :func:`.summary.effects_table`, and odds or rate ratios.
        numbers: log_likelihood, aic, bic, rows, groups and the like.
        notes: what to know of the fit as a whole; a note of one effect is in the table.
    """

    formula: str
    family: str
    population: str
    level: float
    table: pd.DataFrame
    numbers: dict[str, float]
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """As text."""
        what = {
            "auto": "maximum likelihood, errors restricted", "ml": "maximum likelihood", "reml": "REML",
            "bayes": "posterior",
        }[self.population]  # fmt: skip
        n = self.numbers
        lines = [f"{self.formula}   {self.family}, {what}", ""]
        lines += [_text(self.table, self.level), ""]
        if "log_likelihood" in n:
            name = "REML criterion" if self.population == "reml" else "log likelihood"
            lines.append(f"{name} {n['log_likelihood']:.3f}, AIC {n['aic']:.1f}, BIC {n['bic']:.1f}")
        lost = f"; {n['left_out']:,.0f} more lack a value, and are left out" if n.get("left_out") else ""
        inside = f"{n['inner_groups']:,.0f} groups inside " if "inner_groups" in n else ""
        above = f" in {n['outer_groups']:,.0f} groups" if "outer_groups" in n else ""
        lines.append(f"{n['rows']:,.0f} rows of {inside}{n['groups']:,.0f} clients{above}{lost}")
        lines += [f"{row.effect}: {row.note}" for row in self.table.itertuples() if row.note]
        lines += self.notes
        return "\n".join(lines)


def _text(table: pd.DataFrame, level: float) -> str:
    """The columns that have numbers, a few digits each."""
    tail = 50 * (1 - level)
    names = {
        "estimate": "estimate", "standard_error": "SE", "lower": f"{tail:g} %", "upper": f"{100 - tail:g} %",
        "statistic": "t", "df": "df", "p": "p",
    }  # fmt: skip
    shown = table[["effect", *names]].copy()
    shown["df"] = shown["df"].where(shown["df"] < 1e4)
    shown = shown.rename(columns=names).dropna(axis=1, how="all").set_index("effect").rename_axis(None)
    digits = {"df": "{:.1f}", "t": "{:.2f}"}
    formats = {c: digits.get(c, "{:.4g}").format for c in shown} | {"p": p_value}
    return shown.to_string(na_rep="", formatters=formats)


def check_level(level: float) -> None:
    """Refuses what is no share between 0 and 1.

    Raises:
        UserError: for it.
    """
    if not isinstance(level, int | float) or not 0 < level < 1:
        raise UserError(f"an interval's level lies between 0 and 1, not {level!r}")
