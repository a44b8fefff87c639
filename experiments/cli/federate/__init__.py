"""`hierfl federate`: a study over sites whose data stay where they are."""

from __future__ import annotations

import typer

from .approval import approve, audit
from .connection import certificates, keys, register
from .doctor import doctor
from .papers import forget, record, withdraw
from .policy import policy
from .server import server, status
from .site import respond, site
from .study import check, study

__all__ = ["federate"]

federate = typer.Typer(
    help="A study over sites whose data stay where they are: hospitals, plants.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
#: in the order of a study
COMMANDS = (
    study, check, keys, policy, approve, certificates, register, server, status, site, respond, audit, doctor, record,
    withdraw, forget,
)  # fmt: skip
for command in COMMANDS:
    federate.command(command.__name__)(command)
