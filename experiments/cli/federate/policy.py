"""What a site decides for all its studies."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..options import path_argument
from .options import HOME_HELP


def policy(folder: Annotated[Path, path_argument("HOME", HOME_HELP)]) -> None:
    """Write policy.toml, what this site decides whatever a study says, with strict defaults."""
    from ...federate.guard.home import Home
    from ...federate.guard.policy import write_policy

    Home(folder).check_keys()  # a folder of another name is a slip
    typer.echo(f"{write_policy(folder)}: read it, and change it where this site decides otherwise")
    typer.echo("It is in force for every study.")
