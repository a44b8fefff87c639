"""Options that several commands of `hierfl federate` have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..options import path_argument, path_option

StudyFile = Annotated[Path, path_argument("STUDY", "study.toml, the same at every site.")]
HOME_HELP = "The site's own folder."
Home = Annotated[Path | None, path_argument("HOME", HOME_HELP)]
Folder = Annotated[Path | None, path_option("HOME", "The same as HOME.")]
StudyName = Annotated[str, typer.Option("--study", metavar="NAME", help="Name of the study, if there are several.")]
OwnFile = Annotated[
    Path | None, path_option("FILE", "The site's own data: FILE.csv or FILE.npz. [default: as approved before]")
]
Device = Annotated[str, typer.Option(help="Device that computes: cpu, cuda, ...")]
Exchange = Annotated[Path | None, path_option("DIR", "Shared folder in which requests and replies are left as files.")]
SuperLink = Annotated[str, typer.Option(metavar="HOST:PORT", help="Flower's SuperLink on this machine.")]
Authority = Annotated[
    Path | None, path_option("FILE", "Certificate of the authority that signed the SuperLink's. [default: no TLS]")
]
