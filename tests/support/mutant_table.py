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
    rows = [HEAD, tuple("---" for _ in HEAD), *(row(record) for record in records)]
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |" for cells in rows]
    lines.append("")
    for floor in (*FLOORS, None):
        ours = [record for record in records if record["number"] and floor in (None, record["floor"])]
        ran = [record for record in ours if "killed_by" in record]
        alive = [record for record in ran if not record["killed_by"]]
        same = [record for record in alive if record.get("judged", "").startswith("equivalent")]
        slow = [record for record in alive if record.get("slow", {}).get("killed_by")]
        lines.append(
            f"{floor or 'all'}: {len(ours)} mutants, {len(ran)} run, "
            f"{len(ran) - len(alive)} killed by the quick set, {len(alive)} survived it: {len(same)} equivalent, "
            f"{len(slow)} killed by the slow set"
        )
    return "\n".join(lines)


def row(record: Mapping[str, Any]) -> tuple[str, ...]:
    """A mutant's cells."""
    outcomes = [
        outcome(record),
        *([f"slow: {outcome(record['slow'])}"] if "slow" in record else []),
        record.get("judged", ""),
    ]
    told = f"{record.get('seconds', 0) + record.get('slow', {}).get('seconds', 0):.0f}" if "seconds" in record else ""
    if not record["number"]:
        return "0", "", "", "", "none", "; ".join(filter(None, outcomes)), told
    change = f"`{short(record['original'])}` -> `{short(record['replaced'])}`"
    where = f"{record['file']}:{record['line']}"
    return (
        str(record["number"]),
        record["floor"],
        where,
        record["kind"],
        change,
        "; ".join(filter(None, outcomes)),
        told,
    )


def outcome(record: Mapping[str, Any]) -> str:
    """Which test killed it, in which phase."""
    if "killed_by" not in record:
        return "not run"
    return f"killed by {record['killed_by']} ({record['phase']})" if record["killed_by"] else "survived"


def short(text: str) -> str:
    """On one line, cut where it is long."""
    line = " ".join(text.split())
    return line if len(line) <= SHOWN else f"{line[: SHOWN - 3]}..."
