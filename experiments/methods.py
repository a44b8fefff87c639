"""Methods by name or by path, and the settings that ship with them."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
import tomllib
import traceback
from collections.abc import Collection
from dataclasses import dataclass
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hierfl.errors import UserError
from hierfl.models import METHODS

if TYPE_CHECKING:
    from hierfl.inference import Method


@dataclass(frozen=True)
class Loaded:
    """A method's class and where it comes from.

    Attributes:
        cls: the class.
        name: what runs and summaries call it.
        source: its file.
        reference: a registered name, or the absolute path of the file: what finds it again.
    """

    cls: type[Method]
    name: str
    source: Path
    reference: str

    @property
    def digest(self) -> str:
        """A fingerprint of the method's file."""
        return hashlib.sha256(self.source.read_bytes()).hexdigest()[:16]


def load(reference: str) -> Loaded:
    """A method by its registered name, or by the path of a file that defines one.

    Raises:
        UserError: for an unknown name, or a file that is missing, fails to import or does not define exactly one.
    """
    if reference in METHODS:
        entry = METHODS[reference]
        module = import_module(f"hierfl.models.{entry.module}")
        return Loaded(getattr(module, entry.cls), reference, Path(str(module.__file__)), reference)
    if reference.endswith(".py"):
        return _from_file(Path(reference))
    raise UserError(
        f"unknown method {reference!r}; known: {', '.join(METHODS)}; or give the path of a .py file that defines one"
    )


def _from_file(path: Path) -> Loaded:
    from hierfl.inference import Method

    if not path.is_file():
        raise UserError(f"no file {path}")
    path = path.resolve()
    name = f"hierfl_method_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise UserError(f"{path} cannot be loaded: {blame(path, error)}") from error
    found = [
        cls
        for cls in vars(module).values()
        if inspect.isclass(cls) and issubclass(cls, Method) and cls.__module__ == name
    ]
    leaves = [cls for cls in found if not any(cls in other.__mro__[1:] for other in found)]
    if len(leaves) != 1:
        names = ", ".join(cls.__name__ for cls in leaves) or "none"
        raise UserError(f"{path} must define exactly one Method; it defines {names}")
    return Loaded(leaves[0], leaves[0].name or path.stem, path, str(path))


def blame(path: Path, error: BaseException) -> str:
    """What went wrong in somebody's own file, and in which of its lines."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
    line = error.lineno if isinstance(error, SyntaxError) else frames[-1].lineno if frames else None
    place = f" (line {line}{f', in {frames[-1].name}' if frames else ''})" if line else ""
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}{place}"


def all_shipped(name: str) -> dict[str, dict[str, Any]]:
    """The settings that ship with a method, by data set."""
    resource = files("hierfl.models") / "settings" / f"{name}.toml"
    if not resource.is_file():
        return {}
    return {
        data: {k: v for k, v in table.items() if k != "chosen"}
        for data, table in tomllib.loads(resource.read_text()).items()
    }


def shipped_settings(name: str, data: str) -> tuple[dict[str, Any], str]:
    """The settings chosen for a method on a data set, and the record of how; empty where none were.

    A file ``hierfl/models/settings/NAME.toml`` has a table for each data set, with a string ``chosen``.
    """
    resource = files("hierfl.models") / "settings" / f"{name}.toml"
    if not resource.is_file():
        return {}, ""
    table = dict(tomllib.loads(resource.read_text()).get(data, {}))
    chosen = str(table.pop("chosen", ""))
    return table, chosen


def describe(cls: type[Method]) -> list[tuple[str, str, str]]:
    """A method's settings: name, default, meaning."""
    import dataclasses
    import typing

    hints = typing.get_type_hints(cls.Settings)
    rows = []
    for field in dataclasses.fields(cls.Settings):
        about = str(field.metadata.get("about", ""))
        if typing.get_origin(hints[field.name]) is typing.Literal:
            about = f"{' | '.join(typing.get_args(hints[field.name]))}: {about}"
        if unless := field.metadata.get("unless"):
            where = ", ".join(f"{name}={_among(values)}" for name, values in unless.items())
            about += f" (not with {where})"
        rows.append((field.name, str(field.default), about))
    return rows


def _among(values: Collection[Any]) -> str:
    return f"{values.start} or more" if isinstance(values, range) else "|".join(map(str, values))
