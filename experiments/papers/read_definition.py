"""Tables from their toml files: those of the papers, and a user's own."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from hierfl.errors import UserError, unknown

from .definition import Condition, Rule, Table

#: of a table's file: what an entry must be
KINDS: dict[str, Any] = {
    "title": str, "note": str, "published": dict, "data": list, "clients": list, "methods": list, "headline": list,
    "seeds": int, "first_seed": int, "run": dict, "settings": dict, "condition": list, "where": list, "variant": dict,
    "metrics": dict, "grid": dict, "by": str, "claims": list, "figure": dict, "runner": str, "arguments": dict,
}  # fmt: skip
CONDITION_KINDS = {"name": str, "data": list, "clients": list, "methods": list, "run": dict, "settings": dict}
RULE_KINDS = {
    "data": (str, list), "clients": (int, list), "condition": (str, list), "method": (str, list), "run": dict,
    "settings": dict, "unreachable": str, "explained": str,
}  # fmt: skip
#: experiments that are no grid of runs
RUNNERS = ("synthetic", "unseen", "alone", "cost", "sizes", "search")


def names() -> list[str]:
    """The names of the tables and figures that ship."""
    lying = files("hierfl.experiments.papers.definitions").iterdir()
    return sorted(path.name.removesuffix(".toml") for path in lying if path.name.endswith(".toml"))


@cache
def shipped(name: str) -> Table:
    """A table of a paper.

    Raises:
        UserError: for a name that there is not.
    """
    if name not in names():
        raise unknown("table", name, [*names(), "or your own, FILE.toml"])
    text = (files("hierfl.experiments.papers.definitions") / f"{name}.toml").read_text(encoding="utf-8")
    return from_mapping(tomllib.loads(text), name, f"{name}.toml")


def read(path: Path) -> Table:
    """A user's table; data and methods that are files lie beside it.

    Raises:
        UserError: for a file that is none, or an entry that cannot be.
    """
    try:
        entries = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is no toml: {error}") from error
    return from_mapping(entries, path.stem, str(path), path.parent)


def from_mapping(entries: Mapping[str, Any], name: str, where: str, beside: Path | None = None) -> Table:
    """A table from its entries.

    Args:
        entries: as toml gives them.
        name: of the table.
        where: it was read from, for messages.
        beside: folder in which data and methods that are files lie.

    Raises:
        UserError: for an entry that is unknown, missing or of another type.
    """
    check(entries, KINDS, where)
    if "title" not in entries:
        raise UserError(f"{where}: title is missing")
    runner = entries.get("runner", "")
    if runner and runner not in RUNNERS:
        raise unknown("runner", runner, RUNNERS)

    def located(values: Sequence[str]) -> tuple[str, ...]:
        return tuple(_beside(value, beside) for value in values)

    conditions = entries.get("condition") or [{}]
    for entry in conditions:
        check(entry, CONDITION_KINDS, f"{where}: condition")
    methods = located(entries.get("methods", ()))
    made = tuple(
        Condition(
            entry.get("name", ""),
            located(entry.get("data", entries.get("data", ()))),
            tuple(entry.get("clients", entries.get("clients", ()))),
            located(entry.get("methods", ())) or methods,
            entry.get("run", {}),
            entry.get("settings", {}),
        )
        for entry in conditions
    )
    for condition in made:
        if not runner and not (condition.data and condition.methods):
            raise UserError(f"{where}: data and methods are needed, a list of names each")
        if any(isinstance(j, bool) or not isinstance(j, int) or j < 1 for j in condition.clients):
            raise UserError(f"{where}: clients are whole numbers from 1")
    seeds = entries.get("seeds", 1)
    if seeds < 1:
        raise UserError(f"{where}: seeds must be at least 1")
    if (first := entries.get("first_seed", 0)) < 0 or (runner and first):
        raise UserError(f"{where}: first_seed is a whole number from 0, of a table of runs")
    published = entries.get("published", {})
    check(published, {"paper": str, "table": str}, f"{where}: published")
    metrics = entries.get("metrics", {"PM": "pm_accuracy", "GM": "gm_accuracy"})
    check(metrics, {"PM": str, "GM": str}, f"{where}: metrics")
    if entries.get("by", "domain") != "domain":
        raise UserError(f'{where}: by is "domain", or left out')
    every = tuple(dict.fromkeys(method for condition in made for method in condition.methods))
    return Table(
        name, entries["title"], made, every, seeds, entries.get("note", ""), published.get("paper", ""),
        published.get("table", ""), tuple(entries.get("headline", ())), entries.get("run", {}),
        entries.get("settings", {}),
        tuple(_rule(entry, where, beside) for entry in entries.get("where", ())),
        {key: _variant(value, f"{where}: variant.{key}", beside) for key, value in entries.get("variant", {}).items()},
        metrics, entries.get("by", ""),
        tuple(both for pair in entries.get("claims", ()) for both in _claims(pair, every, where, beside)),
        entries.get("figure", {}), runner, entries.get("arguments", {}), first,
        {_beside(key, beside): _grid(value, f"{where}: grid.{key}") for key, value in entries.get("grid", {}).items()},
    )  # fmt: skip


def check(entries: Any, kinds: Mapping[str, Any], where: str) -> None:
    """Checks entries of a table's file.

    Raises:
        UserError: for one that is unknown, or of another type.
    """
    if not isinstance(entries, Mapping):
        raise UserError(f"{where}: it must be a table, not {entries!r}")
    for key, value in entries.items():
        if key not in kinds:
            raise UserError(f"{where}: {unknown('entry', key, kinds)}")
        if not isinstance(value, kinds[key]) or (isinstance(value, bool) and kinds[key] is int):
            raise UserError(f"{where}: {key} cannot be {value!r}")


def _beside(value: Any, folder: Path | None) -> str:
    """A name as it is; a file beside the table's, by its whole path."""
    text = str(value)
    is_file = text.endswith((".npz", ".csv", ".py"))
    return str((folder / text).absolute()) if folder is not None and is_file else text


