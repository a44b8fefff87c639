"""Tables that programs and habits have changed give the clean table's numbers, or one line whose remedy does."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.clean_tables import CLEAN
from support.commands import Call
from support.messy_tables import File, messy
from typer.main import get_command

from hierfl.errors import UserError
from hierfl.experiments.build import _from_table
from hierfl.experiments.cli import app
from hierfl.experiments.cli.reading import COLUMN_OPTIONS, FILE_OPTIONS, reading_options
from hierfl.experiments.config import options as run_options
from hierfl.experiments.configure import configure

TABLES = 500
#: an option with its value, as messages write them
OPTION = r"--[a-z]+ (?:'[^']*'(?:\"'\"'[^']*')?|\S+)"


def parsed(path: Path, options: list[str]) -> tuple[str, dict[str, Any]]:
    """The data, and the entries of a configuration, that ``hierfl run`` makes of these options: nothing is run."""
    command, known = get_command(app).commands["run"], {*run_options(), *FILE_OPTIONS, *COLUMN_OPTIONS} - {"method"}
    result = command.make_context("run", ["mixed-effects", "--data", str(path), *options]).params
    declared = {name: value for name, value in result.items() if value is not None and name in known}
    reading = {name: declared.pop(name) for name in (*FILE_OPTIONS, *COLUMN_OPTIONS) if name in declared}
    return declared.pop("data"), {**declared, **reading_options(reading)}


def numbers(path: Path, options: list[str]) -> np.ndarray:
    """What a fit sees of a table: names of its columns, clients and rows, rows in order of their numbers."""
    data, given = parsed(path, options)
    federation, design = _from_table(configure("mixed-effects", data, given, {"draws": "0"}).run)
    rows = [
        (name, *federation.x[index].tolist(), float(federation.y[index]))
        for name, indices in zip(federation.ids, federation.train, strict=True)
        for index in indices.tolist()
    ]
    names = [*design.fixed, *design.random]
    return np.array(
        [*names, *[text for row in sorted(rows) for text in (row[0], *(f"{v + 0.0:.9g}" for v in row[1:]))]]
    )


def remedy(message: str, file: File) -> list[str]:
    """The options that a message names and the user would choose; none where it names none of these."""
    ways = re.findall(f"{OPTION}(?: {OPTION})*", message)
    chosen = [way for way in ways if any(word in way for word in file.means)]
    return shlex.split(chosen[0]) if chosen else []


def instead(options: list[str], more: list[str]) -> list[str]:
    """Options with others: what is said of a column takes the place of what was."""
    again = {(flag, value.partition("=")[0]) for flag, value in zip(more[::2], more[1::2], strict=True)}
    pairs = zip(options[::2], options[1::2], strict=True)
    kept = [pair for pair in pairs if pair[0] != "--type" or (pair[0], pair[1].partition("=")[0]) not in again]
    return [*(word for pair in kept for word in pair), *more]


@pytest.mark.slow
@pytest.mark.cpu(240, "reads 500 tables, some of them twice")
def test_a_messy_table_gives_the_numbers_of_the_clean_one_or_says_how(tmp_path: Path) -> None:
    """60 % and more need no remedy, and none gives other numbers."""
    rng, counts, wrong = np.random.default_rng(47), Counter[str](), list[str]()
    clean = {name: make() for name, make in CLEAN.items()}
    wanted = {}
    for name, table in clean.items():
        path = tmp_path / f"{name}.csv"
        path.write_bytes(File(table.columns).content())
        wanted[name] = numbers(path, list(table.options))
    for k in range(TABLES):
        name = list(clean)[k % len(clean)]
        kind, file = messy(clean[name], rng)
        path = tmp_path / f"messy-{k}{file.ending}"
        path.write_bytes(file.content())
        options, message = list(clean[name].options), ""
        try:
            result = numbers(path, options)
        except UserError as error:
            message = str(error)
            more = remedy(message, file)
            try:
                result = numbers(path, instead(options, more)) if more and "\n" not in message else np.array([])
            except UserError as again:
                message, result = f"{message} ... {again}", np.array([])
        same = result.shape == wanted[name].shape and bool((result == wanted[name]).all())
        counts[f"{kind}: {'remedy' if message else 'none needed'}"] += same
        counts["none needed"] += same and not message
        if not same:
            wrong.append(f"{k} {name} {kind} {file.means}: {message or 'other numbers, and nothing is said'}")
    print(*sorted(counts.items()), sep="\n")
    assert wrong == []
    assert counts["none needed"] >= 0.6 * TABLES


@pytest.mark.parametrize("name", ["firms", "children"])
def test_a_remedy_of_a_message_is_an_option_of_the_command(name: str, hierfl: Call) -> None:
    """And the fit after it is that of the clean table, to the last digit."""
    clean = CLEAN[name]()
    how = ("run", "mixed-effects", "--set", "draws=0", "-q", *clean.options)
    Path("clean.csv").write_bytes(File(clean.columns).content())
    assert hierfl(*how, "--data", "clean.csv", "--out", "clean")[0] == 0
    column = clean.numbers[0]
    columns = {**clean.columns, column: [f"{cell} kg" for cell in clean.columns[column]]}
    Path("messy.csv").write_bytes(File(columns).content())
    code, _, err = hierfl(*how, "--data", "messy.csv", "--out", "messy")
    assert (code, err.count("\n")) == (2, 1)
    more = remedy(err, File(columns, means=(f"{column}=number",)))
    assert hierfl(*how, "--data", "messy.csv", "--out", "messy", *more)[0] == 0
    assert Path("messy/effects.csv").read_text() == Path("clean/effects.csv").read_text()
