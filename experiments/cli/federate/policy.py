"""What a site decides for all its studies."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..options import path_argument


def policy(folder: Annotated[Path, path_argument("DIR", "The site's own folder.")]) -> None:
    """Write policy.toml, what this site decides whatever a study says, with strict defaults."""
    from ...federate.guard.policy import write_policy

    typer.echo(f"{write_policy(folder)}: read it, and change what is not yours; it is in force for every study")
