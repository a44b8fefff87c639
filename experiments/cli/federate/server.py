"""A study's server, and where it is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hierfl.errors import UserError
from hierfl.files import make_folder

from ..as_json import AsJson, print_json
from ..options import Quiet, TrustCode, path_argument, path_option
from .options import Authority, Exchange, StudyFile, SuperLink

#: columns of a study's status
SITE_COLUMNS = ("site", "rounds", "last answer", "kB from it")


def server(
    study: StudyFile,
    home: Annotated[Path | None, path_option("HOME", "Folder of the server's keys (hierfl federate keys).")] = None,
    exchange: Exchange = None,
    superlink: SuperLink = "",
    ca: Authority = None,
    out: Annotated[Path, path_option("DIR", "The server's own folder.")] = Path("server"),
    resume: Annotated[bool, typer.Option("--resume", help="Continue the study in --out.")] = False,
    restart: Annotated[
        bool,
        typer.Option("--restart", help="With --resume: sites may evaluate an answered round again, and count it."),
    ] = False,
    deadline: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="Do not use answers that take longer; 0 waits for all answers."),
    ] = 0.0,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Run the whole study with simulated sites; ask no site, and keep nothing."),
    ] = False,
    trust_code: TrustCode = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Fit a study: ask the sites, add up their messages, and store the shared values."""
    from hierfl.inference.engines.remote.files import FileCourier
    from hierfl.inference.engines.remote.keys import Identity
    from hierfl.plain_folder import PlainFolder

    from ...federate.roster_keys import check_server
    from ...federate.server import check_folder, serve
    from ...federate.study import Study
    from ...federate.work import alone
    from ...messages import to_stderr
    from ..screen import print_summary

    if deadline < 0:
        raise UserError(f"--deadline must be at least 0, not {deadline:g}")
    if dry_run:
        return _tried(study, trust_code, quiet)
    if (exchange is None) == (not superlink):
        raise UserError("say what carries requests: --exchange DIR (files), or --superlink HOST:PORT (Flower)")
    if home is None:
        raise UserError("say whose keys the server has: --home HOME, a folder that hierfl federate keys has made")
    agreed = Study.read(study, trust_code=trust_code)
    identity = Identity.load(home)
    if exchange is None:
        from ...federate.flower_control import Control
        from ...federate.flower_server import serve_in_superlink

        control = Control(study, superlink, ca)
        summary = serve_in_superlink(
            agreed, out, control, home, resume=resume, restart=restart, deadline=deadline, trust_code=trust_code,
            say=to_stderr(not (quiet or as_json)),
        )  # fmt: skip
    else:
        target = exchange
        check_folder(out, resume)
        check_server(agreed.keys, agreed.clients, identity, agreed.path)
        make_folder(target)
        busy = f"another server asks in {target}: a study needs its own folder"
        with alone(PlainFolder(target), ".server.lock", busy):
            summary = serve(
                agreed, out, lambda recorded: FileCourier(target, agreed.clients, deadline, recorded.waiting), identity,
                earlier=Identity.earlier(home), resume=resume, restart=restart, progress=not (quiet or as_json),
            )  # fmt: skip
    if as_json:
        print_json({"folder": out, **summary})
    elif not quiet:
        print_summary(summary, out)


def _tried(study: Path, trust_code: bool, quiet: bool) -> None:
    """A study with made-up sites; exit status 1 where something would stop it."""
    from ...federate.dry_run import dry_run
    from ...federate.study import Study
    from ...messages import to_stderr
    from ..screen import console

    trial = dry_run(Study.read(study, trust_code=trust_code), say=to_stderr(not quiet))
    screen = console()
    for line in trial.lines():
        screen.print(line, soft_wrap=True)
    if trial.stopped:
        raise typer.Exit(1)


def status(folder: Annotated[Path, path_argument("DIR", "The server's own folder.")], as_json: AsJson = False) -> None:
    """Show the state of a study: round, sites that have not answered, refuse or are slow, and remaining time."""
    from ...federate.contributions import last_contributions
    from ...federate.progress import progress
    from ..screen import console, text_table

    lines, rows = progress(folder), last_contributions(folder)
    if as_json:
        return print_json({"lines": lines, "sites": [dict(zip(SITE_COLUMNS, row, strict=True)) for row in rows]})
    screen = console()
    for line in lines:
        screen.print(line, soft_wrap=True)
    table = text_table(*SITE_COLUMNS)
    for row in rows:
        table.add_row(*map(str, row))
    if table.rows:
        screen.print(table)
    return None
