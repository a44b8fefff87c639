"""A site's rows of a formula, as the rules look at them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..arrays import test_rows
from ..federated.formula_data import FormulaSite
from ..federated.study_reader import StudyReader, skeleton
from ..federated.sums import Moments, NamedSums
from ..formula import gate
from ..formula.column_types import typed
from ..formula.groups import group_names
from ..formula.parsed import OUTER, OWN_FORMULAS, Formula
from .own_rows import OwnRows, codes, few_values

if TYPE_CHECKING:
    import pandas as pd


def formula_rows(site: FormulaSite, totals: Sequence[NamedSums] = ()) -> OwnRows:
    """The rows of a site's table.

    Args:
        site: its rows, checked against the dictionary.
        totals: sums over all sites; before these are known, the site's own represent them.

    Raises:
        UserError: where no design can be made of these rows.
    """
    study, formula = site.study, site.study.formula
    first = totals[0] if totals else own_totals(site)
    reader = study.reader([first])
    table = formula.table(site.df)
    columns, rows, response = reader.arrays(site.df)
    names = [
        *reader.columns,
        *(
            f"{name} (random, {level})"
            for level, (columns_of_level, _) in reader.levels.items()
            for name in columns_of_level
        ),
    ]
    design = dict(zip(names, columns.T, strict=True))
    curves = frozenset(
        f"{name} (random, {level})" for level in reader.reader.smooths for name in reader.levels[level][0]
    )
    crossed = _crossed(reader, design, rows)
    more = {name: rows[name] for name in ("offset",) if name in rows}
    weights: dict[str, np.ndarray] = {name: rows[name] for name in ("trials", "weight", "precision") if name in rows}
    weights |= {"known": 1 / np.square(rows["known"])} if "known" in rows else {}
    calls = Evaluated(reader, table, Moments.named(first, study.centres))
    categories = {name: codes(table[name].to_numpy()) for name in _categories(site, table)}
    events = {f"event {study.formula.more.event}": rows["event"]} if "event" in rows else {}
    categories |= few_values({**{n: table[n].to_numpy() for n in _plain(site)}, **weights, **events})
    numbers = {name: table[name].to_numpy(dtype=float) for name in formula.numbers} | more
    ordered = bool(formula.ordinal_levels)
    y = {} if ordered else {"the response": np.asarray(response.y, dtype=float)}
    interactions, made = _interactions(reader, calls, categories)
    return OwnRows(
        len(table), _held_out(site, first), {**categories, **made}, numbers, interactions, {**design, **crossed, **y},
        len(reader.columns), len(design) + len(crossed) - len(reader.columns), calls.selections(), weights,
        _groups(reader, table), closed=True, curves=curves,
    )  # fmt: skip


def response_counts(site: FormulaSite, totals: Sequence[NamedSums] = ()) -> np.ndarray:
    """Counts of the response in bins that leave the site, (bins,); see :func:`formula_rows`."""
    if not site.study.formula.response.bins:
        return np.zeros(0)
    return np.asarray(site.sums([totals[0] if totals else own_totals(site)])["histogram"])


def _groups(reader: StudyReader, table: pd.DataFrame) -> np.ndarray | None:
    """Groups of the rows inside the site, (n,), or (n, levels) where there are several levels; None without any."""
    inside = reader.formula.levels.inside
    grouped = [codes(group_names(table, names)) for names in inside.values()]
    return np.stack(grouped, 1) if len(grouped) > 1 else grouped[0] if grouped else None


def own_totals(site: FormulaSite) -> NamedSums:
    """The first round's sums of one site, with spreads of 1 where its rows do not differ: others' will."""
    sums = dict(site.sums([]))
    n, total, square = float(sums["n"]), sums["total"], sums["square"]
    spread = square - np.square(total) / n
    return {**sums, "square": np.where(spread > 1e-9 * np.abs(square), square, square + n)}


class Evaluated:
    """Parts of a formula, evaluated on a site's rows with the constants of all sites.

    Args:
        reader: of the site's columns.
        table: the site's rows.
        moments: of numbers, over all sites.
    """

    def __init__(self, reader: StudyReader, table: pd.DataFrame, moments: Moments) -> None:
        self.formula, terms = reader.formula, reader.formula.terms
        self.skeleton = skeleton(self.formula, moments)
        self.rows = table.assign(**dict(typed(table, terms, sorted(terms.predictors))))

    def values(self, expression: str) -> np.ndarray:
        """The values of an expression that formulae reads as one column, (n,)."""
        terms = self.formula.terms
        alone = Formula(expression, f"0 + {expression}", None, terms.predictors | (terms.response or frozenset()))
        read: Any = gate.evaluate(alone, self.skeleton)
        with gate.quietly():
            return np.asarray(read.common.evaluate_new_data(self.rows).as_dataframe().to_numpy(dtype=float)[:, 0])

    def selections(self) -> Mapping[str, np.ndarray]:
        """Rows that each condition selects."""
        conditions = self.formula.terms.selections
        return {condition: self.values(f"where({condition}, 1, 0)") > 0 for condition in conditions}


def _categories(site: FormulaSite, table: pd.DataFrame) -> list[str]:
    """Columns with levels, flags, and numbers that the formula makes categories."""
    formula = site.study.formula
    kinds = {name: formula.columns[name].kind for name in formula.used}
    return sorted(n for n, kind in kinds.items() if kind in ("category", "flag") or n in formula.terms.split)


def _plain(site: FormulaSite) -> list[str]:
    """The other columns: predictors and responses that are numbers."""
    formula = site.study.formula
    values = formula.terms.predictors | (formula.terms.response or frozenset())
    return sorted(n for n in values - formula.terms.split if formula.columns[n].kind in ("number", "whole"))


def _interactions(
    reader: StudyReader, calls: Evaluated, categories: Mapping[str, np.ndarray]
) -> tuple[tuple[tuple[str, ...], ...], dict[str, np.ndarray]]:
    """Categories that are in one term, fixed or random; and those that calls make of numbers."""
    model = reader.reader.read.model
    terms = [*model.common_terms, *(term.expr for term in model.group_terms)]
    formulas = [group for name in OWN_FORMULAS for group in reader.reader.groups.get(name, ())]
    terms += [term.expr for group in formulas for term in group.terms.values()]
    together, made = dict[tuple[str, ...], None](), dict[str, np.ndarray]()
    for term in terms:
        factors: list[str] = []
        for part in getattr(term, "components", ()):
            own = [name for name in sorted(part.var_names) if name in categories]
            if not own and part.kind == "numeric" and part.name not in part.var_names:
                with gate.quietly():
                    made |= few_values({part.name: np.asarray(part.eval_new_data(calls.rows), dtype=float).reshape(-1)})
                own = [part.name] if part.name in made else []
            factors += own
        if len(set(factors)) > 1:
            together[tuple(dict.fromkeys(factors))] = None
    levels = reader.formula.levels
    for group in reader.reader.groups.get(OUTER, ()) if levels.crossed else ():
        for term in group.terms.values():
            names = {name for part in getattr(term.expr, "components", ()) for name in part.var_names}
            if crossing := tuple(sorted(names & set(categories) - {levels.outer})):
                together[levels.outer, *crossing] = None
    return tuple(together), made


def _crossed(
    reader: StudyReader, design: dict[str, np.ndarray], rows: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Columns of each group of a factor that crosses the sites, instead of those of all: sums of them leave."""
    levels = reader.formula.levels
    if not levels.crossed:
        return {}
    names = {name: design.pop(f"{name} (random, {OUTER})") for name in reader.levels[OUTER][0]}
    return {
        f"{name} (random, {levels.outer}={group})": np.where(rows[OUTER] == number, column, 0.0)
        for name, column in names.items()
        for group, number in reader.formula.places.outer.items()
        if np.any(rows[OUTER] == number)
    }


def _held_out(site: FormulaSite, first: NamedSums) -> dict[str, np.ndarray]:
    """Rows of each part that is not trained on."""
    study, n = site.study, len(site.df)
    if not study.test and not study.validation:
        return {}
    out = test_rows(np.full(n, site.client), study.test, study.seed)
    pool_rows = np.concatenate([np.flatnonzero(~out), np.flatnonzero(out)])  # of the federation's pool
    in_validation = np.zeros(n, dtype=bool)
    in_validation[pool_rows[site.federation([first]).validation[0].numpy()]] = True
    return {name: rows for name, rows in (("test", out), ("validation", in_validation)) if rows.any()}
