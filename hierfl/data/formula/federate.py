"""Mixed-effects formulas: a table and ``y ~ 1 + x + (1 + x | site)`` become a federation and a design.

Formulas are read by formulae (Capretto, 2022), which knows random effects, categories, interactions and transforms,
once they have passed :mod:`hierfl.data.formula.gate`: no text is evaluated before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, get_args

import numpy as np

from ...errors import UserError, unknown
from ..client_names import client_names
from ..federation import Federation
from . import gate
from .columns import (
    check_fixed,
    check_numbers,
    effects_and_offset,
    random_columns,
    random_terms,
    read_terms,
)
from .design import Design
from .groups import Groups, check_groups
from .missing import Missing, without_missing
from .parsed import CLIENT, INNER, OUTER
from .reader import Reader, ordered
from .responses import Family, centre_parts, check_levels, read_response, response_centre
from .row_numbers import RowColumns, in_order
from .units import Units

if TYPE_CHECKING:
    import pandas as pd


def from_formula(
    df: pd.DataFrame,
    formula: str,
    *,
    family: Family = "gaussian",
    client: str | None = None,
    known_se: str | None = None,
    event: str | None = None,
    weights: str | None = None,
    na: Missing = "refuse",
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
        family: of the response; binomial ones are 0 or 1, or ``p(successes, trials)``; counts whole numbers from 0;
            ordinal ones whole numbers or an ordered category; times above zero.
        client: the clients' column; by default the outermost of the random terms'.
        known_se: a column of known standard errors of a gaussian response.
        event: a column of what ended a time of an exponential or weibull response: 1 the event, 0 the end of watching;
            all are events without one.
        weights: a column of how many rows each one stands for.
        na: of rows that lack a value: "refuse" the table, or "drop" them, which ``about["left_out"]`` counts by client.
        test: fraction of every client's rows to hold out.
        validation: fraction of the others to hold out for choosing, of clients with at least ten.
        seed: of what is held out.

    Raises:
        UserError: for a formula that cannot be read, columns that are not there or have missing values, a response that
            the family cannot have, numbers too large to be squared, or a random slope about which no client says
            anything.
    """
    import pandas as pd

    if family not in get_args(Family):
        raise unknown("family", family, get_args(Family))
    terms, more = gate.parse(formula), RowColumns(known_se or "", event or "", weights or "")
    more.check(family)
    if na not in get_args(Missing):
        raise unknown("value of na", na, get_args(Missing))
    left_out = None
    if na == "drop":
        df, left_out = without_missing(df, terms, terms.levels(client).client, more.columns)
    read, levels = read_terms(df, terms, client, more.columns)
    try:
        groups = random_terms(terms, levels, read, df)
        fixed, offset = effects_and_offset(read.common)
        random = {name: random_columns(of_level) for name, of_level in groups.items()}
    except UserError:
        raise
    except Exception as fault:  # whatever formulae and pandas say of columns that do not fit together
        raise gate.misfit(terms, fault) from fault
    who = client_names(df[levels.client], f"column {levels.client!r}")
    for name, column in [*fixed.items(), *(one for found, _ in random.values() for one in found.items())]:
        check_numbers(f"the effect {name!r}", np.asarray(column))
    check_fixed(fixed)
    response = read_response(read.response, family, ordered(df, terms))
    y = response.y
    if response.levels:
        check_levels(read.response.name, np.bincount(y.astype(int) - 1, minlength=response.levels))
    check_numbers(f"the response {read.response.name!r}", y)
    places = Groups.of(df, levels)
    numbers = places.numbers(df)
    rows = in_order({"offset": offset, "trials": response.trials, **more.numbers(df), **numbers})
    if offset is not None:
        check_numbers("the offset", offset)
    gaussian = family == "gaussian"
    check_groups(levels, who, numbers, {k: found for k, (found, _) in random.items()}, gaussian and not known_se)
    parts = centre_parts(y, rows, family)
    if gaussian and not np.ptp(parts[:, 0]):
        raise UserError(f"the response {read.response.name!r} does not vary")
    columns = {f"{name} (fixed)": fixed[name].to_numpy() for name in fixed}
    for level in (CLIENT, INNER, OUTER):
        columns |= {f"{name} (random, {level})": column for name, column in random.get(level, ({}, ()))[0].items()}
    columns |= rows
    design = Design.of(
        list(fixed), list(random[CLIENT][0]), family, tuple(rows), response.levels,
        centre=response_centre(float(parts[:, 0].sum()), float(parts[:, 1].sum()), family),
        scale=(float(np.std(parts[:, 0])) or 1.0) if gaussian else 1.0,
        blocks=random[CLIENT][1], random_units=_units(*random[CLIENT]),
        fixed_units=_units({name: fixed[name].to_numpy() for name in fixed}, (fixed.shape[1],)),
        **{k: places.grouping(k, tuple(random[k][0]), random[k][1], _units(*random[k])) for k in numbers},
    )  # fmt: skip
    wide = pd.DataFrame({**columns, "response": y, "client": who})
    federation = Federation.from_frame(
        wide, client="client", y="response", x=list(columns), test=test, validation=validation, seed=seed,
        task="regression",
    )  # fmt: skip
    reader = Reader(read, groups, tuple(rows), more, formula, places)
    about = {**federation.about, "reader": reader} | ({} if left_out is None else {"left_out": left_out})
    return replace(federation, about=about), design


def _units(columns: Mapping[str, np.ndarray], blocks: Sequence[int]) -> Units:
    """Of columns (n,) each."""
    mean = [float(np.mean(column)) for column in columns.values()]
    return Units.of(list(columns), mean, [root_mean_square(column) for column in columns.values()], blocks)


def root_mean_square(column: np.ndarray) -> float:
    """Of numbers whose squares may be large."""
    largest = float(np.abs(column).max(initial=0.0)) or 1.0
    return largest * float(np.sqrt(np.mean(np.square(np.asarray(column) / largest))))
