"""What people's programs and habits do to a clean table: the same numbers, written otherwise."""

from __future__ import annotations

import csv
import gzip
import io
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from .clean_tables import CleanTable, Columns


@dataclass
class File:
    """A table on its way to a file.

    Attributes:
        columns: its cells.
        sep, end, encoding, quoting: of the csv file.
        before, blank: a line before the header; whether lines of nothing come between.
        wrap: what becomes of the bytes; it gets the csv file's.
        ending: of the file's name.
        means: what the user has to say where something is asked, a part of it.
    """

    columns: Columns
    sep: str = ","
    end: str = "\n"
    encoding: str = "utf-8"
    quoting: int = csv.QUOTE_MINIMAL
    before: str = ""
    blank: str = ""
    wrap: Callable[[bytes], bytes] = lambda data: data
    ending: str = ".csv"
    means: tuple[str, ...] = field(default=())

    def content(self) -> bytes:
        """The bytes of the file."""
        text = io.StringIO()
        writer = csv.writer(text, delimiter=self.sep, lineterminator="\n", quoting=self.quoting)  # type: ignore[arg-type]
        writer.writerow(self.columns)
        writer.writerows(zip(*self.columns.values(), strict=True))
        lines = text.getvalue().splitlines()
        if self.blank:
            for k in range(len(lines) - 1, 1, -9):
                lines.insert(k, self.blank)
            lines += [self.blank] * 2
        written = self.before + self.end.join([*lines, ""])
        return self.wrap(written.encode(self.encoding))


Rng = np.random.Generator
#: what is done to a file, given its clean table and a generator; False where the table has nothing that it could be
#: done to
Mutation = Callable[[File, CleanTable, Rng], bool | None]


def _pick(rng: Rng, names: Sequence[str]) -> str:
    return names[int(rng.integers(len(names)))]


def _mark(cells: Sequence[str], write: Callable[[str], str]) -> list[str]:
    return [write(cell) if cell else cell for cell in cells]


def _as(**changes: Any) -> Mutation:
    """Another form of the file, whatever is in it."""

    def change(file: File, clean: CleanTable, rng: Rng) -> None:
        for name, value in changes.items():
            setattr(file, name, value)

    return change


def _latin(encoding: str) -> Mutation:
    def change(file: File, clean: CleanTable, rng: Rng) -> bool:
        file.encoding, file.means = encoding, (f"--encoding {encoding}",)
        return any(ord(letter) > 127 for cell in clean.columns[clean.client] for letter in cell)

    return change


def _european(file: File, clean: CleanTable, rng: Rng) -> None:
    """Semicolons and decimal commas, as Excel writes them in half of Europe."""
    file.sep, file.means = ";", ("--decimal ,",)
    for name in clean.numbers:
        file.columns[name] = _mark(file.columns[name], lambda cell: cell.replace(".", ","))


def _thousands(mark: str, name: str) -> Mutation:
    def change(file: File, clean: CleanTable, rng: Rng) -> bool:
        wide = [column for column in clean.numbers if any(len(c.partition(".")[0]) > 3 for c in clean.columns[column])]
        for column in wide:
            file.columns[column] = _mark(
                file.columns[column], lambda c: f"{int(c):,}".replace(",", mark) if c.isdigit() else c
            )
        file.means = (f"--thousands {name}",)
        return bool(wide)

    return change


def _unit(before: str, after: str, share: float = 1.0) -> Mutation:
    """A currency or a unit at a column's numbers, at all or at some."""

    def change(file: File, clean: CleanTable, rng: Rng) -> None:
        column = _pick(rng, clean.numbers)
        file.columns[column] = _mark(
            file.columns[column], lambda cell: f"{before}{cell}{after}" if rng.random() < share else cell
        )
        file.means = (f"--type {column}=number",)

    return change


def _missing(word: str, asked: bool) -> Mutation:
    """Another word for what is missing."""

    def change(file: File, clean: CleanTable, rng: Rng) -> bool:
        for name in clean.numbers:
            file.columns[name] = [cell or word for cell in file.columns[name]]
        file.means = (f"--na {word}", f"--na '{word}'") if asked else ()
        return any("" in clean.columns[name] for name in clean.numbers)

    return change


def _spelled(write: Callable[[str], str]) -> Mutation:
    """Every third row of a client or a level has its name in another spelling."""

    def change(file: File, clean: CleanTable, rng: Rng) -> bool:
        column = _pick(rng, [clean.client, *clean.levels])
        cells, seen = file.columns[column], Counter[str]()
        file.columns[column] = []
        for cell in cells:
            seen[cell] += 1
            file.columns[column].append(cell if seen[cell] % 3 else write(cell))
        file.means = ("--spellings join",)
        return file.columns[column] != cells

    return change


def _numbers(write: Callable[[str], str]) -> Mutation:
    """Another way to write a column's numbers."""

    def change(file: File, clean: CleanTable, rng: Rng) -> None:
        column = _pick(rng, clean.numbers)
        file.columns[column] = _mark(file.columns[column], write)

    return change


def _rows(file: File, clean: CleanTable, rng: Rng) -> None:
    order = rng.permutation(clean.rows)
    file.columns = {name: [cells[k] for k in order] for name, cells in file.columns.items()}


def _order(file: File, clean: CleanTable, rng: Rng) -> None:
    names = list(rng.permutation(list(file.columns)))
    file.columns = {name: file.columns[name] for name in names}


