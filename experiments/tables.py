"""`hierfl table`: a paper's table, cell by cell, ours beside the published numbers.

A cell is a data set, a number of clients, a method and a seed; it is one run folder. What has finished is collected,
what was interrupted is resumed, what is not there is run: all training data, the last round.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, Protocol, TypeVar

from hierfl.errors import UserError, unknown
from hierfl.file_lock import Busy, locked
from hierfl.files import make_folder

from . import folder as folders
from .collect import gather, setting_of
from .csv_files import write_rows
from .runner import configure, resume, start


@dataclass(frozen=True)
class Published:
    """One published number, in percent."""

    accuracy: float
    sem: float | None


@dataclass(frozen=True)
class PaperTable:
    """What a table consists of.

    Attributes:
        about: in words.
        paper, number: where its numbers stand in published.csv.
        data, clients, methods, seeds: its cells.
        given: how all of them are run, beside the data set's defaults.
        exceptions: (run options, settings) of a method that differ.
        note: what a reader should know.
    """

    about: str
    paper: str
    number: str
    data: tuple[str, ...]
    clients: tuple[int, ...]
    methods: tuple[str, ...]
    seeds: int
    given: dict[str, Any] = field(default_factory=dict)
    exceptions: dict[str, tuple[dict[str, Any], dict[str, Any]]] = field(default_factory=dict)
    note: str = ""


TABLES = {
    "pfedvem-1": PaperTable(
        "Zhu, Ma and Blaschko (CVPR 2023), Table 1: accuracy of personal and global models, %",
        "pfedvem",
        "1",
        ("fashion-mnist", "cifar10", "cifar100", "sun397"),
        (50, 100, 200),
        (
            "local",
            "fedavg",
            "fedprox",
            "scaffold",
            "fedper",
            "fedrep",
            "ifca",
            "perfedavg",
            "pfedme",
            "pfedbayes",
            "pfedvem",
        ),
        5,
        {"validation": 0.0},
        {"local": ({"rounds": 20}, {"epochs": 1})},
        "Local trains for 20 epochs (Appendix C). On CIFAR-100 the authors' public code scores personal models on some "
        "of their subclasses only, and the published PM may be such a score.",
    ),
}


def published_numbers(paper: str, number: str, split: str = "") -> dict[tuple[str, int, str, str], Published]:
    """{(data, clients, method, PM or GM): number} of one table from published.csv, of a split where it has several."""
    text = (files("hierfl.experiments") / "published.csv").read_text()
    return {
        (row["data"], int(row["clients"]), row["method"], row["model"]): Published(
            float(row["accuracy"]), float(row["sem"]) if row["sem"] else None
        )
        for row in csv.DictReader(io.StringIO(text))
        if (row["paper"], row["table"], row["split"]) == (paper, number, split)
    }


class Configured(Protocol):
    """A cell of some table: what there is to run, and its name in words."""

    def config(self, extra: dict[str, Any]) -> dict[str, Any]:
        """Of its run."""
        ...


class Named(Configured, Protocol):
    """A cell whose run has a folder of its own."""

    @property
    def name(self) -> str:
        """Of the folder."""
        ...


@dataclass(frozen=True)
class Cell:
    """One run of a table."""

    table: PaperTable
    data: str
    clients: int
    method: str
    seed: int

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"{self.data}-{self.clients}-{self.method}-{self.seed}"

    def __str__(self) -> str:
        return f"{self.data}, {self.clients} clients, {self.method}, seed {self.seed}"

    def config(self, extra: dict[str, Any]) -> dict[str, Any]:
        """Of its run."""
        given, settings = self.table.exceptions.get(self.method, ({}, {}))
        said = {**self.table.given, "clients": self.clients, "seed": self.seed, **given, **extra}
        return configure(self.method, self.data, said, settings)


def check_cell(cell: Configured, folder: Path, extra: dict[str, Any]) -> None:
    """Checks that a folder holds this cell's run.

    Raises:
        UserError: if it holds another one.
    """
    old, wanted = setting_of(folders.read_config(folder)), setting_of(cell.config(extra))
    for part, values in wanted.items():
        # (how data were come by is known once they are loaded)
        other = [k for k in {**old[part], **values} if old[part].get(k) != values.get(k) and k != "data_origin"]
        if other:
            was, should = old[part].get(other[0]), values.get(other[0])
            raise UserError(
                f"{folder} was run with {other[0]} = {was!r}, but this table wants {should!r}; move it away, or take "
                "another --out"
            )


def run_cell(cell: Configured, folder: Path, extra: dict[str, Any], progress: bool) -> None:
    """Runs a cell, or goes on with it, or leaves it alone if it has finished.

    Raises:
        UserError: if the folder holds another run, or the run cannot be made.
    """
    if not (folder / "config.toml").is_file():
        start(cell.config(extra), folder, overwrite=folder.exists(), progress=progress)
        return
    check_cell(cell, folder, extra)
    if not (folder / "summary.json").is_file():
        resume(folder, progress, {k: extra[k] for k in ("data_root", "device") if k in extra})


C = TypeVar("C", bound=Named)


def finished(out: Path, cells: Iterable[C]) -> Iterator[tuple[C, Path, dict[str, Any], dict[str, Any]]]:
    """Those cells whose runs have finished, each with its folder, summary, and setting ("run" and "settings").

    Raises:
        UserError: for runs that differ from the first in more than method, settings and seed.
    """
    first: dict[str, Any] = {}
    for cell in cells:
        folder = out / cell.name
        if not (folder / "summary.json").is_file():
            continue
        setting = setting_of(folders.read_config(folder))
        about = {k: v for k, v in setting["run"].items() if k != "method"}
        if other := [k for k in {**first, **about} if first and first.get(k) != about.get(k)]:
            raise UserError(f"the runs in {out} differ in {', '.join(other)}: {cell.name} has {about.get(other[0])!r}")
        first = about
        yield cell, folder, folders.read_summary(folder), setting


def make(
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
        Cell(table, d, j, m, s)
        for s in range(seeds or table.seeds)  # the outermost: stopped early, it is a table of fewer seeds
        for d in dict.fromkeys(data or table.data)
        for j in dict.fromkeys(clients or table.clients)
        for m in dict.fromkeys(methods or table.methods)
    ]
    problems = [] if collect else list(_run_all(cells, out, extra, progress))
    whole = [
        Cell(table, d, j, m, s)
        for d in table.data
        for j in sorted({*table.clients, *(clients or ())})
        for m in table.methods
        for s in range(max(table.seeds, seeds or 0))
    ]
    rows, strange = _rows(table, whole, out, extra)
    if not collect:
        problems += [words for words in strange if words not in problems]
    sizes = {(c.data, c.clients) for c in cells}
    asked = {(c.data, c.clients, c.method) for c in cells}
    part = [
        row
        for row in rows
        if (row["data"], row["clients"]) in sizes
        and ("ours" not in row or (row["data"], row["clients"], row["method"]) in asked)
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
    folders.write_text(out / "table.json", json.dumps(record, indent=1) + "\n")
    write_rows(out / "table.csv", COLUMNS, rows)
    folders.write_text(out / "table.md", markdown(table, rows))


def _run_all(cells: Sequence[Cell], out: Path, extra: dict[str, Any], progress: bool) -> Iterator[str]:
    """Runs what is missing; yields what could not be."""
    say: Callable[[str], None] = (
        (lambda text: print(text, file=sys.stderr, flush=True)) if progress else (lambda text: None)
    )
    make_folder(out)
    for number, cell in enumerate(cells, start=1):
        try:
            with locked(out / f".{cell.name}.lock", f"{cell} is running in another process"):
                if not (out / cell.name / "summary.json").is_file():
                    say(f"cell {number} of {len(cells)}: {cell}")
                run_cell(cell, out / cell.name, extra, progress)
        except Busy as busy:
            say(str(busy))
        except UserError as error:
            say(f"{cell}: {error}")
            yield f"{cell}: {error}"


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
)


def _rows(
    table: PaperTable, cells: Sequence[Cell], out: Path, extra: dict[str, Any]
) -> tuple[list[dict[str, Any]], list[str]]:
    """One row per data set, number of clients, method and model, ours or published (accuracies in percent).

    Also says which finished runs were left out, because they are not this table's.
    """
    theirs, strange = published_numbers(table.paper, table.number), []
    ours: dict[tuple[str, int, str], list[Path]] = {}
    for cell in cells:
        runs = ours.setdefault((cell.data, cell.clients, cell.method), [])
        if (out / cell.name / "summary.json").is_file():
            try:
                check_cell(cell, out / cell.name, extra)
            except UserError as error:
                strange.append(f"{cell}: {error}")
            else:
                runs.append(out / cell.name)
    rows = []
    known = {key[:3]: None for key in theirs if key[:2] in {(c.data, c.clients) for c in cells}}
    for key in {**known, **dict.fromkeys(ours)}:
        record = gather(ours[key])[0] if ours.get(key) else None
        for model, prefix in (("PM", "pm"), ("GM", "gm")):
            number, found = theirs.get((*key, model)), (record or {}).get(f"{prefix}_accuracy")
            if number is None and found is None:
                continue
            row: dict[str, Any] = {"data": key[0], "clients": key[1], "method": key[2], "model": model}
            row |= {"published": number and number.accuracy, "published_sem": number and number.sem}
            if record is not None and found is not None:
                sem = record[f"{prefix}_accuracy_se"]
                row |= {"ours": 100 * found, "ours_sem": sem and 100 * sem, "seeds": len(record["seeds"])}
                row |= {"nll": record.get(f"{prefix}_nll"), "ece": record.get(f"{prefix}_ece")}
                row |= {k: record[k] for k in ("seconds_per_round", "setting", "settings_chosen", "method_digests")}
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
            lines.append(f"- {method}: {how}{mixed} ({values})")
        lines.append("")
    return "\n".join([*lines, table.note, ""])


def _pair(row: dict[str, Any]) -> str:
    ours = "" if row.get("ours") is None else f"{row['ours']:.1f}"
    if ours and row["ours_sem"] is not None:
        ours += f" ± {row['ours_sem']:.1f}"
    if ours:
        ours += f" ({row['seeds']})"
    theirs = "" if row.get("published") is None else f"{row['published']:.1f} ± {row['published_sem']:.1f}"
    return f"{ours} | {theirs}"
