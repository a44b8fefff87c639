"""Whether a place is ready for a study."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..options import TrustCode, path_argument, path_option
from .options import Exchange, SuperLink


def doctor(
    home: Annotated[Path | None, path_argument("[HOME]", "The own folder of a site or of the server.")] = None,
    exchange: Exchange = None,
    superlink: SuperLink = "",
    study: Annotated[Path | None, path_option("STUDY", "study.toml, to read it here.")] = None,
    trust_code: TrustCode = False,
) -> None:
    """Look at folders, disk, clock, keys, versions and ports; exit status 1 where something fails."""
    from ...federate.doctor import examine

    failed = False
    for found in examine(home, exchange, superlink, study, trust_code=trust_code):
        typer.echo(found.line)
        failed |= found.level == "fail"
    if failed:
        raise typer.Exit(1)
