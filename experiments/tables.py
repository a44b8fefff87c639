"""`hierfl table`: a paper's table, cell by cell, ours beside the published numbers.

A cell is a data set, a number of clients, a method and a seed; it is one run folder. What has finished is collected,
what was interrupted is resumed, what is not there is run: all training data, the last round.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from hierfl.errors import UserError, unknown
from hierfl.inference.method import make_settings

from . import folder as folders
from .collect import gather
from .methods import load as load_method
from .runner import configure, resume, start


@dataclass(frozen=True)
class Published:
    """One published number, in percent."""

    accuracy: float
    sem: float


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
        ("local", "fedavg", "fedper", "fedrep", "pfedvem"),
        5,
        {"validation": 0.0},
        {"local": ({"rounds": 20}, {"epochs": 1})},
        "Local trains for 20 epochs (Appendix C). On CIFAR-100 the authors' public code scores personal models on some "
        "of their subclasses only, and the published PM may be such a score.",
    ),
}


def published(table: PaperTable) -> dict[tuple[str, int, str, str], Published]:
    """{(data, clients, method, PM or GM): number} from published.csv."""
    text = (files("hierfl.experiments") / "published.csv").read_text()
    return {
        (row["data"], int(row["clients"]), row["method"], row["model"]): Published(
            float(row["accuracy"]), float(row["sem"])
        )
        for row in csv.DictReader(io.StringIO(text))
        if (row["paper"], row["table"]) == (table.paper, table.number)
    }


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


#: where a run was made does not make it another cell
PLACE = ("data_root", "device", "chunk", "redraws", "method_digest", "settings_chosen")


def run_cell(cell: Cell, folder: Path, extra: dict[str, Any], progress: bool) -> None:
    """Runs a cell, or goes on with it, or leaves it alone if it has finished.

    Raises:
        UserError: if the folder holds another run, or the run cannot be made.
    """
    config = cell.config(extra)
    if not (folder / "config.toml").is_file():
        start(config, folder, overwrite=folder.exists(), progress=progress)
        return
    old = folders.read_config(folder)
    settings = make_settings(load_method(cell.method).cls, old["settings"])  # what is newer than the run: its default
    old["settings"] = {k: getattr(settings, k) for k in config["settings"]}
    for part in ("run", "settings"):
        told, wanted = ({k: v for k, v in c[part].items() if k not in PLACE} for c in (old, config))
        other = [k for k in {**told, **wanted} if told.get(k) != wanted.get(k)]
        if other:
            raise UserError(
                f"{folder} was run with {other[0]} = {told.get(other[0])!r}, but this table wants "
                f"{wanted.get(other[0])!r}; move it away, or take another --out"
            )
    if not (folder / "summary.json").is_file():
        resume(folder, progress)


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
    table, out = TABLES[name], out or Path("runs") / f"table-{name}"
    for what, wanted, there in (("data set", data, table.data), ("method", methods, table.methods)):
        for one in wanted or ():
            if one not in there:
                raise unknown(f"{what} of {name}", one, there)
    if any(j < 1 for j in clients or ()) or (seeds is not None and seeds < 1):
        raise UserError("numbers of clients and seeds must be at least 1")
    cells = [
        Cell(table, d, j, m, s)
        for s in range(seeds or table.seeds)  # the outermost: stopped early, it is a table of fewer seeds
        for d in data or table.data
        for j in clients or table.clients
        for m in methods or table.methods
    ]
    problems = [] if collect else list(_run_all(cells, out, extra or {}, progress))
    rows = list(_rows(table, cells, out))
    out.mkdir(parents=True, exist_ok=True)
    folders.write_text(
        out / "table.json", json.dumps({"table": name, "note": table.note, "rows": rows}, indent=1) + "\n"
    )
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    folders.write_text(out / "table.csv", text.getvalue())
    folders.write_text(out / "table.md", markdown(table, rows))
    if progress:
        print(markdown(table, rows))
    if problems:
        raise UserError(f"{len(problems)} of {len(cells)} cells could not be run; the first: {problems[0]}")
    return rows


def _run_all(cells: Sequence[Cell], out: Path, extra: dict[str, Any], progress: bool) -> Iterator[str]:
    """Runs what is missing; yields what could not be."""
    say: Callable[[str], None] = (
        (lambda text: print(text, file=sys.stderr, flush=True)) if progress else (lambda text: None)
    )
    out.mkdir(parents=True, exist_ok=True)
    for number, cell in enumerate(cells, start=1):
        try:
            with folders.locked(out / f".{cell.name}.lock", f"{cell} is running in another process"):
                if not (out / cell.name / "summary.json").is_file():
                    say(f"cell {number} of {len(cells)}: {cell}")
                run_cell(cell, out / cell.name, extra, progress)
        except folders.Busy as busy:
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


def _rows(table: PaperTable, cells: Sequence[Cell], out: Path) -> Iterator[dict[str, Any]]:
    """One row per data set, number of clients, method and model, ours or published; accuracies in percent."""
    theirs = published(table)
    ours: dict[tuple[str, int, str], list[Path]] = {}
    for cell in cells:
        runs = ours.setdefault((cell.data, cell.clients, cell.method), [])
        if (out / cell.name / "summary.json").is_file():
            runs.append(out / cell.name)
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
                error = record[f"{prefix}_accuracy_se"]
                row |= {"ours": 100 * found, "ours_sem": error and 100 * error, "seeds": len(record["seeds"])}
                row |= {"nll": record.get(f"{prefix}_nll"), "ece": record.get(f"{prefix}_ece")}
                row |= {"seconds_per_round": record["seconds_per_round"], "setting": record["setting"]}
            yield row


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
    return "\n".join([*lines, table.note, ""])


def _pair(row: dict[str, Any]) -> str:
    ours = "" if row.get("ours") is None else f"{row['ours']:.1f}"
    if ours and row["ours_sem"] is not None:
        ours += f" ± {row['ours_sem']:.1f}"
    if ours:
        ours += f" ({row['seeds']})"
    theirs = "" if row.get("published") is None else f"{row['published']:.1f} ± {row['published_sem']:.1f}"
    return f"{ours} | {theirs}"
