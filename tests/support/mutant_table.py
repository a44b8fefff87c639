"""What was found, as a table in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .mutant_draw import FLOORS

HEAD = ("", "floor", "where", "kind", "change", "found", "s")
#: letters of a change that are shown
SHOWN = 60


def table(records: Sequence[Mapping[str, Any]]) -> str:
    """A row for each mutant, and how many of each floor were killed."""
    rows = [HEAD, tuple("---" for _ in HEAD), *(row(one) for one in records)]
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in one) + " |" for one in rows]
    lines.append("")
    for floor in (*FLOORS, None):
        ours = [one for one in records if one["number"] and floor in (None, one["floor"])]
        ran = [one for one in ours if "killed_by" in one]
        alive = [one for one in ran if not one["killed_by"]]
        same = [one for one in alive if one.get("judged", "").startswith("equivalent")]
        slow = [one for one in alive if one.get("slow", {}).get("killed_by")]
        lines.append(
            f"{floor or 'all'}: {len(ours)} mutants, {len(ran)} run, "
            f"{len(ran) - len(alive)} killed by the quick set, {len(alive)} survived it: {len(same)} equivalent, "
            f"{len(slow)} killed by the slow set"
        )
    return "\n".join(lines)


def row(one: Mapping[str, Any]) -> tuple[str, ...]:
    """A mutant's cells."""
    found = [outcome(one), *([f"slow: {outcome(one['slow'])}"] if "slow" in one else []), one.get("judged", "")]
    told = f"{one.get('seconds', 0) + one.get('slow', {}).get('seconds', 0):.0f}" if "seconds" in one else ""
    if not one["number"]:
        return "0", "", "", "", "none", "; ".join(filter(None, found)), told
    change = f"`{short(one['original'])}` -> `{short(one['replaced'])}`"
    where = f"{one['file']}:{one['line']}"
    return str(one["number"]), one["floor"], where, one["kind"], change, "; ".join(filter(None, found)), told


def outcome(one: Mapping[str, Any]) -> str:
    """Which test killed it, in which phase."""
    if "killed_by" not in one:
        return "not run"
    return f"killed by {one['killed_by']} ({one['phase']})" if one["killed_by"] else "survived"


def short(text: str) -> str:
    """On one line, cut where it is long."""
    line = " ".join(text.split())
    return line if len(line) <= SHOWN else f"{line[: SHOWN - 3]}..."
