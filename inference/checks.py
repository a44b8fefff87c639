"""Checks of numbers and devices that a user has given."""

from __future__ import annotations

import warnings

import numpy as np
import torch

from hierfl.errors import UserError, short_repr

#: the largest whole number of an option or setting: far beyond any use, and safe in every arithmetic
MAX_WHOLE_NUMBER = 2**31 - 1
#: the largest number of draws: more do not fit into memory
MAX_DRAWS = 100_000


def check_whole(name: str, value: object, least: int, most: int = MAX_WHOLE_NUMBER) -> None:
    """Raises a UserError for what is no whole number from ``least`` to ``most``."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool):
        raise UserError(f"{name} must be a whole number of at least {least}, not {short_repr(value)}")
    if value < least:
        raise UserError(f"{name} must be at least {least}, not {value}")
    if value > most:
        raise UserError(f"{name} must be at most {most}, not {value}")


def check_draws(value: object, least: int = 0) -> None:
    """Raises a UserError for what is no number of draws."""
    check_whole("draws", value, least, MAX_DRAWS)


def check_number(name: str, value: object) -> None:
    """Raises a UserError for what is no number."""
    if not isinstance(value, int | float | np.integer | np.floating) or isinstance(value, bool):
        raise UserError(f"{name} must be a number, not {short_repr(value)}")


def check_device(name: str) -> None:
    """Raises a UserError for a device that does not exist here."""
    try:
        with warnings.catch_warnings():  # of devices that torch is about to forget
            warnings.simplefilter("ignore")
            torch.zeros((), device=name).item()
    except (RuntimeError, AssertionError, ImportError, TypeError) as error:
        devices = ["cpu", *(f"cuda:{k}" for k in range(torch.cuda.device_count()))]
        raise UserError(f"device {name!r} is not there; available: {', '.join(devices)}") from error
