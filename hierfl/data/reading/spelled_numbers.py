"""Numbers whose spelling says more than their value: points between thousands, zeros before and behind."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Sequence

from ...errors import UserError
from .disguise import rows_shown
from .options import Reading
from .remedies import Remedies

log = logging.getLogger("hierfl")

#: numbers whose point may be a decimal mark or not
THOUSANDS_POINTS = re.compile(r"[+-]?[1-9][0-9]{0,2}(\.[0-9]{3})+")
#: a name, or a number, with zeros that its value does not keep
_ZEROS = re.compile(r"0+[0-9]+|[0-9]+\.[0-9]*0")


def refuse_points(name: str, present: Sequence[str], reading: Reading, remedies: Remedies) -> None:
    """Refuses 1.200 beside 950: points between thousands, of which only numbers below a thousand have none.

    Args:
        name: of the column.
        present: its different entries, without those that are missing.
        reading: how the table was read.
        remedies: how they are written.

    Raises:
        UserError: with one entry of either kind, and what reads them.
    """
    pointed, whole = [cell for cell in present if "." in cell], [cell for cell in present if "." not in cell]
    if reading.decimal or reading.thousands or len(pointed) < 2:
        return
    if not whole:
        _ask_about_points(name, pointed, remedies)
        return
    largest = [max(abs(float(cell)) for cell in cells) for cells in (pointed, whole)]
    if largest[1] > largest[0] and all(THOUSANDS_POINTS.fullmatch(cell) for cell in pointed):
        example, points = pointed[0].replace(".", ""), remedies.say(decimal=",", thousands=".")
        plain = remedies.say(types={name: "number"})
        raise UserError(
            f"column {name!r} holds {pointed[0]!r} beside {max(whole, key=lambda cell: abs(float(cell)))!r}: say "
            f"{points} to read {example} or {plain} to read {pointed[0]}"
        )


def _ask_about_points(name: str, pointed: Sequence[str], remedies: Remedies) -> None:
    """A column whose every entry is as 53.200 is measured to three digits, or in thousands.

    Of measurements one in a hundred ends in two zeros. Where half of the entries do, the column is refused, and a line
    says of others how they are read.
    """
    if not all(THOUSANDS_POINTS.fullmatch(cell) for cell in pointed):
        return
    points, plain = remedies.say(decimal=",", thousands="."), remedies.say(types={name: "number"})
    example = pointed[0]
    if any(cell.count(".") > 1 for cell in pointed) or 2 * sum(cell.endswith("00") for cell in pointed) >= len(pointed):
        whole = example.replace(".", "")
        raise UserError(
            f"column {name!r} holds numbers as {example!r} alone: say {points} to read {whole} or {plain} to read "
            f"{example}"
        )
    log.warning(
        "column %r holds numbers as %r alone, whose point is read as a decimal mark: %s says that this is meant, and "
        "%s that it is between thousands", name, example, plain, points,
    )  # fmt: skip


def refuse_zeros(
    name: str, cells: Sequence[str], rows: Sequence[int], remedies: Remedies, *, levels: bool = False
) -> None:
    """Refuses 01 beside 1, and 1.10 beside 1.1: one number, or names of two clients.

    Args:
        name: of the column.
        cells: its entries, all of them numbers or missing.
        rows: where each one is.
        remedies: how they are written.
        levels: whether the formula makes the column a category. Else 1.10 and 1.1 are asked about only where an entry
            comes twice on average, as names do, and 1.0 beside 1 is one number.

    Raises:
        UserError: with both spellings, and what reads them.
    """
    stripped = [cell.strip() for cell in cells]
    written = dict.fromkeys(stripped)
    names = levels or 2 * len(written) <= len(stripped)
    for cell in written:
        if (other := _other_spelling(cell, written, names)) is None or (not levels and _is_one(cell, other)):
            continue
        shown = rows_shown([cell], stripped, rows, remedies)
        raise UserError(
            f"column {name!r} holds {shown} beside {other!r}: say {remedies.say(types={name: 'category'})} if these "
            f"are names or levels, or {remedies.say(types={name: 'number'})} if they are numbers"
        )


def _other_spelling(cell: str, written: Collection[str], names: bool) -> str | None:
    """The same number with fewer zeros, where the column holds it, too."""
    if _ZEROS.fullmatch(cell) is None:
        return None
    if "." not in cell:
        shorter = [cell.lstrip("0") or "0"]
    else:
        bare = cell.rstrip("0")
        shorter = [bare + "0" * zeros for zeros in range(len(cell) - len(bare))] if names else []
        shorter += [bare[:-1]] if names and bare.endswith(".") else []
    return next((other for other in shorter if other in written), None)


def _is_one(cell: str, other: str) -> bool:
    """Whether two spellings differ in a fraction of zeros alone: 1.0 and 1."""
    return "." in cell and "." not in other