def _rule(entry: Any, where: str, beside: Path | None) -> Rule:
    check(entry, RULE_KINDS, f"{where}: where")
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in entry.items()}
    for key in ("data", "clients", "condition", "method"):
        if key in values and not isinstance(values[key], tuple):
            values[key] = (values[key],)
    for key in {"data", "method"} & values.keys():
        values[key] = tuple(_beside(value, beside) for value in values[key])
    return Rule(**values)


def _variant(entry: Any, where: str, beside: Path | None) -> tuple[str, Mapping[str, Any]]:
    check(entry, {"method": str, "settings": dict}, where)
    if "method" not in entry:
        raise UserError(f"{where}: method is missing")
    return _beside(entry["method"], beside), entry.get("settings", {})


def _grid(entry: Any, where: str) -> Mapping[str, list[str]]:
    """Values by setting, as the command line has them."""
    if not isinstance(entry, dict) or not all(isinstance(value, list) and value for value in entry.values()):
        raise UserError(f"{where}: a list of values for each setting is needed")
    return {key: [str(value) for value in values] for key, values in entry.items()}


def _claims(pair: Any, methods: Sequence[str], where: str, beside: Path | None) -> Iterator[tuple[str, str]]:
    """One claim; with "*" in the second position one of every other method."""
    if not isinstance(pair, list) or len(pair) != 2:
        raise UserError(f"{where}: a claim is a list of two methods, not {pair!r}")
    first, second = (_beside(value, beside) for value in pair)
    for name in (first, *(() if second == "*" else (second,))):
        if name not in methods:
            raise UserError(f"{where}: claims: {unknown('method', name, methods)}")
    for name in (other for other in methods if other != first) if second == "*" else (second,):
        yield first, name
