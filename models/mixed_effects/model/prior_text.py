"""Priors as they are written: normal(0, 5), half-cauchy(5)."""

from __future__ import annotations

import re
from typing import Any

from torch import Tensor
from torch.distributions import Gamma, Normal, StudentT

from hierfl.errors import UserError

#: names of priors of the real line and of what is above zero, and what their numbers are; which must be above zero
REAL = {"normal": ("mean", "sd"), "flat": ()}
POSITIVE = {
    "half-t": ("df", "scale"), "half-cauchy": ("scale",), "half-normal": ("scale",), "gamma": ("shape", "rate")
}  # fmt: skip
#: the settings that hold priors, and of what
SETTINGS = {
    "intercept_prior": REAL, "beta_prior": REAL, "sd_prior": POSITIVE, "residual_prior": POSITIVE,
    "family_prior": REAL,
}  # fmt: skip


def check_priors(settings: Any) -> None:
    """Refuses what is written for no prior that there is.

    Raises:
        UserError: with what can be written.
    """
    for name in SETTINGS:
        if getattr(settings, name):
            read(name, getattr(settings, name))


def read(setting: str, text: str) -> tuple[str, list[float]]:
    """Name and numbers of a prior.

    Raises:
        UserError: for one that there is not.
    """
    densities = SETTINGS[setting]
    listed = " | ".join(
        f"{name}({', '.join(map(str.upper, numbers))})" if numbers else name for name, numbers in densities.items()
    )
    match = re.fullmatch(r"\s*([a-z-]+)\s*(?:\(([^()]*)\))?\s*", text)
    if not match or match[1] not in densities:
        raise UserError(f"{setting} is {listed}, not {text[:60]!r}")
    wanted = densities[match[1]]
    try:
        numbers = [float(part) for part in match[2].split(",")] if match[2] and match[2].strip() else []
    except ValueError:
        numbers = []
    least = 1 if match[1] == "normal" else 0
    if len(numbers) != len(wanted) or not all(abs(v) < 1e100 for v in numbers) or any(v <= 0 for v in numbers[least:]):
        raise UserError(f"{setting} is {listed}, not {text[:60]!r}")
    return match[1], numbers


def log_density(name: str, numbers: list[float], sd: Tensor) -> Tensor:
    """The log density of values above zero, each by itself, but for a constant."""
    if name == "gamma":
        shape, rate = (sd.new_tensor(v) for v in numbers)
        return Gamma(shape, rate, validate_args=False).log_prob(sd)
    if name == "half-normal":
        return Normal(sd.new_tensor(0.0), sd.new_tensor(numbers[0]), validate_args=False).log_prob(sd)
    df, scale = numbers if name == "half-t" else [1.0, *numbers]
    return StudentT(sd.new_tensor(df), scale=sd.new_tensor(scale), validate_args=False).log_prob(sd)
