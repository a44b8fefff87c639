"""Mixed-effects formulas: a table and ``y ~ 1 + x + (1 + x | site)`` become a federation and a design.

Formulas are read by formulae (Capretto, 2022), which knows random effects, categories, interactions and transforms,
once they have passed :mod:`hierfl.data.formula.gate`: no text is evaluated before.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from ...errors import UserError, unknown
from ..client_names import client_names
from ..federation import Federation
from . import gate
from .columns import (
    check_fixed,
    check_numbers,
    check_slopes,
    effects_and_offset,
    random_columns,
    random_terms,
    read_terms,
)
from .design import Design, Units
from .missing import Missing, without_missing
from .parsed import Formula
from .responses import Family, Response, centre_parts, check_levels, read_response, response_centre
from .row_numbers import RowColumns, in_order

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
        formula: such as ``y ~ 1 + x + (1 + x | site)``; all random terms belong to one column, the client's.
        family: of the response; binomial ones are 0 or 1, or ``p(successes, trials)``; counts whole numbers from 0;
            ordinal ones whole numbers or an ordered category; times above zero.
        client: that column, if it is to be checked against the formula.
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
    df, left_out = without_missing(df, terms, more.columns) if na == "drop" else (df, None)
    read, place = read_terms(df, terms, client, more.columns)
    try:
        groups = random_terms(terms, read, df)
        (fixed, offset), (random, blocks) = effects_and_offset(read.common), random_columns(groups)
    except UserError:
        raise
    except Exception as fault:  # whatever formulae and pandas say of columns that do not fit together
        raise gate.misfit(terms, fault) from fault
    who = client_names(df[place], f"column {place!r}")
    for name, column in [*fixed.items(), *random.items()]:
        check_numbers(f"the effect {name!r}", np.asarray(column))
    check_slopes(random, who, place)
    check_fixed(fixed)
    response = read_response(read.response, family, _ordered(df, terms))
    y = response.y
    if response.levels:
        check_levels(read.response.name, np.bincount(y.astype(int) - 1, minlength=response.levels))
    check_numbers(f"the response {read.response.name!r}", y)
    rows = in_order({"offset": offset, "trials": response.trials, **more.numbers(df)})
    if offset is not None:
        check_numbers("the offset", offset)
    gaussian = family == "gaussian"
    _check_clients(who, place, len(random), needs_residual=gaussian and not known_se)
    parts = centre_parts(y, rows, family)
    if gaussian and not np.ptp(parts[:, 0]):
        raise UserError(f"the response {read.response.name!r} does not vary")
    columns = {f"{name} (fixed)": fixed[name].to_numpy() for name in fixed}
    columns |= {f"{name} (random)": column for name, column in random.items()}
    columns |= rows
    design = Design.of(
        list(fixed), list(random), family, tuple(rows), response.levels,
        centre=response_centre(float(parts[:, 0].sum()), float(parts[:, 1].sum()), family),
        scale=(float(np.std(parts[:, 0])) or 1.0) if gaussian else 1.0,
        blocks=blocks, random_units=_units(random, blocks),
        fixed_units=_units({name: fixed[name].to_numpy() for name in fixed}, (fixed.shape[1],)),
    )  # fmt: skip
    wide = pd.DataFrame({**columns, "response": y, "client": who})
    federation = Federation.from_frame(
        wide, client="client", y="response", x=list(columns), test=test, validation=validation, seed=seed,
        task="regression",
    )  # fmt: skip
    reader = Reader(read, groups, tuple(rows), more, formula)
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


def _check_clients(who: np.ndarray, place: str, effects: int, needs_residual: bool) -> None:
    """Refuses tables from which the spread of the random effects, or that of the residual, cannot be learned.

    Args:
        who: client of each row, (n,).
        place: the clients' column.
        effects: number of random effects of a client.
        needs_residual: whether the residual has a spread that is learned.

    Raises:
        UserError: for such a table.
    """
    import pandas as pd

    rows = pd.Series(who).value_counts()
    if len(rows) < 2:
        raise UserError(f"all rows are of one {place}: random effects need several")
    if needs_residual and rows.max() <= effects:
        raise UserError(
            f"no {place} has more rows than the {effects} random effect{'s' * (effects > 1)}, so that the "
            "residual's spread cannot be separated from theirs: give known standard errors"
        )


def _ordered(df: pd.DataFrame, terms: Formula) -> bool:
    """Whether the response is a category whose levels are in order."""
    return any(bool(getattr(df[name].dtype, "ordered", False)) for name in terms.response or ())


@dataclass(frozen=True)
class Reader:
    """Makes the design's columns of other rows of such a table; they need no response, and no client.

    Attributes:
        read: formulae's design matrices of the table that was fitted.
        groups: its random columns, term by term.
        extras: what rows have beside effects; see :class:`.design.Design`.
        more: the columns that some of them are.
        formula: as it was written.
    """

    read: Any
    groups: tuple[Any, ...]
    extras: tuple[str, ...]
    more: RowColumns
    formula: str

    def __call__(self, df: pd.DataFrame) -> np.ndarray:
        """Rows to predict, (n, p + q + extras): events, each for itself, of one trial where no trials are said.

        Raises:
            UserError: for a table that lacks a column or holds missing values or levels that are not known.
        """
        columns, offset = self.effects(df)
        one = np.ones(len(df))
        rows: dict[str, np.ndarray | None] = {"offset": offset, "trials": one, "event": one, "weight": one}
        if self.more.known_se:
            if self.more.known_se not in df.columns:
                raise UserError(f"the table lacks column {self.more.known_se!r}")
            rows |= RowColumns(known_se=self.more.known_se).numbers(df)
        terms = gate.parse(self.formula)
        if "trials" in self.extras and terms.response and terms.response <= set(df.columns):
            rows["trials"] = self.response(df, "binomial").trials
        return np.column_stack([columns, *(found for name, found in in_order(rows).items() if name in self.extras)])

    def effects(self, df: pd.DataFrame) -> tuple[np.ndarray, np.ndarray | None]:
        """The columns of effects (n, p + q), and the offset (n,); None without one.

        Raises:
            UserError: for a table that lacks a column or holds missing values or levels that are not known.
        """
        terms = gate.parse(self.formula)
        for name in sorted(terms.predictors):
            if name not in df.columns:
                raise UserError(f"the table lacks column {name!r}")
            if df[name].isna().any():
                raise UserError(f"column {name!r} has missing values")
        # (the column that stands for the clients' in formulae's terms)
        here = df.assign(**{term.factor.name: 0 for group in self.groups for term in group.terms.values()})
        try:
            with gate.quietly():
                fixed, offset = effects_and_offset(self.read.common.evaluate_new_data(here))
                random, _ = random_columns([group.evaluate_new_data(here) for group in self.groups])
        except Exception as fault:  # whatever formulae says
            if strange := re.search(r"levels \((.+?)\) in '(.+?)' are not present", str(fault)):
                raise UserError(
                    f"column {strange[2]!r} has the level {strange[1].split(', ')[0]}, which was in no row of the fit: "
                    "it has no coefficient"
                ) from fault
            raise gate.misfit(terms, fault) from fault
        return np.column_stack([fixed.to_numpy(), *random.values()]), offset

    def response(self, df: pd.DataFrame, family: Family) -> Response:
        """The response of such a table.

        Raises:
            UserError: for one that the family cannot have.
        """
        left = gate.parse(f"{self.formula.partition('~')[0]} ~ 1")
        return read_response(gate.evaluate(left, df).response, family, _ordered(df, left))
