"""Running a user's model: in double precision, and with errors that say which line of the model they are of."""

from __future__ import annotations

import inspect
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyro
import torch

from hierfl.errors import UserError

#: what an error's text says, and what it means for a model; the first that fits
MEANINGS = (
    (
        r"\.item\(\)|data-dependent control flow|Boolean value of Tensor|item_cpu|numpy\(\)|tolist\(\)",
        "takes a Python number or a branch from a tensor: use torch.where, or a tensor's own operations",
    ),
    (
        r"data pointer of Tensor that doesn't have storage|access data pointer",
        "takes a function of NumPy of a tensor: use torch's, such as torch.exp",
    ),
    (r"random operation|randomness", "draws a random number outside of pyro.sample"),
    (r"Multiple sample sites named '([^']*)'", "site {0!r} is there twice: name each site once"),
    (
        r"Shape mismatch inside plate\('([^']*)'\) at site (\S+) dim (-\d+), (\d+) vs (\d+)",
        "site {1!r} has {4} at dim {2}, where plate {0!r} has {3}: is .to_event(1), [..., None] or a squeeze missing?",
    ),
    (
        r"collide at dim|collision at dim|dim=?(-\d+) .*already|conflict at dim",
        "two plates have the same dim: client is -2, data is -1, others are beyond",
    ),
    (r"used as indices must be", "takes rows by a column of floating numbers: write batch['NAME'].long()"),
    (
        r"same dtype|scalar type|Float and Double|float != double|double != float|dtypes? mismatch",
        "mixes float32 and float64: make constants in the model, or of a column's dtype",
    ),
)


@contextmanager
def running(model: Any, what: str = "the model") -> Iterator[None]:
    """Runs a model within: numbers are double, nothing is validated.

    Args:
        model: the function.
        what: it is, for an error at no line of it.

    Raises:
        UserError: instead of any error, with the line of the model.
    """
    try:
        with in_double():
            yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(explained(model, error, what)) from error


@contextmanager
def in_double() -> Iterator[None]:
    """Numbers are double within, and nothing is validated."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with pyro.validation_enabled(False):
            yield
    finally:
        torch.set_default_dtype(before)


def explained(model: Any, error: Exception, what: str = "the model") -> str:
    """One line on an error within a model."""
    text = " ".join(str(error).partition("Trace Shapes")[0].split())  # Pyro adds those of all sites
    where = _where(model, error) or f"{what}: "
    for pattern, meaning in MEANINGS:
        matched = re.search(pattern, text)
        if matched:
            return f"{where}{meaning.format(*matched.groups())}"
    return f"{where}{type(error).__name__}: {text[:200]}"


def _where(model: Any, error: Exception) -> str:
    function = inspect.unwrap(model) if inspect.isfunction(model) else getattr(type(model), "forward", model)
    code = getattr(function, "__code__", None)
    lines = [
        frame for frame in traceback.extract_tb(error.__traceback__) if code and frame.filename == code.co_filename
    ]
    return f"{Path(lines[-1].filename).name}, line {lines[-1].lineno}: " if lines else ""
