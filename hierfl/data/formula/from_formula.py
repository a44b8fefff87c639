"""Mixed-effects formulas: a table and ``y ~ 1 + x + (1 + x | site)`` become a federation and a design.

Formulas are read by formulae (Capretto, 2022), which knows random effects, categories, interactions and transforms,
once they have passed :mod:`hierfl.data.formula.gate`: no text is evaluated before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from ...errors import UserError, unknown
from ...nn.functional import Architecture, LinearHead, Network
from ..client_names import client_names
from ..federation import Federation
from . import gate

if TYPE_CHECKING:
    import pandas as pd

    from .gate import Formula

#: what a column of ones is called
INTERCEPT = ("Intercept", "1")
#: columns whose largest number is above this, or below one over it, have squares and products that double precision
#: cannot hold
LARGE = 1e100
Family = Literal["gaussian", "binomial", "poisson"]


@dataclass(frozen=True)
class Design(Architecture):
    """What the columns of a table's inputs are: [fixed | random | standard error of the response].

    Attributes:
        fixed: names of the columns of x_ij.
        random: names of the columns of z_ij.
        family: of the response.
        known: whether the last column holds standard errors (gaussian only).
        centre, scale: about where the linear predictor lies, and how far it spreads: where a fit begins.
        units: root mean squares of the random columns, for the same.
        separate: whether the formula has its random effects in terms of their own, which have no correlations.
    """

    fixed: tuple[str, ...] = ()
    random: tuple[str, ...] = ()
    family: Family = "gaussian"
    known: bool = False
    centre: float = 0.0
    scale: float = 1.0
    units: tuple[float, ...] = ()
    separate: bool = False

    @classmethod
    def of(
        cls, fixed: Sequence[str], random: Sequence[str], family: Family = "gaussian", known: bool = False,
        centre: float = 0.0, scale: float = 1.0, units: Sequence[float] = (), separate: bool = False,
    ) -> Design:  # fmt: skip
        """A design with these columns.

        Raises:
            UserError: without columns, for an unknown family, or standard errors in a family that has none.
        """
        if not fixed or not random:
            raise UserError("a mixed-effects design needs at least one fixed and one random column")
        if family not in get_args(Family):
            raise unknown("family", family, get_args(Family))
        if known and family != "gaussian":
            raise UserError(f"known standard errors belong to a gaussian response, not a {family} one")
        head = LinearHead(len(fixed) + len(random), 1)
        units = tuple(units) or (1.0,) * len(random)
        return cls(
            Network(nn.Identity()), head, None, "design", fixed=tuple(fixed), random=tuple(random), family=family,
            known=known, centre=centre, scale=scale, units=units, separate=separate,
        )  # fmt: skip

    def split(self, columns: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """x (S, n, p), z (S, n, q) and standard errors (S, n) or None, from the inputs (S, n, p + q [+ 1])."""
        p, q = len(self.fixed), len(self.random)
        known = columns[..., p + q] if self.known else None
        if known is not None:
            known = torch.where(known > 0, known, 1.0)  # (rows of a template have none)
        return columns[..., :p], columns[..., p : p + q], known


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
    read, place = _read(df, terms, client, error)
    try:
        fixed, random = read.common.as_dataframe().astype(float), _random_columns(read.group)
    except Exception as fault:  # whatever formulae and pandas say of columns that do not fit together
        raise gate.misfit(terms, fault) from fault
    who = client_names(df[place], f"column {place!r}")
    for name, column in [*fixed.items(), *random.items()]:
        _check_numbers(f"the effect {name!r}", np.asarray(column))
    _check_slopes(random, who, place)
    _check_fixed(fixed)
    separate = len(terms.groups) > 1  # (formulae cuts a term with several effects up, too)
    if separate and len(random) > len(terms.groups):
        raise UserError("write the random effects in one term, such as (1 + x | site), or each in one of its own")
    y = _response(read.response, family)
    _check_numbers(f"the response {read.response.name!r}", y)
    if len(set(who)) < 2:
        raise UserError(f"all rows are of one {place}: random effects need several")
    if family == "gaussian" and not np.ptp(y):
        raise UserError(f"the response {read.response.name!r} does not vary")
    if family == "gaussian" and not error and pd.Series(who).value_counts().max() <= len(random):
        raise UserError(
            f"no {place} has more rows than the {len(random)} random effect{'s' * (len(random) > 1)}, so that the "
            "residual's spread cannot be told from theirs: give known standard errors"
        )
    columns = {f"{name} (fixed)": fixed[name].to_numpy() for name in fixed}
    columns |= {f"{name} (random)": column for name, column in random.items()}
    if error:
        if df[error].dtype.kind not in "iuf":
            raise UserError(f"column {error!r} holds no numbers, so it cannot hold standard errors")
        columns["standard error"] = df[error].to_numpy(dtype=float)
        if not (np.isfinite(columns["standard error"]) & (columns["standard error"] > 0)).all():
            raise UserError(f"column {error!r} holds standard errors that are not above zero")
        for extreme in (columns["standard error"].min(), columns["standard error"].max()):
            _check_numbers(f"column {error!r}", np.array([extreme]))
    gaussian = family == "gaussian"
    design = Design.of(
        list(fixed), list(random), family, bool(error),
        centre=_centre(y, family),
        scale=(float(np.std(y)) or 1.0) if gaussian else 1.0,
        units=[float(np.sqrt(np.mean(np.square(column)))) or 1.0 for column in random.values()], separate=separate,
    )  # fmt: skip
    wide = pd.DataFrame({**columns, "response": y, "client": who})
    federation = Federation.from_frame(
        wide, client="client", y="response", x=list(columns), test=test, validation=validation, seed=seed,
        task="regression",
    )  # fmt: skip
    reader = Reader(read, next(iter(read.group.terms.values())).factor.name, tuple(random), error, formula)
    return replace(federation, about={**federation.about, "reader": reader}), design


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
                random = _random_columns(self.read.group.evaluate_new_data(here))
        except Exception as fault:  # a level that was not there, and whatever else formulae says
            raise gate.misfit(terms, fault) from fault
        columns = [fixed.to_numpy(), *(random[name][:, None] for name in self.random)]
        if self.error:
            if self.error not in df.columns:
                raise UserError(f"the table lacks column {self.error!r}")
            columns.append(df[self.error].to_numpy(dtype=float)[:, None])
        return np.concatenate(columns, 1)


def _centre(y: np.ndarray, family: Family) -> float:
    """The linear predictor of the response's mean (of a mean inside, where all successes or all zeros are alike)."""
    mean = float(np.mean(y))
    if family == "gaussian":
        return mean
    if family == "poisson":
        return float(np.log(max(mean, 1 / len(y))))
    mean = min(max(mean, 1 / len(y)), 1 - 1 / len(y))
    return float(np.log(mean) - np.log1p(-mean))


