"""Methods by name or by path, and the settings that ship with them."""

from __future__ import annotations

import inspect
import sys
import tomllib
import traceback
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.machinery import SourceFileLoader
from importlib.resources import files
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

from hierfl.errors import UserError
from hierfl.files import user_path
from hierfl.models import METHODS

from . import trust
from .fingerprints import fingerprint, foundation, own_part, same_version, short_digest

if TYPE_CHECKING:
    from hierfl.inference import Method


#: the package of the methods that ship
MODELS = "hierfl.models"


@dataclass(frozen=True)
class Loaded:
    """A method's class and where it comes from.

    Attributes:
        cls: the class.
        name: what runs and summaries call it.
        source: its file.
        reference: a registered name, or the absolute path of the file: what finds it again.
        digest: a fingerprint of the file as it was read, and of the files of ours that it builds on.
    """

    cls: type[Method]
    name: str
    source: Path
    reference: str
    digest: str


def load(reference: str, model: str | None = None) -> Loaded:
    """A method by its registered name, or by the path of a file that defines one: what a user has named.

    Args:
        reference: the name, or the path.
        model: of a model file with several models, the one that is meant.

    Raises:
        UserError: for an unknown name, or a file that is missing, fails to import or does not define exactly one.
    """
    if model is not None and not reference.endswith(".py"):
        raise UserError(f"--model {model} is a function of a model file, FILE.py, and {reference} is none")
    if reference in METHODS:
        entry = METHODS[reference]
        cls: type[Method] = getattr(import_module(entry.module), entry.cls)
        path = Path(inspect.getfile(cls))
        return Loaded(cls, reference, path, reference, fingerprint(cls, path.read_bytes()))
    if reference.endswith(".py"):
        path = user_path(reference)
        source = _read(path)
        trust.remember(source)
        return _from_file(path.resolve(), source, model)
    plain = reference.removesuffix("-ft")
    if plain in METHODS and hasattr(load(plain).cls.Settings, "ft_epochs"):
        raise UserError(f"unknown method {reference!r}: it is {plain} with --set ft_epochs=10, say")
    raise UserError(
        f"unknown method {reference!r}; known: {', '.join(METHODS)}; or give the path of a .py file that defines one"
    )


def load_of(folder: Path, run: Mapping[str, Any], *, trust_code: bool = False) -> Loaded:
    """The method of a run folder, whose file must be what it was when the run was begun.

    Python is executed only after its digest was checked, and only where this user has named or run the same file
    before, or trusts it.

    Args:
        folder: the run's, for messages.
        run: the table "run" of its configuration.
        trust_code: whether to run a file that this user has not run before.

    Raises:
        UserError: for a file that has changed, or is not known to be this user's; and as for :func:`load`.
    """
    reference = run["method"]
    if reference in METHODS:
        loaded = load(reference)
        if not same_version(loaded.digest, run["method_digest"]):
            _of_no_other(loaded, folder, run)
            _unchanged(loaded.source, loaded.digest, folder, run)
            _foundation_unchanged(loaded, folder, run)
        return loaded
    if not reference.endswith(".py"):
        return load(reference)  # an unknown one: says so
    path = user_path(reference)
    if not path.is_file():
        raise UserError(
            f"no file {path}, the method of {folder}; say where it is: hierfl run FILE.py --resume {folder}"
        )
    source = _read(path)
    _unchanged(path, short_digest(source), folder, run)
    if not trust_code and not trust.trusted(source):
        raise UserError(
            f"{folder} runs the Python file {path}, which you have neither named nor run before: read it, then say "
            "--trust-code"
        )
    trust.remember(source)
    loaded = _from_file(path.resolve(), source, run.get("model"))
    _foundation_unchanged(loaded, folder, run)
    return loaded


def known_class(run: Mapping[str, Any]) -> type[Method] | None:
    """The class of a run's method, where it can be had without running anything unknown; None for other files."""
    reference = run["method"]
    if reference in METHODS:
        return load(reference).cls
    path = Path(reference)
    if not reference.endswith(".py") or not path.is_file():
        return None
    source = _read(path)
    same = short_digest(source) == own_part(run["method_digest"])
    trusted = same and trust.trusted(source)
    return _from_file(path.resolve(), source, run.get("model")).cls if trusted else None


