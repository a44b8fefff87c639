"""Type 3 tests: of each term beside all others, whatever its categories' coding.

The model is a sum of functions of categories, one for each numeric part N of its terms (1, x, x:z, ...),

    eta = sum_N N(row) g_N(categories),

and each g_N is a sum of components as in the analysis of variance: the mean over all levels, with equal weights, a
main effect whose levels sum to zero, and so on. The hypothesis of a term is that its component is zero. These are the
coefficients of sum-to-zero contrasts, found from the coding that the fit has: no treatment contrast is tested for a
main effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import numpy as np

from hierfl.data.formula.reader import Reader
from hierfl.data.formula.units import INTERCEPT
from hierfl.errors import UserError

#: the transform to sum-to-zero coefficients has no singular value below this
SINGULAR = 1e-9


@dataclass(frozen=True)
class Part:
    """A factor of a term.

    Attributes:
        name: as formulae calls it.
        code: of a category, the columns of each level, (levels, columns); None of numbers.
        width: its columns.
    """

    name: str
    code: np.ndarray | None
    width: int


@dataclass(frozen=True)
class ModelTerm:
    """A term of fixed effects.

    Attributes:
        name: of the term.
        columns: which of all fixed columns are its.
        parts: its factors, the last one's columns running fastest.
    """

    name: str
    columns: slice
    parts: tuple[Part, ...]

    @property
    def categories(self) -> dict[str, Part]:
        """Its factors that are categories."""
        return {part.name: part for part in self.parts if part.code is not None}

    @property
    def numeric(self) -> tuple[str, ...]:
        """Names of the others; sorted, where their order does not matter."""
        numbers = [part for part in self.parts if part.code is None]
        names = [part.name for part in numbers]
        return tuple(names if any(part.width > 1 for part in numbers) else sorted(names))

    def cell(self, levels: dict[str, int]) -> np.ndarray:
        """Its columns in rows of such levels, for each numeric column alone, (numeric columns, columns)."""
        factors = [np.eye(p.width) if p.code is None else p.code[levels[p.name]][None] for p in self.parts]
        return _kron(factors)


def terms_of(reader: Reader) -> list[ModelTerm]:
    """The terms of fixed effects that have columns, in the formula's order."""
    common, terms, first = reader.read.common, [], 0
    for name, term in common.terms.items():
        if term.kind == "offset":
            continue
        parts = tuple(_part(component) for component in getattr(term, "components", ()))
        width = common.slices[name].stop - common.slices[name].start
        if width:
            terms.append(ModelTerm(name, slice(first, first + width), parts))
        first += width
    return terms


def _part(component: Any) -> Part:
    if component.kind == "categoric":
        code = np.asarray(component.contrast_matrix.matrix, dtype=float)
        return Part(component.name, code, code.shape[1])
    value = np.asarray(component.value)
    return Part(component.name, None, 1 if value.ndim == 1 else value.shape[1])


def type3(reader: Reader, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Contrasts (q, r) of each term's hypothesis, by the term's name, without the intercept's.

    Args:
        reader: of the fit.
        names: of the coefficients, r.

    Raises:
        UserError: for a model whose terms are no such components: without an intercept or a term that an interaction
            contains, or with columns that were dropped.
    """
    independent = reader.independent
    if independent is not None and independent.dropped:
        (name, *_) = independent.dropped
        raise UserError(f"type 3 tests need all cells: the column {name!r} was dropped; compare() tests nested models")
    terms = terms_of(reader)
    every = list(independent.names) if independent is not None else list(names)
    places = [every.index(name) for name in names]
    components: dict[str, np.ndarray] = {}
    for numeric in dict.fromkeys(term.numeric for term in terms):
        of_part = [term for term in terms if term.numeric == numeric]
        components |= _components(of_part, len(every))
    contrasts = {t.name: components[t.name][:, places] for t in terms if t.name not in INTERCEPT}
    if not contrasts:
        raise UserError("type 3 tests are of terms, and the formula has none beside its intercept")
    return contrasts


def _components(terms: list[ModelTerm], p: int) -> dict[str, np.ndarray]:
    """The components of the terms with one numeric part: each one's component as contrasts of all p columns."""
    factors: dict[str, np.ndarray] = {}
    for term in terms:
        factors |= {name: part.code for name, part in term.categories.items() if part.code is not None}
    cells = [dict(zip(factors, at, strict=True)) for at in product(*(range(len(code)) for code in factors.values()))]
    numeric = prod(part.width for part in terms[0].parts if part.code is None)
    values = np.zeros((len(cells), numeric, p))
    for k, cell in enumerate(cells):
        for term in terms:
            values[k, :, term.columns] += term.cell(cell)
    components = {}
    for term in terms:
        averages = [
            _differences(code) if name in term.categories else np.full((1, len(code)), 1 / len(code))
            for name, code in factors.items()
        ]
        components[term.name] = np.einsum("ec,cnp->enp", _kron(averages), values).reshape(-1, p)
    used = np.concatenate([np.arange(p)[term.columns] for term in terms])
    whole = np.concatenate(list(components.values()))[:, used]
    if whole.shape[0] != whole.shape[1] or np.linalg.svd(whole, compute_uv=False)[-1] < SINGULAR:
        what = " and ".join(repr(term.name) for term in terms)
        raise UserError(
            f"type 3 tests need an intercept and, beside an interaction, all terms inside it: {what} has other columns"
            " (a * x is a + x + a:x)"
        )
    return components


def _kron(parts: Sequence[np.ndarray]) -> np.ndarray:
    """The Kronecker product of all."""
    product = np.ones((1, 1))
    for part in parts:
        product = np.asarray(np.kron(product, part))
    return product


def _differences(code: np.ndarray) -> np.ndarray:
    """Each level less the reference, (levels - 1, levels): the hypothesis of differences to the mean.

    Satterthwaite's denominator depends on the contrasts that a hypothesis is written by. lmerTest takes these, whatever
    the coding of a category.

    Args:
        code: the columns of each level, (levels, columns). The reference's are zeros; without one it is the first.
    """
    reference = int(np.argmin(np.abs(code).sum(1))) if bool((code == 0).all(1).any()) else 0
    levels = np.eye(len(code))
    return np.delete(levels, reference, 0) - levels[reference]
