"""Mixed-effects formulas: a table and ``y ~ 1 + x + (1 + x | site)`` become a federation and a design.

Formulas are read by formulae (Capretto, 2022), which knows random effects, categories, interactions and transforms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from .errors import UserError, unknown
from .federation import Federation
from .networks import Architecture, LinearHead, Network

if TYPE_CHECKING:
    import pandas as pd

#: what a column of ones is called
INTERCEPT = ("Intercept", "1")
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
            the family cannot have, or a random slope about which no client says anything.
    """
    import pandas as pd

    if family not in get_args(Family):
        raise unknown("family", family, get_args(Family))
    read, place = _read(df, formula, client, error)
    fixed, random = read.common.as_dataframe().astype(float), _random_columns(read.group)
    who = df[place].astype(str).to_numpy()
    _check_slopes(random, who, place)
    _check_fixed(fixed)
    separate = formula.count("|") > 1  # (formulae cuts a term with several effects up, too)
    if separate and len(random) > formula.count("|"):
        raise UserError("write the random effects in one term, such as (1 + x | site), or each in one of its own")
    y = _response(read.response, family)
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
        place: the column of :func:`_matrices` that stands for the clients'.
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
        from formulae import model_description

        terms = model_description(self.formula)
        used = terms.common_terms + [term.expr for term in terms.group_terms]
        needed = {name for term in used for name in term.var_names if name}
        for name in sorted(needed):
            if name not in df.columns:
                raise UserError(f"the table lacks column {name!r}")
            if df[name].isna().any():
                raise UserError(f"column {name!r} has missing values")
        here = df.assign(**{self.place: 0})
        try:
            fixed = self.read.common.evaluate_new_data(here).as_dataframe().astype(float)
            random = _random_columns(self.read.group.evaluate_new_data(here))
        except Exception as fault:  # a level that was not there, and whatever else formulae says
            raise UserError(f"the formula {self.formula!r} does not fit the table: {fault!r}") from fault
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


def _read(df: pd.DataFrame, formula: str, client: str | None, error: str | None) -> tuple[Any, str]:
    """What formulae makes of the formula and the table, and the column that the random terms belong to."""
    from formulae import model_description

    try:
        names = {name for name in model_description(formula).var_names if name}  # (numbers have none)
    except Exception as fault:  # its scanner, parser and resolver raise what they like
        hint = "; for no correlations write one | and say covariance=diagonal" if "||" in formula else ""
        raise UserError(f"the formula {formula!r} cannot be read: {fault}{hint}") from fault
    if INTERCEPT[0] in names:
        raise UserError(f"a column called {INTERCEPT[0]!r} would be taken for the intercept: rename it")
    for name in [*sorted(names), *([error] if error else []), *([client] if client else [])]:
        if name not in df.columns:
            raise unknown("column", name, map(str, df.columns))
        missing = int(df[name].isna().sum())
        if missing:
            raise UserError(f"column {name!r} has {missing} missing value{'s' * (missing != 1)}")
    try:
        read, places = _matrices(formula, df)
    except Exception as fault:
        raise UserError(f"the formula {formula!r} does not fit the table: {fault!r}") from fault
    if read.response is None:
        raise UserError(f"the formula {formula!r} has no response")
    if read.group is None:
        raise UserError(f"the formula {formula!r} has no random term, such as (1 | {client or 'site'})")
    if read.common is None:
        raise UserError(f"the formula {formula!r} has no fixed effects; write at least y ~ 1 + ...")
    if len(places) > 1:
        raise UserError(f"random terms belong to one column, the client's, and here to {', '.join(sorted(places))}")
    (place,) = places
    offsets = [name for name, term in read.common.terms.items() if term.kind == "offset"]
    if offsets:
        raise UserError(
            f"{offsets[0]} has a coefficient of one, which is not there; subtract it from a gaussian response"
        )
    if place not in df.columns:
        raise UserError(f"random terms belong to a column of the table, not to {place!r}")
    if client not in (None, place):
        raise UserError(f"random terms belong to {place!r}, and the clients are {client!r}")
    named = df[place].astype(str)
    if named.str.contains("|", regex=False).any():
        raise UserError(f"names in column {place!r} must not hold a '|', which formulas read as theirs")
    return read, place


def _check_fixed(fixed: pd.DataFrame) -> None:
    """Refuses fixed effects of which one is a combination of others."""
    values = fixed.to_numpy()
    length = np.linalg.norm(values, axis=0)
    for k, name in enumerate(fixed):
        if not length[k]:
            raise UserError(f"the fixed effect {name!r} is zero in every row")
        others = values[:, :k] / length[:k]
        rest = values[:, k] / length[k]
        if k:
            rest = rest - others @ np.linalg.lstsq(others, rest, rcond=None)[0]
        if np.linalg.norm(rest) < 1e-9:
            raise UserError(f"the fixed effect {name!r} is a combination of those before it: leave one out")


def _check_slopes(random: dict[str, np.ndarray], who: np.ndarray, place: str) -> None:
    """Refuses a random slope beside an intercept where no client's rows differ in it."""
    import pandas as pd

    for name, column in random.items():
        varies = pd.Series(column).groupby(who).nunique() > 1
        if name != INTERCEPT[0] and INTERCEPT[0] in random and not varies.any():
            raise UserError(
                f"no client can inform the random slope of {name!r}: it is the same in all rows of every {place}"
            )


def _matrices(formula: str, df: pd.DataFrame) -> tuple[Any, set[str]]:
    """formulae's design matrices of a table, and the names of what stands right of a ``|``.

    formulae makes a block of columns for each level of a grouping factor, rows x levels numbers in memory. A row has
    zeros in all blocks but its own client's, whose columns are those of the term's left side. So the factor is replaced
    by a column that has one level: what is on the left is evaluated and encoded as before, once.
    """
    from formulae import model_description
    from formulae.environment import Environment
    from formulae.matrices import DesignMatrices
    from formulae.terms.terms import Term
    from formulae.terms.variable import Variable

    model, one = model_description(formula), "one client"
    while one in df.columns:
        one += "_"
    places = {term.factor.name for term in model.group_terms}
    for term in model.group_terms:
        term.factor = Term(Variable(one))
    return DesignMatrices(model, df.assign(**{one: 0}), Environment.capture()), places


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
