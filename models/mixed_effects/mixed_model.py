"""One call for a mixed model of a table.

    fitted = mixed_model(df, "y ~ 1 + x + (1 + x | site)", family="binomial")
    fitted.summary()

It is the fit of :mod:`.method`, with every client in this process. At sites, where rows may not leave, the same model
is a study (``hierfl federate``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from hierfl.calls import checked_call
from hierfl.data.formula.federate import from_formula
from hierfl.data.formula.missing import Missing
from hierfl.data.tables import ROUNDS

from .after.answers import Origin
from .fitted_model import FittedMixedModel
from .method import MixedEffects
from .report.fitting import fitted

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
    how: dict[str, Any] = {
        "family": family, "client": client, "known_se": known_se, "event": event, "weights": weights, "na": na,
        "spellings": spellings,
    }  # fmt: skip
    federation, design = from_formula(df, formula, **how)
    method = MixedEffects(design, population=population, **settings)
    how |= {"population": population, "rounds": rounds, "seed": seed, "device": device, **settings}
    origin = Origin(mixed_model, df, how)
    return FittedMixedModel(fitted(method, federation, seed, device, rounds), formula, origin)
