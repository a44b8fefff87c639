"""Public calls with an argument of another type than their signature has: one line that says what it is."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from .calls import checked_call, shown_call
from .errors import UserError, short_repr, unknown

P = ParamSpec("P")
R = TypeVar("R")
#: the types that are checked, in words
WORDS: dict[Any, str] = {
    str: "text", Path: "a path", Mapping: "a dictionary", Sequence: "a list", type(None): "None",
    bool: "True or False", int: "a whole number", float: "a number",
}  # fmt: skip


def typed_call(function: Callable[P, R]) -> Callable[P, R]:
    """A function as of :func:`.calls.checked_call`, which also says where an argument is of another type.

    Tables, texts, choices among texts, True and False, paths, lists and dictionaries are checked. A number by itself
    is not: those who use it check its range too.

    Args:
        function: any, with annotations.

    Raises:
        UserError: on such a call.
    """
    checked, signature = checked_call(function), inspect.signature(function)

    @functools.cache
    def hints() -> dict[str, Any]:
        import pandas as pd

        return typing.get_type_hints(function, localns={"pd": pd})

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            arguments = signature.bind(*args, **kwargs).arguments
        except TypeError:
            return checked(*args, **kwargs)  # which says it
        for name, value in arguments.items():
            hint = hints().get(name, Any)
            if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD or _fits(value, hint):
                continue
            if isinstance(value, str) and (choices := [c for arm in _arms(hint) for c in _choices(arm)]):
                raise unknown(name, value, choices)
            words = " or ".join(dict.fromkeys(map(_in_words, _arms(hint))))
            call = shown_call(function)
            raise UserError(f"{name} is {words}, not {short_repr(value)}; it is called as {call}")
        return function(*args, **kwargs)

    return called


def _arms(hint: Any) -> tuple[Any, ...]:
    """What a union is of; of others themselves."""
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value may be of a type; so may all of types that are not checked."""
    arms = _arms(hint)
    if len(arms) > 1:
        return any(_is_number(value, arm) if arm in (int, float) else _fits(value, arm) for arm in arms)
    origin = typing.get_origin(hint) or hint
    if origin is typing.Literal:
        choices = typing.get_args(hint)
        return isinstance(value, str) and value in choices if _choices(hint) else type(value) in (str, int)
    if origin is Path:
        return isinstance(value, Path) or (isinstance(value, str) and bool(value))
    if origin is Mapping:
        return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
    if origin is Sequence:
        (item,) = typing.get_args(hint) or (Any,)
        return isinstance(value, Collection) and not isinstance(value, str | bytes | Mapping) and _all_fit(value, item)
    if origin is bool:
        return type(value).__name__ in ("bool", "bool_")  # of numpy too
    if origin in (str, type(None)) or _is_table(origin):
        return isinstance(value, origin)
    return True


def _is_number(value: Any, kind: type) -> bool:
    return isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool)


def _choices(hint: Any) -> tuple[str, ...]:
    """Returns the texts of a choice; none where the type is no choice."""
    choices = typing.get_args(hint) if typing.get_origin(hint) is typing.Literal else ()
    return choices if all(isinstance(choice, str) for choice in choices) else ()


def _all_fit(values: Collection[Any], item: Any) -> bool:
    return not _is_table(type(values)) and all(_fits(value, item) for value in values)


def _is_table(kind: Any) -> bool:
    return getattr(kind, "__name__", "") == "DataFrame"


def _in_words(hint: Any) -> str:
    origin = typing.get_origin(hint) or hint
    if origin is typing.Literal:
        return " | ".join(map(repr, typing.get_args(hint)))
    if origin is Sequence and typing.get_args(hint) == (str,):
        return "a list of texts"
    name = getattr(origin, "__name__", str(origin))
    return WORDS.get(origin) or ("a table (pandas.DataFrame)" if _is_table(origin) else f"a {name}")
