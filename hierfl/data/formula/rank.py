"""Which columns of fixed effects are independent; the others are combinations of them and are dropped, as in lme4."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...errors import UserError
from .units import INTERCEPT

#: a column does not vary where its spread is at most this share of its size
CONSTANT = 1e-9
#: beside an intercept double precision loses a coefficient where the spread is a smaller share of the size; a share of
#: at most 1e-13 may be rounding alone
MIN_RELATIVE_SPREAD, ROUNDING = 5e-7, 1e-13
#: a column is a combination of others where so little of its variance is left beside them
DEPENDENT = 1e-13
#: how well the rows of a prediction must keep to such a combination, relative to its terms
TOLERANCE = 1e-6


@dataclass(frozen=True)
class IndependentColumns:
    """The first independent columns of a design, in order, and what the others are made of.

    A column k that was dropped is, in units u = (column - centre) / scale, u_k = sum over the kept columns j of
    ``combination[k, j] u_j``.

    Attributes:
        names: of all columns, p.
        kept: positions of the independent ones, ascending.
        centre, scale: of all columns, (p,).
        combination: a row for each dropped column, (p - len(kept), len(kept)).
        correlation: of the kept columns, (len(kept), len(kept)): of centred ones where there is an intercept, with
            which they have none.
    """

    names: tuple[str, ...]
    kept: tuple[int, ...]
    centre: np.ndarray
    scale: np.ndarray
    combination: np.ndarray
    correlation: np.ndarray

    @classmethod
    def of_rows(cls, names: Sequence[str], columns: np.ndarray) -> IndependentColumns:
        """Returns the independent columns of a whole table.

        Args:
            names: of the columns, p.
            columns: (n, p), finite.
        """
        largest = np.abs(columns).max(axis=0, initial=0.0)
        largest[largest == 0] = 1.0
        unit = columns / largest  # squares of large numbers are none
        centre = unit.mean(0) * [name not in INTERCEPT for name in names] if intercept_of(names) is not None else 0.0
        spread = np.sqrt(np.square(unit - centre).mean(0))
        scale = np.where(spread > 0, spread, 1.0)
        rows = (unit - centre) / scale
        return cls.of_sums(names, len(columns), largest * centre, largest * scale, rows.T @ rows)

    @classmethod
    def of_sums(
        cls, names: Sequence[str], n: float, centre: np.ndarray, scale: np.ndarray, products: np.ndarray
    ) -> IndependentColumns:
        """Returns the independent columns from sums over rows; those of several sites add up.

        Args:
            names: of the columns, p.
            n: rows.
            centre, scale: about where each column lies and how far it spreads, (p,); 0 and 1 of the intercept, and
                without an intercept every centre is 0.
            products: U'U of the columns u = (column - centre) / scale, (p, p).

        Raises:
            UserError: for a column that is nearly the intercept.
        """
        centre, scale = np.asarray(centre, dtype=float), np.asarray(scale, dtype=float)
        ones = intercept_of(names)
        mean = np.zeros(len(names)) if ones is None else products[ones] / n
        gram = products - n * np.outer(mean, mean)
        variance = np.maximum(gram.diagonal(), 0.0) / n
        size = np.abs(centre + scale * mean)
        spread = scale * np.sqrt(variance)
        nearly: list[int] = np.flatnonzero((spread > ROUNDING * size) & (spread < MIN_RELATIVE_SPREAD * size)).tolist()
        for k in nearly if ones is not None else ():
            raise UserError(
                f"{names[k]!r} lies near {size[k]:.4g} and varies by {spread[k]:.2g} alone, which double precision "
                f"does not tell from the intercept: write center({names[k]})"
            )
        varies = (spread > CONSTANT * size) & (variance * n > DEPENDENT * products.diagonal())
        sd = np.where(varies, np.sqrt(variance), 1.0)
        correlation = gram / n / sd / sd[:, None]
        kept = [] if ones is None else [ones]
        basis = list[int]()  # the kept columns that vary; the intercept is in the centres
        root = np.zeros((len(names), len(names)))  # lower triangle of their correlations
        weights: dict[int, np.ndarray] = {}
        for k in range(len(names)):
            if k == ones:
                continue
            m = len(basis)
            row = _solve(root[:m, :m], correlation[basis, k])
            share = _solve(root[:m, :m].T[::-1, ::-1], row[::-1])[::-1]  # of each kept column
            left = correlation[k, k] - row @ row
            if not varies[k] or left < DEPENDENT * (1 + share @ share):
                weights[k] = share * sd[k] / sd[basis] if varies[k] else np.zeros(m)
                continue
            root[m, :m], root[m, m] = row, np.sqrt(left)
            basis.append(k)
            kept.append(k)
        kept.sort()
        combination = np.zeros((len(weights), len(kept)))
        for i, share in enumerate(weights.values()):
            combination[i, [kept.index(j) for j in basis[: len(share)]]] = share
        centre = centre + scale * np.where(np.arange(len(mean)) == ones, 0.0, mean)
        scale = np.where(varies, scale, np.maximum(scale, size))
        among = correlation[np.ix_(kept, kept)]
        if ones is not None:
            among[kept.index(ones), kept.index(ones)] = 1.0
        return cls(tuple(names), tuple(kept), centre, scale, combination, among)

    @property
    def names_kept(self) -> tuple[str, ...]:
        """The names of the independent columns."""
        return tuple(self.names[k] for k in self.kept)

    @property
    def dropped(self) -> dict[str, str]:
        """Why each other column was dropped: {name: a sentence}."""
        reasons = {}
        for row, k in zip(self.combination, self._others, strict=True):
            largest = np.abs(row).max(initial=0.0)
            parts = [repr(self.names[j]) for j, c in zip(self.kept, row, strict=True) if abs(c) > TOLERANCE * largest]
            if intercept_of(self.names) is not None and abs(self._constant(row, k)) > TOLERANCE:
                parts.append("the intercept")
            why = f"a {'multiple' if len(parts) == 1 else 'combination'} of {_listed(parts)}"
            if largest == 0:
                why = "zero in every row" if abs(self.centre[k]) <= TOLERANCE * self.scale[k] else "constant"
            reasons[self.names[k]] = f"{self.names[k]!r} is {why}, and was dropped"
        return reasons

    def checked(self, columns: np.ndarray) -> np.ndarray:
        """The independent columns of rows to predict, (n, len(kept)).

        Args:
            columns: all, (n, p).

        Raises:
            UserError: for rows in which a dropped column is not the combination that it was in the fit: its own
                coefficient is not known.
        """
        for row, k in zip(~self.keep_to(columns).T, self._others, strict=True):
            if row.any():
                why = self.dropped[self.names[k]].removesuffix(", and was dropped")
                raise UserError(
                    f"{int(row.sum())} of {len(columns)} rows have no prediction, the first is row "
                    f"{int(np.argmax(row)) + 1}: in the fit {why}, in these rows it is not, and has no coefficient"
                )
        return columns[:, self.kept]

    def keep_to(self, columns: np.ndarray) -> np.ndarray:
        """Whether each dropped column is the combination that it was in the fit, (n, p - len(kept)).

        Args:
            columns: all, (n, p), of rows, or of means of rows.
        """
        unit = (columns - self.centre) / self.scale
        of_kept, of_others = unit[:, self.kept], unit[:, self._others]
        gap = np.abs(of_others - of_kept @ self.combination.T)
        limit = TOLERANCE * (1 + np.abs(of_others) + np.abs(of_kept) @ np.abs(self.combination.T))
        holds: np.ndarray = gap <= limit
        return holds

    @property
    def _others(self) -> list[int]:
        return [k for k in range(len(self.names)) if k not in self.kept]

    def _constant(self, row: np.ndarray, k: int) -> float:
        """What the intercept adds to column k, over the column's spread."""
        centre = self.centre[list(self.kept)] / self.scale[list(self.kept)]
        return float(self.centre[k] / self.scale[k] - row @ centre)


def intercept_of(names: Sequence[str]) -> int | None:
    """The place of the intercept among columns; None without one."""
    return next((k for k, name in enumerate(names) if name in INTERCEPT), None)


def _solve(lower: np.ndarray, right: np.ndarray) -> np.ndarray:
    """L^-1 r of a lower triangle; row by row, so that it is the same on every machine."""
    solution = np.zeros(len(right))
    for k in range(len(right)):
        solution[k] = (right[k] - sum(lower[k, :k] * solution[:k])) / lower[k, k]
    return solution


def _listed(parts: Sequence[str]) -> str:
    """The list as in a message, which names a few at most."""
    if len(parts) > 4:
        return f"{', '.join(parts[:3])} and {len(parts) - 3} more columns"
    return " and ".join([", ".join(parts[:-1]), parts[-1]]) if len(parts) > 1 else "".join(parts)
