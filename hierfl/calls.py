"""Public calls that are made wrongly: one line that says how they are made."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from .errors import UserError

P = ParamSpec("P")
R = TypeVar("R")


def checked_call(function: Callable[P, R]) -> Callable[P, R]:
    """A function that says how it is called where an argument is missing or unknown.

    Args:
        function: any; its own signature and docstring stay.

    Raises:
        UserError: on such a call, instead of Python's TypeError.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            name, call = function.__qualname__, function.__name__
            if call == "__init__":  # of an object whose class is the one that is called
                name = call = type(args[0]).__name__
            elif args and isinstance(args[0], type):  # a class method, which a base class may define
                name = f"{args[0].__name__}.{call}"
            raise UserError(f"{name}: {error}; it is called as {shown_call(function, call)}") from None
        return function(*args, **kwargs)

    return called


def shown_call(function: Callable[..., Any], name: str = "") -> str:
    """How a function is called, in one line.

    Args:
        function: which.
        name: by which it is called; its own, if empty.
    """
    parameters = inspect.signature(function).parameters.values()
    return f"{name or function.__name__}({', '.join(_shown(p) for p in parameters if p.name not in ('self', 'cls'))})"


def _shown(parameter: inspect.Parameter) -> str:
    """An argument as it is written in a call: by its name alone where it can stand without it."""
    if parameter.kind is inspect.Parameter.VAR_KEYWORD:
        return f"**{parameter.name}"
    by_name = parameter.kind is inspect.Parameter.KEYWORD_ONLY or parameter.default is not inspect.Parameter.empty
    return f"{parameter.name}=..." if by_name else parameter.name
