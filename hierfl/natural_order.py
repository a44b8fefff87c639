"""Names in the order in which people count: "2" before "10", "ward 9" before "ward 10"."""

from __future__ import annotations

import re

_DIGITS = re.compile(r"([0-9]+)")


def natural(name: object) -> tuple[list[tuple[int, str]], str]:
    """A key to sort by: digits that follow each other are a number.

    Args:
        name: of a level, client or group; others are taken as text.
    """
    parts = _DIGITS.split(str(name))
    return [(int(part) if k % 2 else -1, part) for k, part in enumerate(parts)], str(name)
