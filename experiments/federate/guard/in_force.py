"""Whether what is asked was approved, by the server whose card is pinned, and is in force as it is now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hierfl.inference.engines.remote.keys import PublicCard
from hierfl.inference.engines.remote.own_code import code_digest

from ..roster_keys import SERVER
from ..study import Study
from ..study_site import Membership
from .approval import Approval
from .home import Home
from .ledger import Ledger
from .policy import Policy
from .replies import Refused
from .withdrawal import withdrawal_of


def server_of(home: Home, study: Study) -> PublicCard:
    """The card of a study's server, as it is pinned in a site's home.

    Raises:
        Refused: where it is not.
    """
    card = study.keys.get(SERVER)
    if card is None or home.known().get(card.name) != card:
        raise Refused("approval", "the server's card is not pinned")
    return card


def check_in_force(
    approval: Approval | None, home: Home, member: Membership, head: Mapping[str, Any], ledger: Ledger
) -> None:
    """Refuses what was not approved as it is now.

    Args:
        approval: of the study; None where there is none.
        home: the site's own folder.
        member: which site of which study asks.
        head: of the request.
        ledger: of the account.

    Raises:
        Refused: of a study that the site has left; where there is no approval, or something has changed since; for
            a request of another version or roster.
    """
    study = member.study
    if (left := withdrawal_of(home, study.digest, member.client, ledger)) is not None:
        raise Refused("withdrawn", f"{left.by} has withdrawn on {left.when}")
    if approval is None:
        raise Refused("approval", "no approval is on record: hierfl federate approve")
    digests = {
        "study": study.digest, "roster": study.roster, "method": study.table["method_digest"],
        "code": code_digest(), "policy": Policy.read(home.folder).digest,
    }  # fmt: skip
    if words := approval.outdated(digests):
        raise Refused("approval", words)
    handshake = head.get("handshake")
    if words := study.handshake.differs(handshake):
        other = isinstance(handshake, Mapping) and handshake.get("roster") != study.roster
        raise Refused("approval" if other else "version", words)
