"""Whether sums that are said to be of all sites can be: a site makes its columns by them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ...errors import UserError
from ..federated.array_data import ArraySite
from ..federated.column_data import ColumnSite
from ..federated.dictionary import Column
from ..federated.formula_data import FormulaSite
from ..federated.response_sums import PREFIX
from ..federated.study_data import SiteData
from ..federated.sums import NamedSums
from .rule import Rule

#: what rounding may add, of the size of the sums
TOLERANCE = 1e-9
#: sums of squares of numbers that are understood, see :data:`~hierfl.data.formula.columns.MAX_MAGNITUDE`
LARGEST = 1e220
NO_RANGE = (-np.inf, np.inf)


def total_rules(
    site: SiteData, totals: Sequence[NamedSums], others: int, least_rows: int, *, included: bool = True
) -> list[Rule]:
    """Whether totals can be those of this site's rows and other sites'.

    Args:
        site: this site's rows.
        totals: sums over all sites, of the steps so far.
        others: how many other sites there are.
        least_rows: that the study asks of each.
        included: whether this site's own rows are in them: those of one that joins late are not.
    """
    judged_rules: list[Rule] = []
    for step, total in enumerate(totals):
        try:
            own = site.sums(totals[:step])
        except UserError as error:
            return [*judged_rules, Rule(f"totals, step {step + 1}", False, str(error))]
        if own.keys() != total.keys() or any(np.shape(own[k]) != np.shape(total[k]) for k in own):
            return [*judged_rules, Rule(f"totals, step {step + 1}", False, "they are of another form")]
        if not all((np.abs(value) <= LARGEST).all() for value in total.values()):
            return [*judged_rules, Rule(f"totals, step {step + 1}", False, "they are not finite, or too large")]
        inside = own if included else {name: np.zeros(np.shape(value)) for name, value in own.items()}
        problems = list(_problems(site, step, inside, total, others, least_rows))
        margin = "; ".join(problems) or "they can be sums of other sites"
        judged_rules.append(Rule(f"totals, step {step + 1}", not problems, margin))
        if problems:
            return judged_rules
    if len(totals) > 1 and isinstance(site, FormulaSite):
        n = [float(totals[0]["n"]), float(totals[1]["response.n"]), float(totals[1]["random.n"])]
        same = max(n) == min(n)
        judged_rules.append(Rule("totals, rows of both steps", same, "the same" if same else "they differ"))
    return judged_rules


def _problems(
    site: SiteData, step: int, own: NamedSums, total: NamedSums, others: int, least_rows: int
) -> Iterator[str]:
    """What cannot be, in words."""
    rest = {name: np.asarray(total[name], dtype=float) - np.asarray(own[name], dtype=float) for name in own}
    if step == 1:
        yield from _design_problems(own, total, rest)
    for prefix, ranges in _moments(site, step, own).items():
        n, weight_of_row = float(rest[f"{prefix}n"]), 1.0
        if isinstance(site, ArraySite) and not prefix:  # numbers of a channel, of whole images
            weight_of_row = float(site.sums([])["n"]) / site.rows
        if n % weight_of_row:
            yield f"{prefix}n of the others is no whole number"
        elif n < others * least_rows * weight_of_row:
            yield f"{prefix}n says {n / weight_of_row:g} rows of the others, who are {others} of at least {least_rows}"
        slack = [TOLERANCE * np.maximum(1.0, np.abs(total[f"{prefix}{k}"])) for k in ("total", "square")]
        yield from _range_problems(prefix, n, rest, ranges, slack)


def _moments(site: SiteData, step: int, own: NamedSums) -> Mapping[str, list[tuple[float, float]]]:
    """The moments of a step by their prefix, and the range of each of their columns, around the centre."""
    if isinstance(site, FormulaSite):
        formula = site.study.formula
        if step:
            (name, *_) = sorted(formula.terms.response or ())
            plain = formula.family == "gaussian" and formula.terms.safe.partition("~")[0].strip(" `") == name
            response = _around(formula.columns[name], formula.centre) if plain else NO_RANGE
            return {"response.": [response], "random.": [NO_RANGE] * len(own["varying"])}
        columns = formula.columns
        return {"": [_around(columns[name], columns[name].centre) for name in formula.numbers]}
    if isinstance(site, ColumnSite):
        columns, study = site.study.dictionary.columns, site.study
        names = [name for name in study.x if columns[name].kind in ("number", "whole")]
        moments = {"": [_around(columns[name], columns[name].centre) for name in names]}
        return moments | ({PREFIX: [_around(columns[study.y], columns[study.y].centre)]} if study.learns else {})
    assert isinstance(site, ArraySite)
    channels = {"": [(0.0, 255.0)] * site.study.channels} if site.study.images else {}
    return channels | ({PREFIX: [NO_RANGE]} if site.study.learns else {})


def _around(column: Column, centre: float) -> tuple[float, float]:
    """A column's range, less its centre."""
    least, most = (NO_RANGE[k] if edge is None else edge - centre for k, edge in enumerate((column.least, column.most)))
    return least, most


