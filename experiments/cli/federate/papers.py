"""A study's papers at a site: to leave it, to forget it, a record of what was processed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hierfl.plurals import counted

from ..options import path_argument, path_option
from .options import HOME_HELP

Home = Annotated[Path, path_argument("HOME", HOME_HELP)]
Name = Annotated[str, typer.Option("--study", metavar="NAME", help="Name of the study. [default: the only one]")]


def withdraw(
    folder: Home,
    study: Name = "",
    by: Annotated[
        str, typer.Option(metavar="NAME", help="The person who decides. [default: this account's name]")
    ] = "",
) -> None:
    """Take this site out of a study: delete what it has stored, refuse all further requests, and list what cannot be
    removed from the results."""
    import getpass

    from ...federate.guard.home import Home as SiteHome
    from ...federate.guard.ledger import Ledger
    from ...federate.papers.leaving_text import answered, words_of
    from ...federate.papers.withdraw import withdraw as leave
    from ...federate.study_site import Membership

    home, ledger = SiteHome(folder), Ledger()
    study_folder = home.study_folder(study)
    left, deleted = leave(home, study_folder, by or getpass.getuser(), ledger)
    agreed = Membership.read(study_folder).study
    for line in words_of(left, deleted, agreed, answered(home, left.study)):
        typer.echo(line)


def forget(
    folder: Home,
    study: Annotated[str, typer.Option("--study", metavar="NAME", help="Its name. [default: all that ended]")] = "",
    older_than: Annotated[
        float | None, typer.Option("--older-than", metavar="DAYS", min=0, help="Only studies that ended so long ago.")
    ] = None,
) -> None:
    """Delete the state, answers and results of ended studies at this site. The audit file and the digests of the
    approval are kept, and used points are not given back."""
    from ...federate.guard.home import Home as SiteHome
    from ...federate.guard.ledger import Ledger
    from ...federate.papers.forget import forget as delete

    forgotten = delete(SiteHome(folder), study, older_than, Ledger())
    for study_forgotten in forgotten:
        typer.echo(
            f"{study_forgotten.name}, ended on {study_forgotten.ended}: "
            f"{counted(study_forgotten.files, 'file')} deleted"
        )
    if not forgotten:
        typer.echo("nothing is deleted: no study has ended here" + (" so long ago" if older_than else ""))


def record(
    folder: Home,
    study: Name = "",
    out: Annotated[Path | None, path_option("FILE", "Writes FILE.md and FILE.json. [default: the screen]")] = None,
) -> None:
    """Write a record of what a study has processed at this site, for a data protection impact assessment."""
    from hierfl.files import write_whole

    from ...federate.guard.home import Home as SiteHome
    from ...federate.guard.ledger import Ledger
    from ...federate.papers.record import as_json, as_markdown
    from ...federate.papers.record import record as found_in

    entries = found_in(SiteHome(folder), study, Ledger())
    if out is None:
        return typer.echo(as_markdown(entries), nl=False)
    for suffix, text in ((".md", as_markdown(entries)), (".json", as_json(entries))):
        path = out.with_suffix(suffix)
        write_whole(path, text.encode(), mode=0o600)
        typer.echo(path)
    return None
