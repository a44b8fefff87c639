"""Options that several commands of `hierfl federate` have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..options import path_argument, path_option

StudyFile = Annotated[Path, path_argument("STUDY", "study.toml, the same at every site.")]
Folder = Annotated[Path, path_option("DIR", "The site's own folder.")]
OwnFile = Annotated[
    Path | None, path_option("FILE", "The site's own data: FILE.csv or FILE.npz. [default: what the folder says]")
]
OwnName = Annotated[str, typer.Option("--client", help="The site's name on the roster. [default: the folder's]")]
OwnStudy = Annotated[Path | None, path_option("STUDY", "study.toml, where the folder is new.")]
Device = Annotated[str, typer.Option(help="Device that computes: cpu, cuda, ...")]
Exchange = Annotated[Path | None, path_option("DIR", "Shared folder in which requests and replies are left as files.")]
SuperLink = Annotated[str, typer.Option(metavar="HOST:PORT", help="Flower's SuperLink on this machine.")]
Authority = Annotated[
    Path | None, path_option("FILE", "Certificate of the authority that signed the SuperLink's. [default: no TLS]")
]