def _range_problems(
    prefix: str, n: float, rest: NamedSums, ranges: Sequence[tuple[float, float]], slack: Sequence[np.ndarray]
) -> Iterator[str]:
    """Sums of the others' rows: inside of ranges, and with squares that no numbers contradict."""
    total, square = np.atleast_1d(rest[f"{prefix}total"]), np.atleast_1d(rest[f"{prefix}square"])
    if not len(total):
        return
    least, most = np.array(ranges, dtype=float).T
    with np.errstate(invalid="ignore"):
        low, high = np.where(n > 0, n * least, 0.0), np.where(n > 0, n * most, 0.0)
        # Sum of (x - a)(b - x) is not negative for x in [a, b].
        bounded = np.isfinite(least) & np.isfinite(most)
        a, b = np.where(bounded, least, 0.0), np.where(bounded, most, 0.0)
        inside = np.where(bounded, (a + b) * total - square - n * a * b, 0.0)
    outside = (total < low - slack[0]) | (total > high + slack[0])
    if outside.any() or (inside < -slack[1] - (np.abs(a + b) + 1) * slack[0] - n * np.abs(a * b) * TOLERANCE).any():
        yield f"sums of {prefix or 'the'} columns of the others are outside of their ranges"
    if (square < -slack[1]).any() or (np.square(total) > n * (square + slack[1]) + 2 * np.abs(total) * slack[0]).any():
        yield f"squares of {prefix or 'the'} columns of the others are less than their sums ask for"


def _design_problems(own: NamedSums, total: NamedSums, rest: NamedSums) -> Iterator[str]:
    """The problems of the second step of a formula."""
    others = float(rest["sites"])  # a roster may have changed since
    if others < 1 or others % 1:
        yield f"they are of {others + 1:g} site{'s' * (others != 0)}"
    for name in ("varying", "informative", "several", "homes", "levels", "histogram"):
        if name not in rest:
            continue
        value, most = np.atleast_1d(rest[name]), np.inf if name in ("levels", "histogram") else others
        if (value < 0).any() or (value > most).any() or (value % 1).any():
            yield f"{name} counts what no {others:g} other sites have"
    for name in ("gram", "products"):
        size = np.sqrt(np.maximum(np.diagonal(total[name]), 0.0))
        scale = np.where(size > 0, size, 1.0)
        matrix = rest[name] / scale / scale[:, None]
        if not np.allclose(total[name], np.transpose(total[name]), rtol=TOLERANCE, atol=0.0):
            yield f"{name} is not symmetric"
        elif len(matrix) and np.linalg.eigvalsh(matrix).min() < -TOLERANCE * len(matrix):
            yield f"{name} of the others is of no rows"
