"""A site: it answers, and after the study predicts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hierfl.data.reading.options import Reading
from hierfl.errors import UserError
from hierfl.files import shown

from ..options import Quiet, path_argument, path_option
from .options import HOME_HELP, Device, Exchange, Folder, Home, StudyName

if TYPE_CHECKING:
    import pandas as pd

    from ...federate.guard.gate import Gate


def site(
    home: Home = None,
    exchange: Exchange = None,
    folder: Folder = None,
    study: StudyName = "",
    device: Device = "cpu",
    quiet: Quiet = False,
) -> None:
    """Answer requests of an approved study until it has ended: in a shared folder, or those that Flower's node on this
    machine brings. Stop and start it as you like."""
    from ...federate.work import answer_by_files, answer_by_flower, closing_words
    from ...messages import to_stderr

    say, own = to_stderr(not quiet), _own(home, folder)
    with _working(own, study, device) as gate:
        say(f"{gate.client} of {shown(gate.member.study.name)}: its log is {gate.folder / 'site.log'}")
        if exchange is None:
            answer_by_flower(gate, own, say)
        else:
            answer_by_files(gate, exchange, gate.client, partial(gate.replies.unknown, gate.member.study))
        say(closing_words(gate.closed, own))


def respond(
    request: Annotated[list[Path], path_argument("REQUEST...", "Files that came from the server.")],
    out: Annotated[Path, path_option("DIR|FILE", "Folder of the replies, or for one request a file.")],
    folder: Annotated[Path, path_option("HOME", HOME_HELP)] = Path("site"),
    study: StudyName = "",
    device: Device = "cpu",
) -> None:
    """Answer requests that came as files, by mail, by SFTP or on a memory stick. No connection is opened."""
    from ...federate.respond import write_replies

    with _working(folder, study, device) as gate:
        for path, problem in write_replies(gate.answer, request, out):
            typer.echo(shown(f"{path}{f': {problem}' if problem else ''}"))


def _own(home: Path | None, folder: Path | None) -> Path:
    """The site's own folder, as it was said."""
    if home is not None and folder is not None:
        raise UserError(f"say the site's own folder once, not {home} and --folder {folder}")
    return home or folder or Path("site")


@contextmanager
def _working(folder: Path, study: str, device: str) -> Iterator[Gate]:
    """The site of an approved study, as the one process that answers for it."""
    from hierfl.file_lock import locked

    from ...federate.guard.home import Home
    from ...federate.guard.ledger import Ledger
    from ...federate.guard.withdrawn import gate_of
    from ...federate.study_site import at_work

    home = Home(folder)
    study_folder, ledger = home.running(study), Ledger()
    with at_work(study_folder):
        gate = gate_of(home, study_folder, ledger, device)
        reason = f"another process of this account answers as {gate.client} in {shown(gate.member.study.name)}"
        with locked(ledger.lock_of(gate.member.study.digest, gate.client), reason):
            yield gate


def predict_at_site(
    folder: Path, data: Path, study: str, draws: int, reading: Reading | None, shares: str, *, trust_code: bool
) -> pd.DataFrame:
    """What a site's own model says of new rows, at the site, after a study; no server is needed.

    Args:
        folder: the site's own.
        data: a file of rows.
        study: its name, where the site has several.
        draws: that predictions are averaged over; 0 for the posterior mean.
        reading: how a table is read; None as the site's own.
        shares: label shares of a method that has some; see :func:`.site_results.predictions`.
        trust_code: whether to run a method's file that was not approved.
    """
    from ...federate.guard.home import Home
    from ...federate.site_results import predictions, site_run
    from ...federate.study_site import Membership
    from ...predict.codes import warn_of_codes_at_site

    member = Membership.read(Home(folder).study_folder(study), trust_code=trust_code)
    answers = predictions(member, site_run(member), data, draws, reading, shares)
    warn_of_codes_at_site(member.study.table.get("columns", {}), data, reading or member.reading)
    return answers