def _read(df: pd.DataFrame, terms: Formula, client: str | None, error: str | None) -> tuple[Any, str]:
    """What formulae makes of the formula and the table, and the column that the random terms belong to."""
    _check_columns(df, terms, client, error)
    if terms.response is None:
        raise UserError(f"the formula {terms.text!r} has no response")
    if not terms.groups:
        raise UserError(f"the formula {terms.text!r} has no random term, such as (1 | {client or 'site'})")
    if len(set(terms.groups)) > 1:
        places = ", ".join(sorted(set(terms.groups)))
        raise UserError(f"random terms belong to one column, the client's, and here to {places}")
    place = terms.groups[0]
    if client not in (None, place):
        raise UserError(f"random terms belong to {place!r}, and the clients are {client!r}")
    if terms.response <= terms.predictors | {place}:
        (name, *_) = sorted(terms.response)
        raise UserError(f"the response {name!r} is among its own predictors")
    read = gate.evaluate(terms, df)
    if read.group is None:
        raise UserError(f"the formula {terms.text!r} has no random term, such as (1 | {client or 'site'})")
    if read.common is None:
        raise UserError(f"the formula {terms.text!r} has no fixed effects; write at least y ~ 1 + ...")
    names = [term.name for term in read.model.common_terms]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UserError(f"two effects are both called {twice[0]!r} (formulae leaves parentheses out): rewrite one")
    offsets = [name for name, term in read.common.terms.items() if term.kind == "offset"]
    if offsets:
        raise UserError(
            f"{offsets[0]} has a coefficient of one, which is not there; subtract it from a gaussian response"
        )
    return read, place


