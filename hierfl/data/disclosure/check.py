"""All rules on a site's own rows, for one study."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...errors import UserError
from ...files import shown
from ..federated.array_data import ArraySite
from ..federated.column_data import ColumnSite
from ..federated.formula_data import FormulaSite
from ..federated.model_data import ModelSite
from ..federated.study_data import SiteData
from ..federated.sums import NamedSums
from .cells import cell_rules, count_rules, selection_rules
from .encodings import encoding_rules, raw_numbers
from .formula_rows import formula_rows, response_counts
from .own_rows import OwnRows
from .plain_rows import array_rows, column_rows, model_rows
from .rule import Limits, Rule, worst
from .shares import column_rules, share_rules

#: fewer have no design
MIN_DESIGN_ROWS = 2
#: of a site's data: its rows as they were looked at last, with the totals of that time
KEPT = "_own_rows"


def data_rules(site: SiteData, limits: Limits, totals: Sequence[NamedSums] = ()) -> list[Rule]:
    """Whether what a study asks of a site's rows would show single ones.

    Columns that are centred or scaled depend on sums over all sites. Before these are known the site's own represent
    them; the rules are tried again once they are.

    Args:
        site: its rows, read for the study.
        limits: of the site's policy.
        totals: the sums over all sites that are known.
    """
    enough = Rule("rows", site.rows >= limits.least_rows, f"{site.rows}, at least {limits.least_rows}")
    if site.rows < MIN_DESIGN_ROWS:
        return [enough]
    try:
        own = own_rows(site, totals)
    except UserError as error:  # what no rule can be tried on is not sent either
        return [enough, Rule("columns of the study", False, shown(error))]
    judged_rules = [
        *_part_rules(own, limits), *cell_rules(own, limits), *selection_rules(own, limits),
        *(count_rules(response_counts(site, totals), limits) if isinstance(site, FormulaSite) else ()),
        *column_rules(own, limits), *share_rules(own, limits), *encoding_rules(own, raw_numbers(site)),
    ]  # fmt: skip
    # Names of columns and levels are the study's: nothing of them may hide a line.
    return [enough, *(Rule(shown(rule.name), rule.holds, shown(rule.margin)) for rule in judged_rules)]


def own_rows(site: SiteData, totals: Sequence[NamedSums] = ()) -> OwnRows:
    """A site's rows as the rules look at them; those of the last totals are kept beside the rows.

    Raises:
        UserError: where the study's columns cannot be made of them.
        TypeError: for data of another kind.
    """
    before, kept = vars(site).get(KEPT, ((), None))
    if kept is not None and len(before) == len(totals) and all(a is b for a, b in zip(before, totals, strict=True)):
        rows: OwnRows = kept
        return rows
    rows = _made(site, totals)
    vars(site)[KEPT] = tuple(totals), rows
    return rows


def _made(site: SiteData, totals: Sequence[NamedSums]) -> OwnRows:
    if isinstance(site, FormulaSite):
        return formula_rows(site, totals)
    if isinstance(site, ColumnSite):
        return column_rows(site)
    if isinstance(site, ArraySite):
        return array_rows(site)
    if isinstance(site, ModelSite):
        return model_rows(site)
    raise TypeError(f"no rules for rows of a {type(site).__name__}")


def _part_rules(own: OwnRows, limits: Limits) -> Iterator[Rule]:
    """The rules about how many rows, and groups of rows, there are."""
    for name, rows in own.held_out.items():
        count = int(rows.sum())
        way = "" if count >= limits.least_rows else ": study.toml can hold out more of them, or none"
        yield Rule(f"{name} rows", not way, f"{count}, none or at least {limits.least_rows}{way}")
    if own.groups is not None:
        groups = own.count(dict(own.parts())["all rows"])
        yield Rule("groups", groups >= limits.least_groups, f"{groups}, at least {limits.least_groups}")
    if own.design:
        columns = own.fixed + own.random
        tried = []
        for part, rows in own.parts():
            n = int(rows.sum())
            margin = f"{columns} columns for {n}, {columns / n:.2f} for each, at most {limits.parameters_per_row:g}"
            tried.append((n, Rule(part, columns <= limits.parameters_per_row * n, margin)))
        yield worst("columns for each row", tried)
