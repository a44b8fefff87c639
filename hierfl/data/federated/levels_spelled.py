"""Spellings of the levels that the sites of a study have agreed on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...errors import UserError
from ..spellings import DIFFERENCE, Spelling, alike, folded, joined

if TYPE_CHECKING:
    import pandas as pd

#: where a study says what becomes of names that are spelled alike
ENTRY = "data.spellings of study.toml"


def check_levels_spelled(name: str, levels: Sequence[str] | Sequence[int]) -> None:
    """Refuses levels of one column that are spelled alike: no site's rows tell which of them it means.

    Args:
        name: of the column.
        levels: that the sites have agreed on.

    Raises:
        UserError: for such levels.
    """
    if groups := alike(level for level in levels if isinstance(level, str)):
        shown = "; ".join(" and ".join(map(repr, group)) for group in groups)
        raise UserError(
            f"column {name!r} has the levels {shown}, which differ {DIFFERENCE}: leave one out, and {ENTRY} = 'join' "
            "takes the others for it; or = 'keep' keeps them apart (--spellings of hierfl federate study)"
        )


def as_agreed(values: pd.Series, levels: Sequence[str] | Sequence[int], how: Spelling) -> pd.Series:
    """A site's names in the spelling that was agreed on; of a column without levels, one spelling of each.

    Args:
        values: of the site, (n,).
        levels: that the sites have agreed on; none for names that stay at the site.
        how: what becomes of names that are spelled alike.

    Raises:
        UserError: for such names where they are refused, in one line that holds none of them.
    """
    if how == "keep" or values.dtype.kind in "biufcmM":
        return values
    if not levels:
        if how == "refuse" and (groups := alike(name for name in values.dropna() if isinstance(name, str))):
            count = sum(map(len, groups))
            raise _refused(values, f"{count} names that differ from one another", "makes them one")
        return joined(values, how)
    by_fold = {folded(level): level for level in levels if isinstance(level, str)}
    strange = {name for name in values.dropna().unique() if isinstance(name, str)} - set(by_fold.values())
    renamed = {name: by_fold[folded(name)] for name in strange if folded(name) in by_fold}
    if how == "refuse" and renamed:
        count = int(values.isin(list(renamed)).sum())
        raise _refused(values, f"{count} values that differ from a level", "takes them for it")
    return values.map(lambda name: renamed.get(name, name)) if renamed else values


def _refused(values: pd.Series, what: str, effect: str) -> UserError:
    return UserError(
        f"column {str(values.name)!r} has {what} {DIFFERENCE}: {ENTRY} = 'join' {effect}, or mend them at the site"
    )
