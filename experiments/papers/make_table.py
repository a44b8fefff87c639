"""`hierfl table`: a table of methods x data x clients x conditions x seeds, ours beside published numbers.

A cell is one run folder. What has finished is collected, what was interrupted is resumed, what is not there is run. The
tables and figures of the papers are files in ``definitions/``; a user's own is a file of the same form.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hierfl.errors import UserError, unknown
from hierfl.plurals import counted

from ..grid import Cell, run_cells
from ..messages import to_stderr
from .budget import in_order, plan, within
from .cells import cell_name, table_cell
from .collect import checked, rows_of
from .definition import EntryKey, Table
from .differences import differences
from .draw import draw
from .labels import labelled, labels
from .read_definition import read, shipped
from .runners import run_other
from .seen_runs import lines
from .written import COLUMNS, markdown, write

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger("hierfl")


def table(
    name: str | Path | Table, out: str | Path | None = None, *, data: Sequence[str] | None = None,
    clients: Sequence[int] | None = None, methods: Sequence[str] | None = None,
    conditions: Sequence[str] | None = None, seeds: int | None = None, budget: float | None = None,
    settings: Mapping[str, Any] | None = None, collect: bool = False, progress: bool = False, **run: Any,
) -> pd.DataFrame:  # fmt: skip
    """Runs what is missing of a table, or of a part of it; table.csv, .md, .tex and .json lie in its folder then.

    Args:
        name: of a paper's table or figure, such as ``"pfedvem-1"``; or the path of a toml file.
        out: folder of its runs; None for ``runs/table-NAME``.
        data, clients, methods, conditions, seeds: the part that is wanted; None for all.
        budget: hours after which no more cells are begun; None for all cells.
        settings: of all methods that have them, instead of the table's.
        collect: only collect what has finished.
        progress: whether to say what is going on.
        run: run options, instead of the table's (data_root, device, rounds, network, split, ...).

    Returns:
        Rows of the part: data, clients, condition, method, model (PM or GM), ours, ours_sem, seeds, published,
        published_sem, difference (accuracies in percent), nll, ece, and why, where nothing has been run.

    Raises:
        UserError: for a table or part that does not exist, or if some cells could not be run (all others were).
    """
    import pandas as pd

    rows = make_table(
        name, None if out is None else Path(out), data=data, clients=clients, methods=methods, conditions=conditions,
        seeds=seeds, budget=budget, settings=settings, extra=run, collect=collect, progress=progress,
    )  # fmt: skip
    return pd.DataFrame(rows).reindex(columns=list(COLUMNS))


def make_table(
    name: str | Path | Table, out: Path | None = None, *, data: Sequence[str] | None = None,
    clients: Sequence[int] | None = None, methods: Sequence[str] | None = None,
    conditions: Sequence[str] | None = None, seeds: int | None = None, budget: float | None = None,
    settings: Mapping[str, Any] | None = None, extra: Mapping[str, Any] | None = None, collect: bool = False,
    progress: bool = True,
) -> list[dict[str, Any]]:  # fmt: skip
    """The rows of the frame that :func:`table` returns; ``extra`` are the run options."""
    made, extra = definition(name), dict(extra or {})
    out = out or Path("runs") / f"table-{made.name}"
    if any(j < 1 for j in clients or ()) or (seeds is not None and seeds < 1):
        raise UserError("numbers of clients and seeds must be at least 1")
    if budget is not None and not budget > 0:
        raise UserError("a budget is a number of hours above 0")
    kinds = [("data set", data, made.data)]
    if not made.runner:  # an experiment has rows and conditions of its own
        kinds += [("method", methods, made.methods), ("condition", conditions, tuple(c.name for c in made.conditions))]
    for what, wanted, possible in kinds:
        for choice in wanted or ():
            if choice not in possible:
                raise unknown(f"{what} of {made.name}", choice, dict.fromkeys(possible))
    root = Path(extra.get("data_root", "data"))
    if made.runner:
        selection = {"data": data, "methods": methods, "conditions": conditions, "seeds": seeds, "settings": settings}
        if clients or budget:
            raise UserError(f"{made.name} is one experiment, without --clients and --budget")
        return run_other(made, out, selection, extra, collect, progress)
    places = made.places(data, clients, methods, conditions)
    if not places:
        raise UserError(f"{made.name} has no cell of this kind: its conditions have data and methods of their own")
    every_seed = range(made.first_seed, made.first_seed + (seeds or made.seeds))
    cells = [(p, table_cell(made, p, s, settings)) for s in every_seed for p in places]
    if budget is not None:
        cells = in_order(made, cells, out, extra, root)
    problems = []
    if made.figure.get("kind") == "bubbles":
        collect = True
    if not collect:
        say = to_stderr(progress)
        say(plan(cells, out, extra, budget))
        problems = _run(made, cells, out, extra, budget, progress)
    runs, strange = checked(_finished(made, out, places, clients, settings), out, extra)
    if not collect:
        problems += [words for words in strange if words not in problems]
    rows, claims = rows_of(made, runs, root), differences(made, runs)
    shown_names = labels([*(p.data for p in runs), *(p.method for p in runs)])

    def called(rows_kept: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return labelled(rows_kept, shown_names)

    # all that there is, whatever part was asked for
    write(made, called(rows), called(claims), out, called(lines(runs)))
    asked = {_key(made, p) for p in places}
    shown = [r for r in rows if _key(made, EntryKey(r["data"], r["clients"], r["condition"], r["method"])) in asked]
    draw(made, runs, places, out, root)
    if progress:
        spots = {(p.data, p.clients, p.condition) for p in places}
        mine = [c for c in claims if (c["data"], c["clients"], c["condition"]) in spots]
        print(markdown(made, called(shown), called(mine)))
    for words in strange if collect else ():
        log.warning("left out: %s", words)
    if problems:
        raise UserError(f"{len(problems)} of {len(cells)} cells could not be run; the first: {problems[0]}")
    return called(shown)


def definition(name: str | Path | Table) -> Table:
    """A table by its name, or from a toml file.

    Raises:
        UserError: for a name that there is not, or a file that is none.
    """
    if isinstance(name, Table):
        return name
    return read(Path(name)) if str(name).endswith(".toml") else shipped(str(name))


def _key(table: Table, entry: EntryKey) -> EntryKey:
    """What a row and a cell have in common: rows of domains are called as the domain, not as the data set."""
    return replace(entry, data="") if table.by else entry


def _finished(
    table: Table,
    out: Path,
    places: Sequence[EntryKey],
    clients: Sequence[int] | None,
    settings: Mapping[str, Any] | None,
) -> dict[EntryKey, list[Cell]]:
    """Cells that may be in a folder, of any seed: the table's, and those that were asked for beside them."""
    every = dict.fromkeys([*table.places(), *(table.places(clients=clients) if clients else ()), *places])
    folders = {path.name for path in out.iterdir()} if out.is_dir() else set()
    whole: dict[EntryKey, list[Cell]] = {}
    for entry in every:
        start = cell_name(entry, 0).removesuffix("0")
        seeds = sorted(int(rest) for name in folders if (rest := name.removeprefix(start)).isdigit() and rest != name)
        whole[entry] = [table_cell(table, entry, seed, settings) for seed in seeds]
    return whole


def _run(
    table: Table, cells: Sequence[tuple[EntryKey, Cell]], out: Path, extra: Mapping[str, Any], budget: float | None,
    progress: bool,
) -> list[str]:  # fmt: skip
    """Runs what is missing; what could not be run, and why."""
    reachable = [cell for entry, cell in cells if not table.remark(entry, "unreachable")]
    left, late = within(budget), []

    def may_start(cell: Cell) -> bool:
        if not left():
            late.append(cell)
        return left()

    say = to_stderr(progress)
    problems = run_cells(reachable, out, extra, say=say, progress=progress, shared=True, may_start=may_start)
    if late:
        say(f"not begun: {counted(len(late), 'cell')}, as the budget of {budget:g} hours is used")
    return problems
