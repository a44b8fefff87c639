"""Experiments of the papers that are no grid of runs, each with rows as a table has them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from hierfl.data.datasets.presence import missing_sets
from hierfl.data.datasets.registry import defaults
from hierfl.errors import UserError, unknown
from hierfl.file_lock import locked
from hierfl.files import make_folder

from ..bench.machine import Machine
from ..grid import read_cells
from ..run_folder.csv_files import read_frame
from ..run_folder.files import versions, write_text
from .alone import run_alone
from .cells import table_cell
from .choose import run_searches
from .client_sizes import QUANTILES_SHOWN, draw_sizes, run_sizes
from .collect import row_of
from .definition import EntryKey, Table
from .published import numbers_of
from .round_cost import cost_table, time_rounds, with_width
from .synthetic import run_experiment
from .unseen import NAMES, run_table
from .unseen import markdown as unseen_markdown
from .written import markdown, write

Rows = list[dict[str, Any]]
Said = Mapping[str, Any]


def run_other(
    table: Table, out: Path, selection: Said, extra: Mapping[str, Any], collect: bool, progress: bool
) -> Rows:
    """Runs what is missing of an experiment, and writes its table.

    Args:
        table: the experiment.
        out: its folder; one process at a time.
        selection: data, methods, conditions, seeds and settings as asked for; settings may be its arguments.
        extra: run options.
        collect: only collect what has finished.
        progress: whether to print the table.

    Raises:
        UserError: for what the experiment does not have, or if another process is at it.
    """
    make_folder(out)
    arguments, settings = dict(table.arguments), dict(selection["settings"] or {})
    for key in settings.keys() & arguments.keys():
        arguments[key] = _typed(key, settings.pop(key), arguments[key])
    how = {**selection, "settings": settings, "seeds": selection["seeds"] or table.seeds}
    with locked(out / ".lock", f"{table.name} is running in another process, in {out}"):
        rows = RUNNERS[table.runner](table, out, how, dict(extra), arguments, collect)
    write(table, rows, [], out)
    if progress:
        print(markdown(table, rows))
    return rows


def _typed(key: str, text: Any, usual: Any) -> Any:
    """An argument as said, of the usual one's kind."""
    if not isinstance(text, str):
        return text
    parts = text.split(",") if isinstance(usual, list) else [text]
    kind = type(usual[0] if isinstance(usual, list) else usual)
    try:
        values = [kind(part) for part in parts]
    except ValueError as error:
        raise UserError(f"{key} cannot be {text!r}") from error
    return values if isinstance(usual, list) else values[0]


def _none_of(selection: Said, *names: str) -> None:
    for name in names:
        if selection[name]:
            raise UserError(f"this experiment has no --{'set' if name == 'settings' else name}")


def _synthetic(
    table: Table, out: Path, selection: Said, extra: dict[str, Any], arguments: dict[str, Any], collect: bool
) -> Rows:
    """FedPop's Figure 2."""
    _none_of(selection, "data", "methods", "conditions", "settings")
    if more := extra.keys() - {"data_root", "rounds"}:
        raise UserError(f"this experiment has no --{min(more)}")
    path = out / "synthetic.csv"
    if not collect:
        rounds = {"rounds": extra.get("rounds", arguments["rounds"]), "exact_rounds": arguments["exact_rounds"]}
        run_experiment(selection["seeds"], arguments["exact"], arguments["reading"], out, **rounds)
    frame = read_frame(path, ("method",)) if path.is_file() else pd.DataFrame({"method": []})
    rows = []
    for metric in ("principal_angle", "z_error", "test_rmse"):
        for method, own in frame.groupby("method", sort=False):
            entry = EntryKey("fedpop-synthetic", 100, metric.replace("_", " "), str(method))
            rows.append(row_of(table, entry, "PM", own[metric].tolist(), None, {}, ""))
    return rows


def _unseen(
    table: Table, out: Path, selection: Said, extra: dict[str, Any], arguments: dict[str, Any], collect: bool
) -> Rows:
    """A client of a domain that no other has."""
    root, data = Path(extra.pop("data_root", "data")), (selection["data"] or table.data)[0]
    rows = []
    for leave in selection["conditions"] or arguments["leave"]:
        path, given = out / leave / "unseen.json", arguments["examples"]
        if not collect:
            run_table(
                data, root, leave, extra, selection["settings"], out / leave, selection["methods"], selection["seeds"],
                given,
                arguments["steps"],
            )  # fmt: skip
        facts = {"data": data, "left_out": leave, "given": [*given], "steps": arguments["steps"], **extra}
        cells = read_cells(path, {**facts, "settings": selection["settings"]})
        if cells:
            write_text(path.with_suffix(".md"), unseen_markdown(cells, given))
        for name in NAMES:
            own = [cell["accuracy"] for cell in cells if cell["method"] == name]
            for number in dict.fromkeys(key for accuracy in own for key in accuracy):
                entry = EntryKey(leave, 0, f"{number} examples", name)
                values = [100 * accuracy[number] for accuracy in own if number in accuracy]
                rows.append(row_of(table, entry, "PM", values, None, {}, ""))
    return rows


