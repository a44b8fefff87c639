"""Cells of a table as runs, and why some cannot be run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hierfl.data.datasets.presence import missing_sets
from hierfl.data.tables import is_table
from hierfl.errors import UserError
from hierfl.inference.method.settings import applicable

from ..grid import Cell
from ..methods import load
from .definition import EntryKey, Table


def slug(text: str) -> str:
    """Text as a part of a folder's name."""
    text = Path(text).stem if text.endswith((".npz", ".csv", ".py")) else text
    plain = "".join(c if c.isalnum() or c in "._" else "-" for c in text)
    return "-".join(filter(None, plain.split("-")))


def cell_name(entry: EntryKey, seed: int) -> str:
    """The name of a cell's folder."""
    parts = [slug(entry.data), str(entry.clients or ""), slug(entry.condition), slug(entry.method), str(seed)]
    return "-".join(filter(None, parts))


def table_cell(table: Table, entry: EntryKey, seed: int, chosen: Mapping[str, Any] | None = None) -> Cell:
    """One run of a table.

    Args:
        table: whose.
        entry: which cell of it.
        seed: of the run.
        chosen: settings of all methods that have them, instead of the table's.

    Raises:
        UserError: for settings that cannot be.
    """
    condition, rules = table.condition(entry), table.rules_of(entry)
    runs, row = table.variants.get(entry.method, (entry.method, {}))
    cls = load(runs).cls

    def its(settings: Mapping[str, Any]) -> dict[str, Any]:
        return {k: v for k, v in settings.items() if k in cls.Settings.__dataclass_fields__}

    given: dict[str, Any] = {**table.run, **condition.run}
    special: dict[str, Any] = {}
    for rule in rules:
        given |= rule.run
        special |= rule.settings
    row = {**its(condition.settings), **row}  # what makes the cell what it is
    wanted = its(chosen or {})
    if fixed := sorted(wanted.keys() & row.keys()):
        raise UserError(f"{fixed[0]} is what tells cells of {table.name} apart: choose them by --methods, --conditions")
    wanted = applicable(cls, wanted, {**special, **row})
    own = {**special, **wanted, **row}
    settings = {**applicable(cls, its(table.settings), own), **own}
    if entry.clients:
        given["clients"] = entry.clients
    many = f", {entry.clients} clients" if entry.clients else ""
    words = f"{entry.data}{many}{entry.condition and f', {entry.condition}'}, {entry.method}, seed {seed}"
    return Cell(cell_name(entry, seed), words, entry.method, runs, entry.data, given, settings, seed)


def why_not(table: Table, entry: EntryKey, root: Path) -> str:
    """Why a cell cannot be run here, in a line; empty where nothing is known that hinders it."""
    if text := table.remark(entry, "unreachable"):
        return text
    if not is_table(entry.data) and (lacking := missing_sets(entry.data, root)):
        return f"not on this disk: {', '.join(lacking)}"
    return ""
