"""A method's settings: fields that say what they mean and in which range they lie."""

from __future__ import annotations

import dataclasses
import functools
import math
import typing
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from hierfl.errors import UserError, unknown

from ..checks import MAX_WHOLE_NUMBER

#: numbers of settings become single precision in most fits
SINGLE = torch.finfo(torch.float32)


class Configurable:
    """A class with settings, such as a method.

    Attributes:
        name: what it is called.
        Settings: a frozen dataclass, whose fields are made with :func:`setting`.
    """

    name: ClassVar[str] = ""

    @dataclass(frozen=True)
    class Settings:
        """No settings."""


def setting(
    default: Any,
    meaning: str,
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
    unless: Mapping[str, Collection[Any]] | None = None,
    scale_of: Collection[str] = (),
    newer: bool = False,
) -> Any:
    """A field of a method's settings.

    Args:
        default: its value where nothing is said.
        meaning: what it means.
        above, at_least, below, at_most: the range it must lie in.
        unless: values of other settings under which it changes nothing; a range for all from a number on.
        scale_of: priors of which it says how strongly they pull; where priors are compared it is chosen again for each.
        newer: checkpoints without it were begun with its default.
    """
    limits = {"above": above, "at_least": at_least, "below": below, "at_most": at_most}
    more = {"unless": unless or {}, "scale_of": scale_of, "newer": newer}
    return field(default=default, metadata={"about": meaning, **limits, **more})


def make_settings(method: type[Configurable], given: Mapping[str, Any]) -> Any:
    """The method's settings from values that may be strings (the command line) or already typed (Python, TOML).

    Raises:
        UserError: for unknown names, values of the wrong type or out of range, or that change nothing beside others.
    """
    values = _all_typed(method, given)
    for f in dataclasses.fields(method.Settings):
        silent = _silenced(f, values)
        if silent and values[f.name] != f.default:
            raise UserError(f"{f.name}={values[f.name]} changes nothing with {silent}")
    return method.Settings(**{name: values[name] for name in given})


def scale_setting(method: type[Configurable], prior: str) -> str | None:
    """The setting that says how strongly a prior pulls, if there is one."""
    names = (f.name for f in dataclasses.fields(method.Settings) if prior in f.metadata.get("scale_of", ()))
    return next(names, None)


def applicable(
    method: type[Configurable], given: Mapping[str, Any], rest: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Those of some settings that change something beside the others.

    Args:
        method: whose.
        given: the settings.
        rest: settings that are beside them, and before them where both name one.

    Raises:
        UserError: as :func:`make_settings`.
    """
    values = _all_typed(method, {**given, **(rest or {})})
    silent = {f.name for f in dataclasses.fields(method.Settings) if _silenced(f, values)}
    return {name: value for name, value in given.items() if name not in silent}


def _all_typed(method: type[Configurable], given: Mapping[str, Any]) -> dict[str, Any]:
    """All settings by name, defaults included."""
    fields = {f.name: f for f in dataclasses.fields(method.Settings)}
    types = _types(method.Settings)
    values = {name: f.default for name, f in fields.items()}
    for name, value in given.items():
        if name not in fields:
            raise unknown(f"setting of {method.name or method.__name__}", name, fields or ["none"])
        values[name] = _typed(name, value, types[name], fields[name].metadata)
    return values


@functools.cache
def _types(settings: type) -> Mapping[str, Any]:
    """The types of its fields: they are text, which is evaluated once."""
    return typing.get_type_hints(settings)


def _silenced(f: dataclasses.Field[Any], values: Mapping[str, Any]) -> str:
    """What makes a setting say nothing, as in "prior=flat"; empty if nothing does."""
    unless = f.metadata.get("unless", {})
    return next((f"{k}={values[k]}" for k, silent in unless.items() if values[k] in silent), "")


def _typed(name: str, value: Any, kind: Any, limits: Mapping[str, Any]) -> Any:
    if typing.get_origin(kind) is typing.Literal:
        choices = typing.get_args(kind)
        if value not in choices:
            raise unknown(name, value, map(str, choices))
        return value
    if kind is bool:
        words = {"true": True, "false": False}
        if str(value).lower() not in words:
            raise UserError(f"{name} must be true or false, not {value!r}")
        return words[str(value).lower()]
    if kind is str:
        return str(value)
    try:
        if isinstance(value, bool):
            raise TypeError
        number = float(value)
        if kind is int and number != int(number):
            raise ValueError
    except (TypeError, ValueError, OverflowError) as error:
        raise UserError(f"{name} must be a {'whole ' * (kind is int)}number, not {value!r}") from error
    if not math.isfinite(number):
        raise UserError(f"{name} must be finite, not {value!r}")
    if kind is int and abs(number) > MAX_WHOLE_NUMBER:
        raise UserError(f"{name} must be at most {MAX_WHOLE_NUMBER} in size, not {value}")
    if abs(number) > SINGLE.max:
        raise UserError(f"{name} must be at most {SINGLE.max:.2g} in size, not {value}")
    if limits.get("above") is not None and number <= limits["above"]:
        raise UserError(f"{name} must be above {limits['above']}, not {value}")
    if limits.get("at_least") is not None and number < limits["at_least"]:
        raise UserError(f"{name} must be at least {limits['at_least']}, not {value}")
    if limits.get("at_most") is not None and number > limits["at_most"]:
        most = limits["at_most"]
        raise UserError(f"{name} must be at most {f'{most:g}' if isinstance(most, float) else most}, not {value}")
    if limits.get("below") is not None and number >= limits["below"]:
        raise UserError(f"{name} must be below {limits['below']}, not {value}")
    return kind(number)
