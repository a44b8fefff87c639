"""How many rows a site of a study has, and how many rounds and clients the study, as study.toml says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hierfl.errors import UserError
from hierfl.inference.options import Options


def most_rows(privacy: Mapping[str, Any]) -> int:
    """The most rows of a study's part "privacy": a site with more rows takes no part; 0 for no such bound."""
    return int(privacy.get("most_rows", 0))


def check_rounds(options: Options, clients: Sequence[str], path: Path) -> None:
    """Refuses a study that ends before it begins, or waits for more clients than it has.

    Raises:
        UserError: for one.
    """
    if options.rounds < 1:
        raise UserError(f"{path}: rounds is {options.rounds}, and a study has one at least")
    if clients and options.quorum > len(clients):
        raise UserError(f"{path}: a quorum of {options.quorum} cannot be reached by {len(clients)} clients")


def check_bounds(privacy: Mapping[str, Any], path: Path) -> None:
    """Refuses bounds between which no site lies.

    Raises:
        UserError: for them.
    """
    if 0 < most_rows(privacy) < privacy["least_rows"]:
        raise UserError(f"{path}: least_rows, {privacy['least_rows']}, is above most_rows, {most_rows(privacy)}")
