"""Numbers as a user has them, of any type and layout, as tensors of a few types."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import UserError

#: types that stay; other whole numbers become int64, other floats float32
KEPT = (torch.bool, torch.uint8, torch.int64, torch.float32, torch.float64)
#: what to do with values that are no numbers, by NumPy's kind of type
REMEDIES = {
    "c": "give real and imaginary parts as two features",
    "M": "make them numbers first, such as days since a first date",
    "m": "make them numbers first, such as value / numpy.timedelta64(1, 'D')",
    "U": "make them numbers first: x.astype(float) where they are written as numbers",
    "S": "make them numbers first: x.astype(float) where they are written as numbers",
    "O": "make them numbers of one type first: numpy.asarray(x, dtype=float)",
    "V": "give its fields as features",
}


def number_tensor(values: Any, what: str) -> Tensor:
    """Real numbers as a tensor of one of :data:`KEPT`, with no gradient, strides of any kind and nothing masked.

    Args:
        values: a tensor, an array of any type, byte order and layout, or lists.
        what: they are, for messages.

    Raises:
        UserError: for values that are no real numbers, or that are missing.
    """
    return _of_tensor(values, what) if isinstance(values, Tensor) else torch.from_numpy(number_array(values, what))


def number_array(values: Any, what: str) -> np.ndarray:
    """The same as :func:`number_tensor`, returned as an array in native byte order."""
    if isinstance(values, Tensor):
        return _of_tensor(values, what).cpu().numpy()
    given = plain_array(values, what)
    kind = given.dtype.kind
    if kind not in "biuf":
        raise UserError(f"{what} holds {given.dtype}, not numbers: {REMEDIES[kind]}")
    if given.dtype in (np.bool_, np.uint8):
        wanted: Any = given.dtype
    elif kind == "f":
        wanted = np.float64 if given.dtype.itemsize >= 8 else np.float32
    else:
        too_large = given.dtype.itemsize == 8 and kind == "u" and given.size and given.max() > np.iinfo(np.int64).max
        wanted = np.float64 if too_large else np.int64
    with np.errstate(over="ignore"):  # a number beyond the type becomes infinite, and is refused later
        return np.require(given, wanted, ["C", "W"])


def precision_of(values: Any) -> float:
    """The relative precision of floats of their type; that of float32 for other values."""
    if isinstance(values, Tensor) and values.is_floating_point():
        return float(torch.finfo(values.dtype).eps)
    kind = getattr(values, "dtype", None)
    return float(np.finfo(kind).eps) if isinstance(kind, np.dtype) and kind.kind == "f" else 1.2e-7


def plain_array(values: Any, what: str) -> np.ndarray:
    """Anything as an array, of whatever type.

    Raises:
        UserError: for rows of different lengths, and an array of which entries are masked.
    """
    if isinstance(values, Tensor):
        return _of_tensor(values, what).cpu().numpy()
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise UserError(f"{what} has {int(np.ma.getmaskarray(values).sum())} masked values: fill or drop them first")
    if isinstance(values, list | tuple) and any(isinstance(value, Tensor) for value in values):
        values = [number_array(value, what) if isinstance(value, Tensor) else value for value in values]
    try:
        return np.asarray(values)
    except ValueError as error:
        raise UserError(f"{what} is no array: its rows have different shapes") from error


def _of_tensor(x: Tensor, what: str) -> Tensor:
    if x.is_complex():
        raise UserError(f"{what} holds {x.dtype}, not real numbers: {REMEDIES['c']}")
    if x.is_meta:
        raise UserError(f"{what} is on the device 'meta', where there are no values")
    if x.is_nested:
        raise UserError(f"{what} is a nested tensor: pad its rows to one length, and stack them")
    try:
        plain = x.detach()
        plain = plain.dequantize() if plain.is_quantized else plain
        plain = plain if plain.layout == torch.strided else plain.to_dense()
        if plain.dtype in KEPT:
            return plain.resolve_neg()
        if plain.is_floating_point():
            return plain.float()
        if plain.dtype == torch.uint64:
            return torch.from_numpy(number_array(plain.cpu().numpy(), what)).to(x.device)
        return plain.long()
    except (RuntimeError, NotImplementedError, TypeError) as error:
        raise UserError(f"{what} holds {x.dtype}, which torch cannot convert: use x.float() first") from error
