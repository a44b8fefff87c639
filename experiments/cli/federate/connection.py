"""Keys of all who take part; Flower as the connection: certificates, registered nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hierfl.errors import UserError

from ..options import TrustCode, path_argument, path_option
from .options import Authority, StudyFile, SuperLink


def keys(
    home: Annotated[Path, path_argument("HOME", "The folder of this site, or of the server.")],
    name: Annotated[str, typer.Option("--name", help="The site's name on rosters, or the server's.")],
    rotate: Annotated[bool, typer.Option("--rotate", help="Move the present key aside, and make a new key.")] = False,
) -> None:
    """Make the keys of a site or of the server. Send the public card to the others, and never the private key."""
    from ...federate.write_keys import NODE_PUBLIC, write_keys

    made = write_keys(home, name, rotate=rotate)
    typer.echo(f"{home / f'{name}.pub'}: send it to the coordinator and to every site")
    typer.echo(f"fingerprint: {made.card.fingerprint}")
    typer.echo("Everyone who gets the card compares it with this fingerprint, by telephone or on paper.")
    if rotate:
        typer.echo("The old key is not used any more: all who have pinned its card pin the new one.")
    else:
        typer.echo(f"{home / NODE_PUBLIC}: for Flower alone (hierfl federate register)")


def certificates(
    folder: Annotated[Path, path_argument("DIR", "A new folder.")],
    host: Annotated[list[str], typer.Option("--host", help="Name or address of the SuperLink; repeatable.")],
    days: Annotated[int, typer.Option(min=1, help="Days for which the certificate is valid.")] = 365,
) -> None:
    """Make a certificate of the SuperLink, if no certificate authority signs one."""
    from ...federate.flower_control import write_certificates

    for path in write_certificates(folder, host, days):
        typer.echo(path)


def register(
    study: StudyFile,
    client: Annotated[str, typer.Option("--client", help="A site on the roster.")],
    superlink: SuperLink,
    key: Annotated[Path | None, path_option("FILE", "The public key of the site's node.")] = None,
    ca: Authority = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the site's node from the register.")] = False,
    trust_code: TrustCode = False,
) -> None:
    """Register a site's node at the SuperLink; nodes.toml beside the study lists the nodes of the sites."""
    from hierfl.errors import unknown

    from ...federate.flower_control import Control
    from ...federate.study import Study

    if (key is None) != remove:
        raise UserError("say --key FILE to register a node, or --remove")
    if key is None:
        return Control(study, superlink, ca).unregister(client)
    clients = Study.read(study, trust_code=trust_code).clients
    if client not in clients:
        raise unknown("client of the study", client, clients)
    typer.echo(f"{client} is node {Control(study, superlink, ca).register(client, key)}")
