"""`--json`: what a command prints as a table, for a program to read."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print json in place of tables, and nothing else.")]


def print_json(value: Any) -> None:
    """Prints a value: frames are lists of rows, what is no number is null."""
    typer.echo(json.dumps(plain(value), indent=1))


def plain(value: Any) -> Any:
    """A value as json has it."""
    if hasattr(value, "to_dict"):  # a pandas DataFrame
        return plain(value.to_dict("records"))
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if hasattr(value, "item"):  # a number of NumPy
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, str | bool | int | float) else str(value)


def comparison(compared: Any, folder: Path) -> dict[str, Any]:
    """A comparison's tables, and where all of it is."""
    tables = {"table": compared.table, "sizes": compared.sizes, "loo": compared.loo}
    return {"folder": folder, **tables}
