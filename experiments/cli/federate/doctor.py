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
    home: Annotated[Path | None, path_argument("[HOME]", "Folder of a site's keys or of the server's keys.")] = None,
    exchange: Exchange = None,
    superlink: SuperLink = "",
    study: Annotated[Path | None, path_option("STUDY", "study.toml, to check that this version reads it.")] = None,
    trust_code: TrustCode = False,
    as_json: AsJson = False,
) -> None:
    """Check folders, disk, clock, keys, versions and ports. If a check fails, the exit status is 1."""
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