def _check_columns(df: pd.DataFrame, terms: Formula, client: str | None, error: str | None) -> None:
    """Refuses columns that are not there, lack values, or hold what double precision cannot square."""
    for what, name in (("client", client), ("error", error)):
        if not isinstance(name, str | None):
            raise UserError(f"{what} is the name of a column, not {name!r}")
    if not df.columns.is_unique:
        raise UserError(f"the table has two columns called {df.columns[df.columns.duplicated()][0]!r}")
    if INTERCEPT[0] in terms.columns:
        raise UserError(f"a column called {INTERCEPT[0]!r} would be taken for the intercept: rename it")
    for name in [*sorted(terms.columns), *([error] if error else []), *([client] if client else [])]:
        if name not in df.columns:
            raise unknown("column", name, map(str, df.columns))
        column = df[name]
        missing = int(column.isna().sum())
        if missing:
            raise UserError(f"column {name!r} has {missing} missing value{'s' * (missing != 1)}")
        if column.dtype == object and len(kinds := {type(value) for value in column}) > 1:
            named = " and ".join(sorted(kind.__name__ for kind in kinds))
            raise UserError(f"column {name!r} holds values of several types ({named})")
        if name != error and name in (terms.response or set()) | terms.predictors and column.dtype.kind in "iuf":
            _check_numbers(f"column {name!r}", column.to_numpy(dtype=float))


def _check_numbers(what: str, column: np.ndarray) -> None:
    """Refuses numbers that are not finite, or that cannot be squared."""
    if not np.isfinite(column).all():
        raise UserError(f"{what} is not finite in {int((~np.isfinite(column)).sum())} of {len(column)} rows")
    largest = np.abs(column).max(initial=0)
    if largest > LARGE or 0 < largest < 1 / LARGE:
        raise UserError(f"{what} reaches {largest:g}, whose square is no double precision number: rescale it")


def _check_fixed(fixed: pd.DataFrame) -> None:
    """Refuses fixed effects of which one is a combination of others."""
    values = fixed.to_numpy()
    length = np.linalg.norm(values, axis=0)
    before = np.empty((values.shape[1], len(values)))  # an orthonormal basis of the columns so far
    for k, name in enumerate(fixed):
        if not length[k]:
            raise UserError(f"the fixed effect {name!r} is zero in every row")
        rest = values[:, k] / length[k]
        for _ in range(2):  # (once more, for what rounding has left)
            rest = rest - (before[:k] @ rest) @ before[:k]
        left = np.linalg.norm(rest)
        if left < 1e-9:
            raise UserError(f"the fixed effect {name!r} is a combination of those before it: leave one out")
        before[k] = rest / left


def _check_slopes(random: dict[str, np.ndarray], who: np.ndarray, place: str) -> None:
    """Refuses a random slope beside an intercept where no client's rows differ in it."""
    import pandas as pd

    for name, column in random.items():
        varies = pd.Series(column).groupby(who).nunique() > 1
        if name != INTERCEPT[0] and INTERCEPT[0] in random and not varies.any():
            raise UserError(
                f"no client can inform the random slope of {name!r}: it is the same in all rows of every {place}"
            )


def _random_columns(group: Any) -> dict[str, np.ndarray]:
    """Each random effect's column, (n,)."""
    columns: dict[str, np.ndarray] = {}
    for key, term in group.terms.items():
        for label, column in zip(term.labels, group[key].toarray().T, strict=True):
            name = label.rpartition("|")[0]
            name = INTERCEPT[0] if name == "1" else name
            columns[name] = columns.get(name, 0.0) + column.astype(float)
    return columns


def _response(response: Any, family: Family) -> np.ndarray:
    """The response as numbers that the family can have."""
    y = np.asarray(response.design_matrix)
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    if y.ndim != 1 or y.dtype.kind not in "biuf" or response.kind != "numeric":
        raise UserError(f"the response {response.name!r} holds no numbers; a {family} one needs them")
    y = y.astype(float)
    if not np.isfinite(y).all():
        raise UserError(f"the response {response.name!r} is not finite everywhere")
    if family == "binomial" and not np.isin(y, (0, 1)).all():
        raise UserError(f"a binomial response is 0 or 1, and {response.name!r} is not")
    if family == "poisson" and not ((y >= 0) & (y == np.floor(y))).all():
        raise UserError(f"a poisson response is a whole number from 0, and {response.name!r} is not")
    return y
