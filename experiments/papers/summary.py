"""How many of the published numbers have been run, and how near ours are, table by table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hierfl.errors import UserError
from hierfl.schema import read_json

from .cells import table_cell, why_not
from .definition import EntryKey, Table
from .published import numbers_of
from .read_definition import names, shipped

#: points of percent within which a number agrees
NEAR_POINTS, AGREEMENT_POINTS = 1.0, 1.5
Ours = dict[tuple[EntryKey, str], dict[str, Any]]


def ours_in(folder: Path, tables: Sequence[str]) -> dict[str, Ours]:
    """Rows that have been run, from every table.json below a folder; of one cell twice the one with more seeds.

    Raises:
        UserError: for a table.json that is damaged.
    """
    rows_of_tables: dict[str, Ours] = {name: {} for name in tables}
    for path in sorted(folder.rglob("table.json")):
        record = read_json(path)
        name = record.get("table")
        if name not in rows_of_tables or not isinstance(record.get("rows"), list):
            continue
        for row in record["rows"]:
            if row.get("ours") is None:
                continue
            key = EntryKey(row["data"], row["clients"], _condition(shipped(name), row), row["method"]), row["model"]
            old = rows_of_tables[name].get(key)
            if old is None or row.get("seeds", 1) > old.get("seeds", 1):
                rows_of_tables[name][key] = row
    return rows_of_tables


def _condition(table: Table, row: Mapping[str, Any]) -> str:
    """The condition of a row; tables of earlier versions have it as the split alone."""
    if "condition" in row:
        return str(row["condition"])
    split = str(row.get("setting", {}).get("run", {}).get("split", "")).partition(",")[0]
    return split if split in {condition.name for condition in table.conditions} else ""


def counts(table: Table, ours: Ours, root: Path) -> dict[str, Any]:
    """Published numbers of a table, how many have been run, how many agree, and why others cannot be run."""
    theirs = numbers_of(table)
    run_keys = {key for key in theirs if key in ours}
    strange = {key: why for key in run_keys if (why := _otherwise(table, key[0], ours[key]))}
    gaps = {key: ours[key]["ours"] - theirs[key].value for key in theirs if key in run_keys - strange.keys()}
    reasons = dict(Counter(strange.values()))
    for entry, _ in theirs.keys() - run_keys:
        if why := _why(table, entry, root):
            reasons[why] = reasons.get(why, 0) + 1
    far = [
        {
            "place": entry,
            "model": model,
            "ours": ours[entry, model],
            "published": theirs[entry, model].value,
            "gap": gap,
        }
        for (entry, model), gap in gaps.items()
        if abs(gap) > AGREEMENT_POINTS + 1e-9
    ]
    return {
        "table": table.name, "published": len(theirs), "run": len(gaps),
        "near": sum(abs(gap) <= NEAR_POINTS + 1e-9 for gap in gaps.values()),
        "within": sum(abs(gap) <= AGREEMENT_POINTS + 1e-9 for gap in gaps.values()), "reasons": reasons, "far": far,
    }  # fmt: skip


#: run options that tell a table's cells apart, beside its rounds
OPTIONS = ("split", "network", "participation", "validation_fraction")


def _otherwise(table: Table, entry: EntryKey, row: Mapping[str, Any]) -> str:
    """How a run differs from the table's cell, in words: it is no number of the table then; empty where it does not."""
    setting = row.get("setting", {})
    rounds = row.get("rounds") or setting.get("run", {}).get("rounds")
    if table.runner:
        return ""
    cell = table_cell(table, replace(entry, data=table.data[0]) if table.by else entry, 0)
    config = cell.config({})
    if rounds is not None and int(rounds) < config.run.rounds:
        return "run with fewer rounds than the table's"
    wanted = {name: getattr(config.run, name) for name in OPTIONS}
    wanted |= {name: config.settings[name] for name in cell.settings}
    had = {**setting.get("run", {}), **setting.get("settings", {})}
    other = [name for name, value in wanted.items() if name in had and had[name] != value]
    return f"run with another {other[0]} than the table's" if other else ""


def _why(table: Table, entry: EntryKey, root: Path) -> str:
    """Why a published number cannot be run here; numbers of a domain need the whole data set."""
    if table.by or table.runner:
        return why_not(table, EntryKey(table.data[0], entry.clients, entry.condition, entry.method), root)
    return why_not(table, entry, root)


def summary(folder: Path, root: Path, name: str = "") -> list[dict[str, Any]]:
    """:func:`counts` of every published table, or of one.

    Args:
        folder: with the tables' folders (``runs``), or above them.
        root: where data sets lie.
        name: of a table; all that have published numbers by default.

    Raises:
        UserError: for a table that has none.
    """
    tables = [name] if name else [table_name for table_name in names() if shipped(table_name).paper]
    if not shipped(tables[0]).paper:
        raise UserError(f"nothing is published beside {name}")
    ours = ours_in(folder, tables)
    return [counts(shipped(table), ours[table], root) for table in tables]


def markdown(counted_tables: Iterable[dict[str, Any]]) -> str:
    """A line for each table, all of them, and every number that is further than 1.5 points from ours."""
    every = list(counted_tables)
    lines = [
        f"| table | published | run | within {NEAR_POINTS:g} | within {AGREEMENT_POINTS:g} | not counted, and why |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for entry in every:
        reasons = "; ".join(f"{many}: {why}" for why, many in sorted(entry["reasons"].items()))
        lines.append(
            f"| {entry['table']} | {entry['published']} | {entry['run']} | {entry['near']} | {entry['within']} "
            f"| {reasons} |"
        )
    published, run, near, within = (
        sum(entry[key] for entry in every) for key in ("published", "run", "near", "within")
    )
    lines += ["", f"{run} of {published} published numbers have been run: {near} within {NEAR_POINTS:g} point of ours, "
              f"{within} within {AGREEMENT_POINTS:g}."]  # fmt: skip
    if far := [(entry["table"], gap) for entry in every for gap in entry["far"]]:
        lines += ["", f"Further than {AGREEMENT_POINTS:g} points:", ""]
        lines += ["| table | data | J | condition | method | | ours | published | difference | |"]
        lines += ["|---|---|---:|---|---|---|---:|---:|---:|---|"]
    for name, gap in far:
        entry, row = gap["place"], gap["ours"]
        why = shipped(name).remark(entry, "explained") or "unexplained"
        rounds = f", {row['rounds']} rounds" if row.get("rounds") else ""
        lines.append(
            f"| {name} | {entry.data} | {entry.clients} | {entry.condition} | {entry.method} | {gap['model']} | "
            f"{row['ours']:.1f} ({row.get('seeds', 1)}{rounds}) | {gap['published']:.1f} | {gap['gap']:+.1f} | {why} |"
        )
    return "\n".join([*lines, ""])


def plain(counted_tables: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same for a program: cells instead of rows."""
    kept = ("ours", "ours_sem", "seeds", "rounds")
    return [
        {**entry, "far": [
            {**vars(gap["place"]), "model": gap["model"], **{k: gap["ours"].get(k) for k in kept},
             "published": gap["published"], "difference": gap["gap"],
             "explained": shipped(entry["table"]).remark(gap["place"], "explained") or None}
            for gap in entry["far"]
        ]}
        for entry in counted_tables
    ]  # fmt: skip
