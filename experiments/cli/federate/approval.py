"""A site's say: whether it takes part in a study, and what it has answered."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hierfl.data.reading.options import Reading

from ..options import TrustCode, path_argument, path_option
from ..reading import with_reading
from .options import HOME_HELP, OwnFile

ALLOW_HELP = (
    "Permission that the policy requires at approval: networks, models, label-counts, points, exploration or "
    "residuals; repeatable. See docs/policy.md."
)


@with_reading(columns=(), drop=False)
def approve(
    home: Annotated[Path, path_argument("HOME", HOME_HELP)],
    study: Annotated[Path, path_option("STUDY", "study.toml, as the coordinator has sent it.")],
    by: Annotated[str, typer.Option("--by", metavar="NAME", help="Who approves.")],
    data: OwnFile = None,
    pin: Annotated[
        list[Path] | None,
        path_option("FILE.pub", "Card of the server or a site whose fingerprint its owner confirmed; repeatable."),
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option("--allow", metavar="WORD", help=ALLOW_HELP),
    ] = None,
    purpose: Annotated[
        str, typer.Option("--purpose", metavar="TEXT", help="What the study is for; hierfl federate record shows it.")
    ] = "",
    trust_code: TrustCode = False,
    reading: Any = None,
) -> None:
    """Approve a study. Shows what would leave, each rule of the policy with its margin, and who takes part, and records
    the approval. If a rule fails, nothing is recorded, and the exit code is 2."""
    from hierfl.inference.engines.remote.keys import PublicCard

    from ...federate.guard.approve import propose
    from ...federate.guard.home import Home
    from ...federate.leaving import leaving
    from ...federate.masks import summed_over
    from ..screen import console
    from .showing import show_leaving, show_parties, show_rules

    proposal = propose(
        Home(home), study, data, Reading.from_table(reading) if reading else None,
        pins=[PublicCard.read(path) for path in pin or ()], allow=allow or (), trust_code=trust_code,
    )  # fmt: skip
    show_leaving(leaving(proposal.member.study, proposal.data), summed_over(proposal.member.study))
    console().print()
    show_rules(proposal.rules)
    show_parties(proposal.parties)
    typer.echo(f"{proposal.record(by, purpose)}: approved by {by}; the site takes part by:")
    typer.echo(f"  hierfl federate site {home} --exchange DIR (files), or without --exchange (Flower)")


def audit(
    home: Annotated[Path, path_argument("HOME", HOME_HELP)],
    accept: Annotated[
        str, typer.Option("--accept", metavar="NAME", help="Record that lines were lost, confirmed by NAME, and go on.")
    ] = "",
) -> None:
    """Print and verify the audit file of a site. A gap, an edit or lost lines are an error."""
    from ...federate.guard.home import Home
    from ...federate.guard.look import audited, lines_of

    site_home = Home(home)
    audit_file = audited(site_home, accept)
    for line in lines_of(audit_file.lines):
        typer.echo(line)
    count, head = audit_file.head
    typer.echo(f"{count} line{'s' * (count != 1)}, none missing; the last is {head[:16]}")
