"""Limits of robust rules: which methods and options they go with."""

from __future__ import annotations

from hierfl.errors import UserError

from ...options import Options
from ..exchange import Exchange
from .parse import parse_rule


def check_robust(options: Options, exchange: Exchange, clients: int) -> None:
    """Refuses a robust rule that cannot be used.

    Args:
        options: of the fit.
        exchange: what messages look like.
        clients: J.

    Raises:
        UserError: where single messages are not seen, too few are compared, or a rule looks at them itself.
    """
    if (rule := parse_rule(options.robust)) is None:
        return
    spec, rows = options.robust, options.mask_groups or clients
    if options.masked and not options.mask_groups:
        raise UserError(
            f"robust {spec!r} compares messages, and masks show the server their sum alone: mask_groups, for sums over "
            "several groups of clients that it compares instead, or no masks"
        )
    if exchange.individual:
        raise UserError(
            f"robust {spec!r} takes the place of a sum, and the messages of {exchange.individual[0]!r} are looked at "
            "one by one: another method, or robust='none'"
        )
    if apart := [name for name, group in exchange.sending.items() if not group.comparable]:
        raise UserError(
            f"robust {spec!r} compares messages, and those of {apart[0]!r} are as different as the clients' rows are: "
            "robust='none'"
        )
    if rows < rule.least:
        what = "groups of clients" if options.mask_groups else "clients"
        raise UserError(f"robust {spec!r} needs at least {rule.least} {what}, and there are {rows}")
    if not options.mask_groups and options.participation * rows < rule.least:
        raise UserError(
            f"robust {spec!r} needs at least {rule.least} clients in a round, and with participation "
            f"{options.participation:g} of {rows} about {options.participation * rows:.3g} report: "
            "a larger participation"
        )
