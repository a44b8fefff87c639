"""A study's server, and where it is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hierfl.errors import UserError

from ..options import Quiet, TrustCode, path_argument, path_option
from .options import Authority, Exchange, StudyFile, SuperLink


def server(
    study: StudyFile,
    home: Annotated[Path, path_option("HOME", "Folder of the server's keys (hierfl federate keys).")],
    exchange: Exchange = None,
    superlink: SuperLink = "",
    ca: Authority = None,
    out: Annotated[Path, path_option("DIR", "The server's own folder.")] = Path("server"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the study in --out.")] = False,
    restart: Annotated[
        bool,
        typer.Option("--restart", help="With --resume: sites may evaluate again what they answered, and count it."),
    ] = False,
    deadline: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="Answers that take longer are not used; 0 waits until all are there."),
    ] = 0.0,
    trust_code: TrustCode = False,
    quiet: Quiet = False,
) -> None:
    """Fit a study: ask the sites, add up what they send, keep what is everybody's."""
    from hierfl.inference.engines.remote.files import FileCourier
    from hierfl.inference.engines.remote.keys import Identity

    from ...federate.server import serve
    from ...federate.study import Study
    from ...messages import to_stderr
    from ..screen import print_summary

    if deadline < 0:
        raise UserError(f"--deadline must be at least 0, not {deadline:g}")
    if (exchange is None) == (not superlink):
        raise UserError("say what carries requests: --exchange DIR (files), or --superlink HOST:PORT (Flower)")
    agreed = Study.read(study, trust_code=trust_code)
    identity = Identity.load(home)
    if exchange is None:
        from ...federate.flower_control import Control
        from ...federate.flower_server import serve_in_superlink

        control = Control(study, superlink, ca)
        summary = serve_in_superlink(
            agreed, out, control, home, resume=resume, restart=restart, deadline=deadline, trust_code=trust_code,
            say=to_stderr(not quiet),
        )  # fmt: skip
    else:
        place = exchange
        summary = serve(
            agreed, out, lambda recorded: FileCourier(place, agreed.clients, deadline, recorded.waiting), identity,
            earlier=Identity.earlier(home), resume=resume, restart=restart, progress=not quiet,
        )  # fmt: skip
    if not quiet:
        print_summary(summary, out)


def status(folder: Annotated[Path, path_argument("DIR", "The server's own folder.")]) -> None:
    """Where a study is: its round, who has yet to answer, who contributed when."""
    from ...federate.contributions import last_contributions, read_status
    from ..screen import console, text_table

    held, screen = read_status(folder), console()
    screen.print(f"{held['study']}: round {held['round']} of {held['rounds']}")
    if held["ended"]:
        screen.print(f"nobody is asked any more: {held['ended']}")
    else:
        left = ", ".join(held["waiting"]) or "nobody"
        screen.print(f"asked ({held['kind']}) since {held['since']}; yet to answer: {left}")
    table = text_table("site", "rounds", "last answer", "kB from it")
    for row in last_contributions(folder):
        table.add_row(*row)
    screen.print(table)
