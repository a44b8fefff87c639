"""Mixed-effects formulas: a table and ``y ~ 1 + x + (1 + x | site)`` become a federation and a design.

Formulas are read by formulae (Capretto, 2022), which knows random effects, categories, interactions and transforms,
once they have passed :mod:`hierfl.data.formula.gate`: no text is evaluated before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from ...errors import UserError, unknown
from ..client_names import client_names
from ..federation import Federation
from . import gate
from .columns import check_fixed, check_numbers, check_slopes, random_columns, read_terms, response_numbers
from .design import Design, Family, Units

if TYPE_CHECKING:
    import pandas as pd


def from_formula(
    df: pd.DataFrame,
    formula: str,
    *,
    family: Family = "gaussian",
    client: str | None = None,
    error: str | None = None,
    test: float = 0.0,
    validation: float = 0.0,
    seed: int = 0,
) -> tuple[Federation, Design]:
    """A federation and the design of a mixed-effects model.

    Args:
        df: one row per observation.
        formula: such as ``y ~ 1 + x + (1 + x | site)``; all random terms belong to one column, the client's.
        family: of the response; binomial ones are 0 or 1, poisson ones whole numbers from 0.
        client: that column, if it is to be checked against the formula.
        error: a column of known standard errors of a gaussian response.
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
    terms = gate.parse(formula)
    read, place = read_terms(df, terms, client, error)
    try:
        fixed, random = read.common.as_dataframe().astype(float), random_columns(read.group)
    except Exception as fault:  # whatever formulae and pandas say of columns that do not fit together
        raise gate.misfit(terms, fault) from fault
    who = client_names(df[place], f"column {place!r}")
    for name, column in [*fixed.items(), *random.items()]:
        check_numbers(f"the effect {name!r}", np.asarray(column))
    check_slopes(random, who, place)
    check_fixed(fixed)
    separate = len(terms.groups) > 1  # (formulae cuts a term with several effects up, too)
    if separate and len(random) > len(terms.groups):
        raise UserError("write the random effects in one term, such as (1 + x | site), or each in one of its own")
    y = response_numbers(read.response, family)
    check_numbers(f"the response {read.response.name!r}", y)
    gaussian = family == "gaussian"
    _check_clients(who, place, len(random), needs_residual=gaussian and not error)
    if gaussian and not np.ptp(y):
        raise UserError(f"the response {read.response.name!r} does not vary")
    columns = {f"{name} (fixed)": fixed[name].to_numpy() for name in fixed}
    columns |= {f"{name} (random)": column for name, column in random.items()}
    if error:
        columns["standard error"] = standard_errors(df, error)
    blocks = (1,) * len(random) if separate else (len(random),)
    design = Design.of(
        list(fixed), list(random), family, bool(error),
        centre=response_centre(float(np.mean(y)), len(y), family),
        scale=(float(np.std(y)) or 1.0) if gaussian else 1.0,
        blocks=blocks, random_units=_units(random, blocks),
        fixed_units=_units({name: fixed[name].to_numpy() for name in fixed}, (fixed.shape[1],)),
    )  # fmt: skip
    wide = pd.DataFrame({**columns, "response": y, "client": who})
    federation = Federation.from_frame(
        wide, client="client", y="response", x=list(columns), test=test, validation=validation, seed=seed,
        task="regression",
    )  # fmt: skip
    reader = Reader(read, next(iter(read.group.terms.values())).factor.name, tuple(random), error, formula)
    return replace(federation, about={**federation.about, "reader": reader}), design


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


def standard_errors(df: pd.DataFrame, column: str) -> np.ndarray:
    """The known standard errors of a response, (n,).

    Raises:
        UserError: for a column without numbers, or with numbers that are not above zero or too large to be squared.
    """
    if df[column].dtype.kind not in "iuf":
        raise UserError(f"column {column!r} holds no numbers, so it cannot hold standard errors")
    values = df[column].to_numpy(dtype=float)
    if not (np.isfinite(values) & (values > 0)).all():
        raise UserError(f"column {column!r} holds standard errors that are not above zero")
    for extreme in (values.min(), values.max()):
        check_numbers(f"column {column!r}", np.array([extreme]))
    return values


@dataclass(frozen=True)
class Reader:
    """Makes the design's columns of other rows of such a table; they need no response, and no client.

    Attributes:
        read: formulae's design matrices of the table that was fitted.
        place: the column that stands for the clients' (see :func:`hierfl.data.formula.gate.evaluate`).
        random: names of the random columns.
        error: column of standard errors; None without.
        formula: as it was written.
    """

    read: Any
    place: str
    random: tuple[str, ...]
    error: str | None
    formula: str

    def __call__(self, df: pd.DataFrame) -> np.ndarray:
        """(n, p + q [+ 1]).

        Raises:
            UserError: for a table that lacks a column or holds missing values or levels that are not known.
        """
        terms = gate.parse(self.formula)
        for name in sorted(terms.predictors):
            if name not in df.columns:
                raise UserError(f"the table lacks column {name!r}")
            if df[name].isna().any():
                raise UserError(f"column {name!r} has missing values")
        here = df.assign(**{self.place: 0})
        try:
            with gate.quietly():
                fixed = self.read.common.evaluate_new_data(here).as_dataframe().astype(float)
                random = random_columns(self.read.group.evaluate_new_data(here))
        except Exception as fault:  # a level that was not there, and whatever else formulae says
            raise gate.misfit(terms, fault) from fault
        columns = [fixed.to_numpy(), *(random[name][:, None] for name in self.random)]
        if self.error:
            if self.error not in df.columns:
                raise UserError(f"the table lacks column {self.error!r}")
            columns.append(df[self.error].to_numpy(dtype=float)[:, None])
        return np.concatenate(columns, 1)


def response_centre(mean: float, n: int, family: Family) -> float:
    """The linear predictor of the mean of n responses (inside, where all successes or all zeros are alike)."""
    if family == "gaussian":
        return mean
    if family == "poisson":
        return float(np.log(max(mean, 1 / n)))
    mean = min(max(mean, 1 / n), 1 - 1 / n)
    return float(np.log(mean) - np.log1p(-mean))
