"""A site: it answers, and after the study predicts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hierfl.data.reading.options import Reading
from hierfl.files import shown

from ..options import Quiet, TrustCode, path_argument, path_option
from ..reading import with_reading
from .options import Device, Exchange, Folder, OwnFile, OwnName, OwnStudy


@with_reading(columns=False, drop=False)
def site(
    exchange: Exchange = None,
    folder: Folder = Path("site"),
    study: OwnStudy = None,
    client: OwnName = "",
    data: OwnFile = None,
    device: Device = "cpu",
    trust_code: TrustCode = False,
    quiet: Quiet = False,
    reading: Any = None,
) -> None:
    """Answer requests until the study has ended: in a shared folder, or those that Flower's node on this machine
    brings. Stop and start it as you like."""
    from ...federate.study_site import Membership, at_work
    from ...federate.work import answer_by_files, answer_by_flower, closing_words
    from ...messages import to_stderr

    say = to_stderr(not quiet)
    with at_work(folder):
        read = Reading.of(reading) if reading else None
        member = Membership.join(folder, study, client, data, read, trust_code=trust_code)
        own = member.site(device)
        member.keep()
        say(f"{member.client} of {shown(member.study.name)}: its log is {folder / 'site.log'}")
        if exchange is None:
            answer_by_flower(own, folder, say)
        else:
            answer_by_files(own, exchange, member.client)
        say(closing_words(own.closed, folder))


@with_reading(columns=False, drop=False)
def respond(
    request: Annotated[list[Path], path_argument("REQUEST...", "Files that came from the server.")],
    out: Annotated[Path, path_option("DIR|FILE", "Where the replies go: a folder, or for one request a file.")],
    folder: Folder = Path("site"),
    study: OwnStudy = None,
    client: OwnName = "",
    data: OwnFile = None,
    device: Device = "cpu",
    trust_code: TrustCode = False,
    reading: Any = None,
) -> None:
    """Answer requests that came as files, by mail or SFTP or on a stick; nothing listens, nothing is sent."""
    from ...federate.respond import write_replies
    from ...federate.study_site import Membership, at_work

    with at_work(folder):
        read = Reading.of(reading) if reading else None
        member = Membership.join(folder, study, client, data, read, trust_code=trust_code)
        own = member.site(device)
        member.keep()
        for path, problem in write_replies(own.answer, request, out):
            typer.echo(shown(f"{path}{f': {problem}' if problem else ''}"))


@with_reading(columns=False, drop=False)
def predict(
    folder: Annotated[Path, path_argument("DIR", "A site's own folder.")],
    data: Annotated[Path, path_option("FILE", "New examples: FILE.csv, or FILE.npz with x.")],
    out: Annotated[Path | None, path_option("FILE", "A csv file to write to. [default: the screen]")] = None,
    draws: Annotated[int, typer.Option(min=0, help="Average over posterior draws; 0: at the posterior mean.")] = 0,
    trust_code: TrustCode = False,
    reading: Any = None,
) -> None:
    """Predict with a site's own model, at the site, after a study; no server is needed."""
    from ...federate.site_results import predictions, site_run
    from ...federate.study_site import Membership
    from ...run_folder.csv_files import write_frame

    member = Membership.read(folder, trust_code=trust_code)
    found = predictions(member, site_run(member), data, draws, Reading.of(reading) if reading else None)
    if out is None:
        typer.echo(found.to_csv(index=False, lineterminator="\n"), nl=False)
    else:
        write_frame(out, found)
