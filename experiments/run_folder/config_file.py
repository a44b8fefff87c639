"""config.toml: everything needed to repeat a run."""

from __future__ import annotations

from pathlib import Path

import tomli_w

from hierfl.errors import UserError
from hierfl.schema import AnyOf, Kind, Number, Schema, check, read_toml

from ..config import Configuration, RunConfig, has_default, kinds, options
from .files import write_text
from .other_folders import what_file, what_it_is

CONFIG: Schema = {"run": dict, "settings": {"*": AnyOf(Number(), str, bool)}}


def run_schema(table: bool) -> Schema:
    """What the table "run" must hold; ranges are those of the options.

    Args:
        table: whether the run is on a table.
    """
    schema: dict[str, Kind] = {}
    for name, declared in options().items():
        kind = kinds()[name]
        may_lack = declared.newer or (has_default(name, None) and not (table and declared.data == "tables"))
        schema[f"{name}?" if may_lack else name] = Number(kind, 0) if kind in (int, float) else kind
    return schema


def write_config(folder: Path, config: Configuration) -> None:
    """Everything needed to repeat the run."""
    write_text(folder / "config.toml", tomli_w.dumps(config.as_tables()))


def read_config(folder: Path) -> Configuration:
    """The configuration of a run.

    Raises:
        UserError: if the folder is not a run's, its configuration is damaged, or another version has written it.
    """
    path = folder / "config.toml"
    if not path.is_file():
        if other := what_it_is(folder):
            raise UserError(f"{folder} is not the folder of a run: it {other}")
        raise UserError(f"{folder} is not the folder of a run: it has no config.toml")
    return read_config_file(path)


def read_config_file(path: Path) -> Configuration:
    """The configuration in a file.

    Raises:
        UserError: if it is damaged, or another version has written it.
    """
    if other := what_file(read_toml(path, {})):
        raise UserError(f"{path} is not the config.toml of a run: it {other}")
    entries = read_toml(path, CONFIG)
    if strange := [name for name in entries if name not in CONFIG]:
        raise UserError(f"{path} has an entry that is none of a run's: {strange[0]} (a run's tables: run, settings)")
    if unknown := [name for name in entries["run"] if name not in options()]:
        words = ", ".join(f"run.{name}" for name in unknown)
        raise UserError(
            f"{path} has entries that this version of hierfl does not have: {words}. Is one misspelt? Of an older "
            "version's run: run it again"
        )
    check(entries["run"], run_schema(entries["run"].get("network") == "design"), path, "run")
    return Configuration(RunConfig(**entries["run"]), entries["settings"])
