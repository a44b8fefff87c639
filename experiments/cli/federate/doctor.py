"""Whether a place is ready for a study."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ..as_json import AsJson, print_json
from ..options import TrustCode, path_argument, path_option
from .options import Exchange, SuperLink


def doctor(
    home: Annotated[Path | None, path_argument("[HOME]", "The own folder of a site or of the server.")] = None,
    exchange: Exchange = None,
    superlink: SuperLink = "",
    study: Annotated[Path | None, path_option("STUDY", "study.toml, to read it here.")] = None,
    trust_code: TrustCode = False,
    as_json: AsJson = False,
) -> None:
    """Look at folders, disk, clock, keys, versions and ports; exit status 1 where something fails."""
    from ...federate.doctor import examine

    findings = []
    for finding in examine(home, exchange, superlink, study, trust_code=trust_code):
        findings.append(finding)
        if not as_json:
            typer.echo(finding.line)
    if as_json:
        print_json(list(map(asdict, findings)))
    if any(finding.level == "fail" for finding in findings):
        raise typer.Exit(1)
