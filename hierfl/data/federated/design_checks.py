"""What no fit could tell apart, by sums over sites."""

from __future__ import annotations

from collections.abc import Mapping

from ...errors import UserError
from ..formula.crossed import check_homes
from ..formula.parsed import CLIENT, INNER, OUTER, OWN_FORMULAS, Levels
from ..formula.units import INTERCEPT
from .design_sums import DesignSums


def check_sums(
    random: Mapping[str, tuple[tuple[str, ...], tuple[int, ...]]], levels: Levels,
    sums: DesignSums, *, needs_residual: bool,
) -> None:  # fmt: skip
    """Refuses sites from which the spread of random effects, or that of the residual, cannot be learned.

    Args:
        random: of the random ones of each level of grouping, names and how many each term has.
        levels: of grouping.
        sums: of all sites.
        needs_residual: whether the residual has a spread that is learned.

    Raises:
        UserError: for such sites.
    """
    if sums.sites < 2:
        raise UserError("there is one site: random effects need several")
    effects = len(random.get(INNER, random[CLIENT])[0])
    if needs_residual and not sums.informative:
        where = "group inside a site" if levels.inner else "site"
        raise UserError(f"no {where} has more rows than the {effects} random effects: give known standard errors")
    for kind, several in zip(levels.inside, sums.several, strict=True):
        if not several:
            raise UserError(f"no site has more than one {levels.factor(kind)}: their spreads cannot be told apart")
    if levels.crossed:
        check_homes(levels.outer, sums.homes, len(random[OUTER][0]), sums.sites)
    elif levels.outer and ((sums.homes > 0).sum() < 2 or sums.homes.max() < 2):
        raise UserError(f"two of {levels.outer!r} have to have sites, and one of them several")
    first = 0
    for level, (names, _) in random.items():
        if level in OWN_FORMULAS:  # behind the others
            continue
        what = {CLIENT: "site", OUTER: levels.outer}.get(level) or levels.factor(level)
        part = slice(first, first + len(names))
        informed = sums.random.sd[part] > 0 if level == OUTER else sums.varying[part] > 0
        for name, varies in zip(names, informed, strict=True):
            if name != INTERCEPT[0] and INTERCEPT[0] in names and not varies:
                raise UserError(f"no {what} can inform the random slope of {name!r}: it is the same in all of its rows")
        first += len(names)
