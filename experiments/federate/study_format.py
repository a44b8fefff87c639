"""Which formats of study.toml this version reads, and what for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hierfl.errors import UserError

#: of the file; 2: with keys
FORMAT = 2
#: of files whose studies can have ended: they are read for what is in their folders
EARLIER = 1


def check_format(table: Mapping[str, Any], path: Path, finished: bool) -> None:
    """Refuses a file of another version.

    Raises:
        UserError: for one, with what can be done.
    """
    found = table["format"]
    if found == EARLIER and not finished:
        raise UserError(
            f"{path} is of format {EARLIER}, without keys: finish this study with the version of hierfl that began it, "
            "or draft it again (hierfl federate study)"
        )
    if found not in (EARLIER, FORMAT):
        raise UserError(f"{path} is of format {found}, and this version of hierfl reads {FORMAT}")
    if (found == FORMAT) != ("keys" in table):
        raise UserError(f"{path}: format {FORMAT} has the part keys, and format {EARLIER} has none")
