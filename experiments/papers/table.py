"""`hierfl table`: a paper's table, cell by cell, ours beside the published numbers.

A cell is a data set, a number of clients, a method and a seed; it is one run folder. What has finished is collected,
what was interrupted is resumed, what is not there is run: all training data, the last round.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hierfl.errors import UserError, unknown
from hierfl.inference.method.settings import applicable

from ..compare.over_seeds import summarise_over_seeds
from ..grid import Cell, check_cell, is_finished, run_cells
from ..messages import to_stderr
from ..methods import load
from ..run_folder.csv_files import write_rows
from ..run_folder.files import write_text
from .cost import bytes_per_message
from .means import mean_and_error
from .published import published_numbers
from .table_definitions import TABLES, PaperTable


def table_cell(table: PaperTable, data: str, clients: int, method: str, seed: int) -> Cell:
    """One run of a table."""
    given, own = table.exceptions.get(method, ({}, {}))
    own = {**own, **table.on.get((method, data), {})}
    words = f"{data}, {clients} clients, {method}, seed {seed}"
    said, runs = {**table.given, "clients": clients, **given}, table.variants.get(method, method)
    cls = load(runs).cls
    common = {k: v for k, v in table.settings.items() if k in cls.Settings.__dataclass_fields__}
    settings = {**applicable(cls, common, own), **own}
    return Cell(f"{data}-{clients}-{method}-{seed}", words, method, runs, data, said, settings, seed)


def make_table(
    name: str, out: Path | None = None, *, data: Sequence[str] | None = None, clients: Sequence[int] | None = None,
    methods: Sequence[str] | None = None, seeds: int | None = None, extra: dict[str, Any] | None = None,
    collect: bool = False, progress: bool = True,
) -> list[dict[str, Any]]:  # fmt: skip
    """Runs what is missing of a table, or of a part of it, and collects it.

    Args:
        name: one of :data:`TABLES`.
        out: the folder of its runs; None for ``runs/table-NAME``.
        data, clients, methods, seeds: the part that is wanted; None for all.
        extra: run options that the table leaves open (data_root, device, ...).
        collect: only collect what has finished.
        progress: whether to say what is going on.

    Returns:
        Rows: data, clients, method, model (PM or GM), ours and its standard error over seeds, seeds, published.

    Raises:
        UserError: for a table or part that does not exist, or if some cells could not be run (all others were).
    """
    if name not in TABLES:
        raise unknown("table", name, TABLES)
    table, out, extra = TABLES[name], out or Path("runs") / f"table-{name}", extra or {}
    for what, wanted, there in (("data set", data, table.data), ("method", methods, table.methods)):
        for one in wanted or ():
            if one not in there:
                raise unknown(f"{what} of {name}", one, there)
    if any(j < 1 for j in clients or ()) or (seeds is not None and seeds < 1):
        raise UserError("numbers of clients and seeds must be at least 1")
    cells = [
        table_cell(table, d, j, m, s)
        for s in range(seeds or table.seeds)  # the outermost: stopped early, it is a table of fewer seeds
        for d in dict.fromkeys(data or table.data)
        for j in dict.fromkeys(clients or table.clients)
        for m in dict.fromkeys(methods or table.methods)
    ]
    problems = [] if collect else run_cells(cells, out, extra, say=to_stderr(progress), progress=progress, shared=True)
    whole = [
        table_cell(table, d, j, m, s)
        for d in table.data
        for j in sorted({*table.clients, *(clients or ())})
        for m in table.methods
        for s in range(max(table.seeds, seeds or 0))
    ]
    rows, strange = _rows(table, whole, out, extra)
    if not collect:
        problems += [words for words in strange if words not in problems]
    sizes = {(c.data, c.given["clients"]) for c in cells}
    asked = {(c.data, c.given["clients"], c.row) for c in cells}
    part = [
        row
        for row in rows
        if (row["data"], row["clients"]) in sizes
        and (("ours" not in row and not methods) or (row["data"], row["clients"], row["method"]) in asked)
    ]
    _write(table, name, rows, out)  # all that there is, whatever part was asked for
    if progress:
        print(markdown(table, part))
        for words in strange if collect else ():
            print(f"left out: {words}", file=sys.stderr)
    if problems:
        raise UserError(f"{len(problems)} of {len(cells)} cells could not be run; the first: {problems[0]}")
    return part


def _write(table: PaperTable, name: str, rows: Sequence[dict[str, Any]], out: Path) -> None:
    """table.json, table.csv and table.md."""
    out.mkdir(parents=True, exist_ok=True)
    record = {"table": name, "note": table.note, "rows": rows}
    write_text(out / "table.json", json.dumps(record, indent=1) + "\n")
    write_rows(out / "table.csv", COLUMNS, rows)
    write_text(out / "table.md", markdown(table, rows))


COLUMNS = (
    "data",
    "clients",
    "method",
    "model",
    "ours",
    "ours_sem",
    "seeds",
    "published",
    "published_sem",
    "nll",
    "ece",
    "rounds",
    "seconds_per_round",
    "bytes_per_message",
)


def _rows(
    table: PaperTable, cells: Sequence[Cell], out: Path, extra: dict[str, Any]
) -> tuple[list[dict[str, Any]], list[str]]:
    """One row per data set, number of clients, method and model, ours or published (accuracies in percent).

    Also says which finished runs were left out, because they are not this table's.
    """
    theirs, strange = published_numbers(table.paper, table.number, table.split), []
    ours: dict[tuple[str, int, str], list[Path]] = {}
    for cell in cells:
        runs = ours.setdefault((cell.data, cell.given["clients"], cell.row), [])
        if is_finished(out / cell.name):
            try:
                check_cell(cell, out / cell.name, extra)
            except UserError as error:
                strange.append(f"{cell}: {error}")
            else:
                runs.append(out / cell.name)
    rows = []
    known = {key[:3]: None for key in theirs if key[:2] in {(c.data, c.given["clients"]) for c in cells}}
    for key in {**known, **dict.fromkeys(ours)}:
        record = summarise_over_seeds(ours[key])[0] if ours.get(key) else None
        for model, prefix, column in (("PM", "pm", table.accuracy), ("GM", "gm", "gm_accuracy")):
            number, found = theirs.get((*key, model)), (record or {}).get(column)
            if number is None and found is None:
                continue
            row: dict[str, Any] = {"data": key[0], "clients": key[1], "method": key[2], "model": model}
            row |= {"published": number and number.accuracy, "published_sem": number and number.sem}
            if record is not None and found is not None:
                sem = record[f"{column}_se"]
                row |= {"ours": 100 * found, "ours_sem": sem and 100 * sem, "seeds": len(record["seeds"])}
                row |= {"nll": record.get(f"{prefix}_nll"), "ece": record.get(f"{prefix}_ece")}
                row |= {k: record[k] for k in ("seconds_per_round", "setting", "settings_chosen", "method_digests")}
                each = mean_and_error([bytes_per_message(run) for run in ours[key]])[0]
                row |= {"rounds": record["setting"]["run"]["rounds"], "bytes_per_message": each}
            rows.append(row)
    return rows, strange


def markdown(table: PaperTable, rows: Sequence[dict[str, Any]]) -> str:
    """A table for each data set: methods down, clients across, ours (mean, standard error, seeds) over published."""
    lines = [table.about, ""]
    for data in dict.fromkeys(row["data"] for row in rows):
        mine = [row for row in rows if row["data"] == data]
        sizes = sorted({row["clients"] for row in mine})
        heads = " | ".join(f"J = {j}, ours | published" for j in sizes)
        lines += [f"| {data} | | {heads} |", "|---|---|" + "---:|---:|" * len(sizes)]
        for method, model in dict.fromkeys((row["method"], row["model"]) for row in mine):
            found = {row["clients"]: row for row in mine if (row["method"], row["model"]) == (method, model)}
            shown = " | ".join(_pair(found.get(j, {})) for j in sizes)
            lines.append(f"| {method} | {model} | {shown} |")
        lines.append("")
        for method, row in {row["method"]: row for row in mine if "ours" in row}.items():
            values = ", ".join(f"{k}={v}" for k, v in row["setting"]["settings"].items())
            how = row["settings_chosen"] or "its defaults, not searched on this data set"
            mixed = "; runs of different versions of its file" if len(row["method_digests"]) > 1 else ""
            # (seconds a round are in table.csv: the text is the same however often the table was interrupted)
            cost = f"{row['bytes_per_message'] / 1e3:,.0f} kB a message"
            lines.append(f"- {method}: {row['rounds']} rounds, {cost}; {how}{mixed} ({values})")
        lines.append("")
    return "\n".join([*lines, table.note, ""])


def _pair(row: dict[str, Any]) -> str:
    ours = "" if row.get("ours") is None else f"{row['ours']:.1f}"
    if ours and row["ours_sem"] is not None:
        ours += f" ± {row['ours_sem']:.1f}"
    if ours:
        ours += f" ({row['seeds']})"
    theirs = "" if row.get("published") is None else f"{row['published']:.1f}"
    if theirs and row["published_sem"] is not None:
        theirs += f" ± {row['published_sem']:.1f}"
    return f"{ours} | {theirs}"