def _more(kind: str) -> Mutation:
    """A column that nobody uses."""
    made: dict[str, Callable[[int], str]] = {
        "comment": lambda k: f"seen, and noted: {k}", "id": lambda k: f"id-{k:05d}", "amount": lambda k: f"{k + 1},500",
        "mixed": lambda k: "?" if k % 3 else str(k), "empty": lambda k: "", "day": lambda k: f"{k % 28 + 1}.01.2020",
    }  # fmt: skip

    def change(file: File, clean: CleanTable, rng: Rng) -> None:
        file.columns = {f"extra {kind}": [made[kind](k) for k in range(clean.rows)], **file.columns}

    return change


def _dates(write: Callable[[str, str, str], str], kind: str) -> Mutation:
    def change(file: File, clean: CleanTable, rng: Rng) -> bool:
        if "visit" not in clean.declared:
            return False
        file.columns["visit"] = [write(*cell.split("-")) for cell in file.columns["visit"]]
        file.means = (f"--type visit={kind}",) if kind != "date" else ()
        return True

    return change


def _xlsx(file: File, clean: CleanTable, rng: Rng) -> None:
    from openpyxl import Workbook

    book = Workbook()
    sheet = book.active
    sheet.append(list(file.columns))
    for row in zip(*file.columns.values(), strict=True):
        sheet.append([_cell(cell) for cell in row])
    kept = io.BytesIO()
    book.save(kept)
    file.wrap, file.ending = (lambda _: kept.getvalue()), ".xlsx"


def _cell(cell: str) -> Any:
    try:
        return float(cell) if cell else None
    except ValueError:
        return cell


#: words that are taken for missing values without a question, and those that are asked for
PLAIN = ("NA", "NaN", "nan", "N/A", "n/a", "#N/A", "NULL", "null", "None", "<NA>", " ", "NA ")
ASKED = (".", "-", "?", "missing", "-999", "9999", "n.a.", "unknown", "--")
#: what may be done, by kind
MUTATIONS: dict[str, Sequence[Mutation]] = {
    "separators": [
        _as(sep=";"), _as(sep="\t"), _as(sep="|"), _as(sep="\t", ending=".tsv"), _as(before="sep=,\n"),
        _as(sep=";", before="sep=;\n"), _european, _as(sep=";", quoting=csv.QUOTE_ALL),
    ],
    "encodings": [
        _as(encoding="utf-8-sig"), _as(encoding="utf-16"), _as(encoding="utf-16-le"), _as(encoding="utf-16-be"),
        _latin("latin-1"), _latin("cp1252"), _as(wrap=gzip.compress, ending=".csv.gz"), _as(wrap=gzip.compress),
    ],
    "lines": [_as(end="\r\n"), _as(end="\r"), _as(blank=" "), _as(quoting=csv.QUOTE_ALL), _xlsx],
    "blanks": [_numbers(write) for write in (" {}".format, "{}  ".format, "\u00a0{}".format, "{}\t".format)],
    "names": [
        _spelled(" {}".format), _spelled("{} ".format), _spelled(str.upper), _spelled(str.title),
        _spelled("\u00a0{}".format), _spelled(lambda cell: cell.replace(" ", "  ")),
        _spelled(lambda cell: unicodedata.normalize("NFD", cell)),
    ],
    "missing": [*(_missing(word, False) for word in PLAIN), *(_missing(word, True) for word in ASKED)],
    "thousands": [
        _thousands(",", ","), _thousands(" ", "' '"), _thousands("\u00a0", "' '"), _thousands("'", "''\"'\"''"),
    ],
    "units": [
        _unit("", " kg"), _unit("$", ""), _unit("", " €"), _unit("", "%"), _unit("", " mg", 0.2), _unit("CHF ", ""),
    ],
    "order": [_rows, _order, *map(_more, ("comment", "id", "amount", "mixed", "empty", "day"))],
    "dtypes": [
        _numbers(lambda cell: f"{float(cell):.4f}"), _numbers(lambda cell: f"{float(cell):.12e}"),
        _numbers(lambda cell: cell if cell[0] == "-" else f"+{cell}"),
        _numbers(lambda cell: f"{cell}." if cell.lstrip("-").isdigit() else f"{cell}000"),
        _numbers(lambda cell: repr(float(cell))),
    ],
    "dates": [
        _dates(lambda y, m, d: f"{d}.{m}.{y}", "date-dmy"), _dates(lambda y, m, d: f"{m}/{d}/{y}", "date-mdy"),
        _dates(lambda y, m, d: f"{y}/{m}/{d}", "date"), _dates(lambda y, m, d: f"{y}-{m}-{d} 00:00:00", "date"),
        _dates(lambda y, m, d: f"{d}-{m}-{y[2:]}", "date-dmy"),
    ],
}  # fmt: skip


def messy(clean: CleanTable, rng: Rng) -> tuple[str, File]:
    """A clean table with one thing done to it, and of what kind that is; often with rows in another order, too."""
    while True:
        kind = _pick(rng, list(MUTATIONS))
        file = File({name: list(cells) for name, cells in clean.columns.items()})
        if rng.random() < 0.3:
            _rows(file, replace(clean), rng)
        change = MUTATIONS[kind][int(rng.integers(len(MUTATIONS[kind])))]
        if change(file, clean, rng) is not False:
            return kind, file
