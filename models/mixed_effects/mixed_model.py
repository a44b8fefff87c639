"""One call for a mixed model of a table.

    fitted = mixed_model(df, "y ~ 1 + x + (1 + x | site)", family="binomial")
    fitted.summary()

It is the fit of :mod:`.method`, with every client in this process. At sites, where rows may not leave, the same model
is a study (``hierfl federate``).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hierfl.argument_types import typed_call
from hierfl.calls import checked_call
from hierfl.data.federation import Federation
from hierfl.data.formula.federate import from_formula
from hierfl.data.formula.missing import Missing
from hierfl.data.formula.own_numbers import joined
from hierfl.data.tables import ROUNDS
from hierfl.errors import UserError
from hierfl.files import user_path

from .after import saved
from .after.again import Origin
from .after.rowless import design_of
from .fitted_model import FittedMixedModel
from .method import MixedEffects
from .report.fitting import fitted
from .rowless_fit import RowlessMixedModel

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd

#: arguments that say how a table is read, and how a fit is run; others are the method's
OF_TABLE = ("family", "client", "known_se", "event", "weights", "precision_weights", "correlation", "na", "spellings")
FIT = ("rounds", "seed", "device")


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
    precision_weights: str | None = None,
    dispersion: str | None = None,
    zero_inflation: str | None = None,
    correlation: str | None = None,
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
        formula: such as ``y ~ 1 + x + (1 + x | site)``; the column right of the bar names each row's client. In
            ``(1 | site/patient)`` patients lie inside sites.
        family: of the response, a name of :data:`~hierfl.responses.registry.RESPONSES`.
        client: the clients' column; by default the outermost of the random terms'. With ``client="site"``,
            ``(1 | region/site)`` has regions above the sites.
        known_se: a column of known standard errors of a gaussian response.
        event: a column that says how a survival time ended: 1 by the event, 0 by censoring.
        weights: a column of how many rows each one represents; so often its log density counts (``nobs`` and means over
            rows count it once).
        precision_weights: a column of what the variance of a gaussian or log-normal residual is divided by,
            sigma^2 / w, as R's ``weights`` of ``lmer`` are.
        dispersion: of rows that spread differently, the right side of a formula such as ``"~ arm"``: the logarithm of a
            residual's standard deviation, or of the family's size, shape, precision or dispersion, is linear in it.
        zero_inflation: likewise of the logit of p(zero). Both may stand behind the formula, as in
            ``"y ~ x + (1 | site); dispersion ~ arm"``.
        correlation: of a gaussian response's residuals within a series: "ar1(visit | patient)", rho^|t - t'| at whole
            times; "car1(day | patient)", the same at any times; "cs(patient)", rho between any two rows.
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
    formula = joined(formula, {"dispersion": dispersion, "zero_inflation": zero_inflation})
    how: dict[str, Any] = {
        "family": family, "client": client, "known_se": known_se, "event": event, "weights": weights,
        "precision_weights": precision_weights, "na": na, "spellings": spellings,
    }  # fmt: skip
    how |= {} if correlation is None else {"correlation": correlation}
    federation, method = _model(df, formula, {**how, "population": population, **settings})
    how |= {"population": population, "rounds": rounds, "seed": seed, "device": device, **settings}
    origin = Origin(mixed_model, df, how)
    return FittedMixedModel(fitted(method, federation, seed, device, rounds), formula, origin)


@typed_call
def load_mixed_model(folder: str | Path, df: pd.DataFrame | None = None) -> FittedMixedModel:
    """A fit that :meth:`FittedMixedModel.save` has written.

    Args:
        folder: where.
        df: the table that was fitted: the formula makes its columns again, and nothing is fitted. Without it the
            fit answers all that needs no row, and predicts for tables that are given.

    Raises:
        UserError: for a folder that holds no such fit, or a damaged one; for another table.
    """
    state, record = saved.read(user_path(folder))
    how = record["how"]
    if df is None:
        if "rowless" not in record:
            raise UserError(f"{folder} was written by an earlier version: load_mixed_model(folder, df=table) reads it")
        method = MixedEffects(design_of(record["rowless"]), **_settings(how))
        return RowlessMixedModel(saved.without_rows(method, state, record), record["formula"])
    federation, method = _model(df, record["formula"], {k: v for k, v in how.items() if k not in FIT})
    run = saved.restored(method, federation, state, record)
    return FittedMixedModel(run, record["formula"], Origin(mixed_model, df, how))


def _model(df: pd.DataFrame, formula: str, how: Mapping[str, Any]) -> tuple[Federation, MixedEffects]:
    """The federation and the method that a call asks for."""
    federation, design = from_formula(df, formula, **{k: v for k, v in how.items() if k in OF_TABLE})
    return federation, MixedEffects(design, **_settings(how))


def _settings(how: Mapping[str, Any]) -> dict[str, Any]:
    """The method's."""
    return {k: v for k, v in how.items() if k not in (*OF_TABLE, *FIT)}