def _alone(
    table: Table, out: Path, selection: Said, extra: dict[str, Any], arguments: dict[str, Any], collect: bool
) -> Rows:
    """Models of one domain on every domain."""
    _none_of(selection, "methods", "conditions")
    root = Path(extra.pop("data_root", "data"))
    wanted = selection["data"] or table.data
    present = [name for name in wanted if not missing_sets(name, root)]
    if selection["data"] and len(present) < len(wanted) and not collect:
        present = list(wanted)  # asked for: say what is missing, or download it
    options = {"rounds": arguments["epochs"], **extra}
    cells = run_alone(present, root, selection["seeds"], options, selection["settings"], out, collect)
    theirs, rows, collected = numbers_of(table), [], set()
    for data in table.data:
        own = [cell["accuracy"] for cell in cells if cell["data"] == data]
        for trained in own[0] if own else ():
            for tested in own[0][trained]:
                entry = EntryKey(tested, 1, f"trained on {trained}", "local")
                values = [100 * accuracy[trained][tested] for accuracy in own]
                number = theirs.get((entry, "PM")) if data == "digit-five" else None
                collected |= {(entry, "PM")} if number else set()
                shown = entry if data == "digit-five" else EntryKey(tested, 1, f"{entry.condition}, {data}", "local")
                rows.append(row_of(table, shown, "PM", values, number, {}, ""))
    lacking = missing_sets("digit-five", root)
    why = f"not on this disk: {', '.join(lacking)}" if lacking else "not run"
    rest = [key for key in theirs if key not in collected]
    return rows + [row_of(table, entry, model, None, theirs[entry, model], {}, why) for entry, model in rest]


def _cost(
    table: Table, out: Path, selection: Said, extra: dict[str, Any], arguments: dict[str, Any], collect: bool
) -> Rows:
    """Seconds and bytes of a round, every method and width in turn."""
    widths, turns = arguments["widths"], arguments["turns"]
    if min(widths) < 1 or turns < 1:
        raise UserError("widths and turns must be at least 1")
    for name in selection["methods"] or ():
        if name not in table.methods:
            raise unknown(f"method of {table.name}", name, table.methods)
    path = out / "cost.json"
    if not collect:
        cells, other = {}, extra.pop("network", None)
        for entry in table.places(selection["data"], None, selection["methods"], selection["conditions"]):
            cell = table_cell(table, entry, 0, selection["settings"])
            network = str(other or cell.given["network"])
            for width in widths:
                given = {**cell.given, "network": with_width(network, width)}
                cells[entry.method, width] = type(cell)(**{**vars(cell), "given": given})
        timed = time_rounds(cells, extra, turns)
        machine = asdict(Machine.this_machine(extra.get("device", "cpu")))
        write_text(path, json.dumps({"machine": machine, "versions": versions(), "rows": timed}, indent=1) + "\n")
        write_text(out / "cost.md", cost_table(timed))
    timed = json.loads(path.read_text())["rows"] if path.is_file() else []
    rows = []
    for timing in timed:
        entry = EntryKey(table.data[0], 50, f"{timing['width']} features", timing["variant"])
        common = {"bytes_per_message": timing["bytes_per_message"], "seconds_per_round": timing["median_seconds"]}
        rows.append(row_of(table, entry, "PM", timing["seconds"], None, common, ""))
    return rows


def _sizes(
    table: Table, out: Path, selection: Said, extra: dict[str, Any], arguments: dict[str, Any], collect: bool
) -> Rows:
    """How large clients are, by the split alone."""
    _none_of(selection, "methods", "conditions", "settings")
    root, split, splits = Path(extra.pop("data_root", "data")), extra.pop("split", None), arguments["splits"]
    if splits < 1:
        raise UserError("splits must be at least 1")
    if extra:
        raise UserError(f"this experiment has no --{min(extra)}")
    clients, wanted, rows = table.conditions[0].clients, selection["data"] or table.data, []
    present = [name for name in wanted if selection["data"] or not missing_sets(name, root)]
    cells = run_sizes(present, clients, root, splits, split, out, collect)
    for data in wanted:
        own = [cell for cell in cells if cell["data"] == data and cell["split"] == (split or defaults(data).split)]
        for cell in own:
            for name in QUANTILES_SHOWN:
                rows.append(
                    row_of(table, EntryKey(data, cell["clients"], "", name), "size", [cell[name]], None, {}, "")
                )
        if own:
            draw_sizes(own, splits, out / f"sizes-{data}.png")
        else:
            lacking = missing_sets(data, root)
            why = f"not on this disk: {', '.join(lacking)}" if lacking else "not run"
            rows += [row_of(table, EntryKey(data, j, "", "median"), "size", None, None, {}, why) for j in clients]
    return rows


def _search(
    table: Table, out: Path, selection: Said, extra: dict[str, Any], arguments: dict[str, Any], collect: bool
) -> Rows:
    """Settings of several methods, chosen on validation data."""
    _none_of(selection, "conditions", "settings")
    asked = table.places(selection["data"], None, selection["methods"])
    searches = run_searches(table, asked, arguments["budget"], selection["seeds"], extra, out, collect)
    made = {searched["entry"]: searched for searched in searches}
    rows = []
    for entry in table.places():
        if (searched := made.get(entry)) is None:
            rows.append(row_of(table, entry, "validation NLL", None, None, {}, "not run"))
            continue
        chosen = ", ".join(f"{k}={v}" for k, v in searched["settings"].items())
        row = row_of(table, entry, "validation NLL", [searched["nll"]], None, {}, "")
        rows.append(
            {
                **row,
                "seeds": selection["seeds"],
                "explained": f"{chosen}; {searched['tried']} of {searched['of']} settings",
            }
        )
    return rows


RUNNERS: dict[str, Callable[..., Rows]] = {
    "synthetic": _synthetic, "unseen": _unseen, "alone": _alone, "cost": _cost, "sizes": _sizes,
    "search": _search,
}  # fmt: skip
