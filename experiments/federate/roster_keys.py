"""Who takes part in a study, and by which public cards the others know it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hierfl.errors import UserError
from hierfl.inference.engines.remote.keys import NAME, Identity, PublicCard

#: entry of the server's card
SERVER = "server"


def check_names(names: Sequence[str], path: Path) -> None:
    """Refuses names that could be taken for one another, or for more than a name.

    Raises:
        UserError: for one.
    """
    for name in names:
        if not NAME.fullmatch(name):
            raise UserError(f"{path}: a client is named by letters, digits, - and _, not {name!r}")
    if len({name.lower() for name in names}) < len(names):
        raise UserError(f"{path}: two clients have one name, or names that differ in capitals alone")
    if not names:
        raise UserError(f"{path}: the roster is empty")


def read_keys(keys: Mapping[str, str], clients: Sequence[str], path: Path) -> dict[str, PublicCard]:
    """The table "keys" of study.toml.

    Args:
        keys: {name: text of a card}.
        clients: the roster.
        path: of the file.

    Returns:
        {name: card}; the server's is "server". Who has no card yet is not in it.

    Raises:
        UserError: for what is no card or somebody else's, and for one key of two parties.
    """
    if taken := [name for name in clients if name.lower() == SERVER]:
        raise UserError(f"{path}: a client cannot be named {taken[0]!r}: keys.server is the server's")
    cards: dict[str, PublicCard] = {}
    for name, text in keys.items():
        if name != SERVER and name not in clients:
            raise UserError(f"{path}: keys.{name} is of no client on the roster: take the line out")
        try:
            card = PublicCard.read(text)
        except UserError as error:
            raise UserError(f"{path}: keys.{name}: {error}") from error
        if card.name != name and (name != SERVER or card.name in clients):
            raise UserError(f"{path}: keys.{name} is the card of {card.name}: each has a card with its own name")
        for other, other_card in cards.items():
            if card.sign == other_card.sign or card.seal == other_card.seal:
                raise UserError(f"{path}: {other} and {name} have one key: each makes its own (hierfl federate keys)")
        cards[name] = card
    return cards


def check_server(keys: Mapping[str, PublicCard], clients: Sequence[str], identity: Identity, path: Path) -> None:
    """Whether a server with this identity can ask all clients.

    Args:
        keys: as of :func:`read_keys`.
        clients: the roster.
        identity: the server's.
        path: of study.toml.

    Raises:
        UserError: where its card or a client's is missing, or the study was agreed on with another server.
    """
    own = keys.get(SERVER)
    if own is None:
        raise UserError(
            f"{path} has no keys.server: add the server's card, and send the file to every site again "
            f'(server = "{identity.card.text}")'
        )
    if own != identity.card:
        raise UserError(
            f"{path} was agreed on with the server {own.name} ({own.fingerprint}), and this home is "
            f"{identity.name} ({identity.card.fingerprint}): say its --home, or put the new card into keys.server"
        )
    if lacking := [name for name in clients if name not in keys]:
        raise UserError(
            f"{path} has no card of {', '.join(lacking[:5])}{', ...' * (len(lacking) > 5)}: "
            f"each site sends NAME.pub (hierfl federate keys), and its line goes into the part keys"
        )


def with_cards(sites: Sequence[str], server: Path | None) -> tuple[list[str], dict[str, str]]:
    """The roster and the table "keys" from what was said.

    Args:
        sites: names, and files NAME.pub of cards.
        server: file of the server's card; None where it is not known yet.

    Raises:
        UserError: for a file that is none.
    """
    clients: list[str] = []
    keys: dict[str, Any] = {SERVER: PublicCard.read(server).text} if server is not None else {}
    for site in sites:
        card = PublicCard.read(Path(site)) if site.endswith(".pub") else None
        clients.append(card.name if card else site)
        keys |= {card.name: card.text} if card else {}
    return clients, keys
