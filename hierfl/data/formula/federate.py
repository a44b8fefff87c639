"""Mixed-effects formulas: a table and ``y ~ 1 + x + (1 + x | site)`` become a federation and a design.

Formulas are read by formulae (Capretto, 2022), which knows random effects, categories, interactions and transforms,
once they have passed :mod:`hierfl.data.formula.gate`: no text is evaluated before.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, get_args

from ...errors import unknown
from ...responses.registry import response_class
from ..column_names import as_table
from ..federation import Federation
from ..reading.frames import note_quantities, refuse_text, warn_of_codes
from ..spellings import Spellings
from . import gate
from .columns import used_columns
from .design import Design
from .literals import texts
from .missing import Missing, without_missing
from .row_numbers import RowColumns
from .spelled import spelled
from .table import FormulaTable

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd


def from_formula(
    df: pd.DataFrame,
    formula: str,
    *,
    family: str = "gaussian",
    client: str | None = None,
    known_se: str | None = None,
    event: str | None = None,
    weights: str | None = None,
    precision_weights: str | None = None,
    correlation: str | None = None,
    na: Missing = "refuse",
    spellings: str | Mapping[str, str] = "refuse",
    test: float = 0.0,
    validation: float = 0.0,
    seed: int = 0,
) -> tuple[Federation, Design]:
    """A federation and the design of a mixed-effects model.

    Args:
        df: one row per observation.
        formula: such as ``y ~ 1 + x + (1 + x | site)``: the column right of the bar is the client's. Of
            ``(1 | site/patient)`` the patients lie inside the client; with ``client="site"``, ``(1 | region/site)``
            has regions above it.
        family: of the response, a name of :data:`~hierfl.responses.registry.RESPONSES`; binomial ones are 0 or 1, or
            ``p(successes, trials)``; counts whole numbers from 0; ordinal ones whole numbers or an ordered category;
            times above zero.
        client: the clients' column; by default the outermost of the random terms'.
        known_se: a column of known standard errors of a gaussian response.
        event: a column of what ended a time until something happens: 1 the event, 0 the end of watching; all are events
            without one.
        weights: a column of how many rows each one represents.
        precision_weights: a column of what the variance of a gaussian or log-normal residual is divided by.
        correlation: of the residuals of a series, such as ``ar1(visit | patient)``; see :mod:`.correlation`.
        na: of rows that lack a value: "refuse" the table, or "drop" them, which ``about["left_out"]`` counts by client.
        spellings: of names of clients, groups and levels that differ in blanks, capitals, zeros and the like alone:
            "refuse" the table, "join" them, or "keep" them apart; or by column, as in
            {"ward": "join", "gene": "keep"}. The spelling that the formula names wins, else the most frequent one.
        test: fraction of every client's rows to hold out.
        validation: fraction of the others to hold out for choosing, of clients with at least ten.
        seed: of what is held out.

    Raises:
        UserError: for a formula that cannot be read, text that may be numbers, columns that are not there or have
            missing values, a response that the family cannot have, numbers too large to be squared, or a random slope
            about which no client says anything.
    """
    response = response_class(family)
    if na not in get_args(Missing):
        raise unknown("value of na", na, get_args(Missing))
    df, how = as_table(df), Spellings.from_choice(spellings)
    terms = gate.parse(formula, list(df.columns))
    roles = (known_se, event, weights, precision_weights, correlation)
    more = RowColumns(*("" if name is None else name for name in roles))
    more.check(family)
    more = more.beside(terms)
    codes = warn_of_codes(df, terms.predictors | (terms.response or frozenset()) | more.columns)
    df = used_columns(df, terms, client, more.columns)
    df, left_out = spelled(df, terms, terms.levels(client), how), None
    if na == "drop":
        df, left_out = without_missing(df, terms, terms.levels(client).client, more.columns)
    # A response of which the formula names a level is no number.
    of_left = frozenset() if texts(gate.response_alone(terms)) else terms.response or frozenset()
    grouping = terms.split | terms.places | more.groups
    refuse_text(df, (of_left | terms.predictors | more.columns) - grouping)
    note_quantities(df, terms.predictors - grouping)
    table = FormulaTable.read_from(df, terms, client, more, family, how)
    table.check(needs_residual=response.residual and not known_se)
    federation = Federation.from_numbers(
        table.inputs(), table.response.y, table.who, test=test, validation=validation, seed=seed
    )
    reader = table.reader(formula)
    facts = {**federation.about, "reader": reader, "index": df.index}
    facts |= {} if left_out is None else {"left_out": left_out}
    facts |= {"codes": codes} if codes else {}
    facts |= {"dropped": reader.dropped} if reader.dropped else {}
    return replace(federation, about=facts), table.design()
