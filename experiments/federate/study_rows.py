"""How many rows a site of a study has, as study.toml says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hierfl.errors import UserError


def most_rows(privacy: Mapping[str, Any]) -> int:
    """Of a study's part "privacy": a site with more rows takes no part; 0 for no such bound."""
    return int(privacy.get("most_rows", 0))


def check_bounds(privacy: Mapping[str, Any], path: Path) -> None:
    """Refuses bounds between which no site lies.

    Raises:
        UserError: for them.
    """
    if 0 < most_rows(privacy) < privacy["least_rows"]:
        raise UserError(f"{path}: least_rows, {privacy['least_rows']}, is above most_rows, {most_rows(privacy)}")
