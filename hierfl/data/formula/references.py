"""Which level of a category the others are compared with: its column is the one that a design does not have."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from ...natural_order import natural
from .reader import Reader

#: a column of a category with treatment contrasts, ``arm[B]`` or ``T(arm, ref='A')[B]``: its column, and the level
TREATED = re.compile(r"(?:[CT]\((?P<called>[^,()]+)(?:,[^\[\]]*)?\)|(?P<bare>[^\[\]():]+))\[(?P<level>[^\[\]]*)\]")


def reference_levels(
    columns: Collection[str], levels: Mapping[str, Collection[object]], dropped: Collection[str] = ()
) -> dict[str, str]:
    """The reference level of each category among a design's fixed columns.

    Args:
        columns: names of the design's fixed columns, the intercept among them.
        levels: of each category, all that the fit has seen.
        dropped: columns that were dropped, in sentences: a level whose column was is no reference.

    Returns:
        {category: level}, of those that have all levels but one. A category with a column for each level has no
        reference, nor has one with sum contrasts, nor one that is in interactions alone.
    """
    present: dict[str, set[str]] = {}
    for name in columns:
        if match := TREATED.fullmatch(name):
            present.setdefault((match["called"] or match["bare"]).strip(), set()).add(match["level"])
    references = {}
    for name, shown in present.items():
        absent = [str(level) for level in levels.get(name, ()) if str(level) not in shown]
        if len(absent) == 1 and not any(f"[{absent[0]}]" in line for line in dropped):
            references[name] = absent[0]
    return references


def reference_line(references: Mapping[str, str]) -> str:
    """The reference levels in words, "reference levels: arm A, sex f"; empty where there are none."""
    if len(references) == 1:
        ((name, level),) = references.items()
        return f"{name}: reference level {level}"
    shown = ", ".join(f"{name} {level}" for name, level in references.items())
    return f"reference levels: {shown}" if shown else ""


def levels_of(reader: Reader) -> dict[str, list[Any]]:
    """The levels of each predictor that is a category, in the order of the fit's coding."""
    known: dict[str, list[Any]] = {name: sorted(levels, key=natural) for name, levels in reader.types.levels.items()}
    for term in reader.read.common.terms.values():
        for component in getattr(term, "components", ()):
            names = component.var_names - {""}
            if component.kind == "categoric" and len(names) == 1:
                levels = [value.item() if hasattr(value, "item") else value for value in component.levels]
                known[next(iter(names))] = levels
    return known


def references_of(facts: Mapping[str, Any], columns: Collection[str]) -> dict[str, str]:
    """The reference levels of a fit; see :func:`reference_levels`.

    Args:
        about: of its federation.
        columns: names of the design's fixed columns.
    """
    reader = facts.get("reader")
    if not isinstance(reader, Reader):
        return {}
    return reference_levels(columns, levels_of(reader), facts.get("dropped") or ())