def _of_no_other(loaded: Loaded, folder: Path, run: Mapping[str, Any]) -> None:
    mine, digest = run["method"], own_part(run["method_digest"])
    if own_part(loaded.digest) == digest:
        return
    for name in METHODS:
        if own_part(load(name).digest) == digest:
            raise UserError(
                f"the configuration of {folder} was edited: its method is {mine}, and its method_digest that of "
                f"{name}; hierfl run {mine} begins a run of {mine}"
            )


def _unchanged(path: Path, digest: str, folder: Path, run: Mapping[str, Any]) -> None:
    if own_part(digest) != own_part(run["method_digest"]):
        raise UserError(f"{path} has changed since {folder} was begun; start a new run (or move that one away)")


def _foundation_unchanged(loaded: Loaded, folder: Path, run: Mapping[str, Any]) -> None:
    if not same_version(loaded.digest, run["method_digest"]):
        files = [path.name for path in foundation(loaded.cls)]
        names = ", ".join(files[:10]) or "none now"
        names += f" and {len(files) - 10} others" * (len(files) > 10)
        raise UserError(
            f"a file of hierfl that {loaded.source} builds on ({names}) has changed since {folder} was begun; start a "
            "new run (or move that one away)"
        )


def _read(path: Path) -> bytes:
    if not path.is_file():
        raise UserError(f"no file {path}")
    return path.read_bytes()


class _Source(SourceFileLoader):
    """Runs the bytes that were checked: neither a file that has changed since, nor what somebody has compiled."""

    def __init__(self, name: str, path: Path, source: bytes) -> None:
        super().__init__(name, str(path))
        self.source = source

    def get_code(self, fullname: str) -> CodeType:
        """The code compiled from the bytes."""
        return self.source_to_code(self.source, self.path)


@lru_cache(maxsize=1)  # a command asks for its method more than once
def _executed(path: Path, source: bytes) -> ModuleType:
    name = f"hierfl_method_{path.stem}"
    spec = spec_from_file_location(name, path, loader=_Source(name, path, source))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise UserError(f"{path} cannot be loaded: {blame(path, error)}") from error
    return module


def forget() -> None:
    """Runs files again where they are asked for: another command begins."""
    _executed.cache_clear()


def _from_file(path: Path, source: bytes, model: str | None = None) -> Loaded:
    from hierfl.inference import Method

    from .model_files import model_method

    module = _executed(path, source)
    classes = [
        cls
        for cls in vars(module).values()
        if inspect.isclass(cls) and issubclass(cls, Method) and cls.__module__ == module.__name__
    ]
    leaves = [cls for cls in classes if not any(cls in other.__mro__[1:] for other in classes)]
    if not leaves and (made := model_method(module, path, model)) is not None:
        return Loaded(made, made.name, path, str(path), fingerprint(made, source))
    if len(leaves) != 1:
        names = ", ".join(cls.__name__ for cls in leaves) or "none, nor a model, a function of a batch"
        raise UserError(f"{path} must define exactly one Method; it defines {names}")
    if model is not None:
        raise UserError(
            f"--model {model} is a function of a model file, and {path} defines the method {leaves[0].__name__}"
        )
    cls = leaves[0]
    return Loaded(cls, cls.name or path.stem, path, str(path), fingerprint(cls, source))


def blame(path: Path, error: BaseException) -> str:
    """What went wrong in somebody's own file, and in which of its lines."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
    line = error.lineno if isinstance(error, SyntaxError) else frames[-1].lineno if frames else None
    location = f" (line {line}{f', in {frames[-1].name}' if frames else ''})" if line else ""
    message = error.msg if isinstance(error, SyntaxError) else str(error)  # str adds the line to a SyntaxError's
    return f"{type(error).__name__}: {message.splitlines()[0] if message else ''}{location}"


def all_shipped(name: str) -> dict[str, dict[str, Any]]:
    """The settings that ship with a method, by data set."""
    resource = files(MODELS) / "settings" / f"{name}.toml"
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
    resource = files(MODELS) / "settings" / f"{name}.toml"
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
        meaning = str(field.metadata.get("about", ""))
        if typing.get_origin(hints[field.name]) is typing.Literal:
            meaning = f"{' | '.join(typing.get_args(hints[field.name]))}: {meaning}"
        if unless := field.metadata.get("unless"):
            where = ", ".join(f"{name}={_among(values)}" for name, values in unless.items())
            meaning += f" (not with {where})"
        rows.append((field.name, str(field.default), meaning))
    return rows


def _among(values: Collection[Any]) -> str:
    return f"{values.start} or more" if isinstance(values, range) else "|".join(map(str, values))
