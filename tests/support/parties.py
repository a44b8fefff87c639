"""A server and sites that know each other's keys, all in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hierfl.inference.engines.remote.keys import Identity, PublicCard
from hierfl.inference.engines.remote.sealed import open_request, question_digest, seal_reply

#: the server's name
SERVER = "coordinator"


@dataclass(frozen=True)
class Parties:
    """Who has which keys.

    Attributes:
        server: the server's.
        sites: each site's, by its name.
    """

    server: Identity
    sites: dict[str, Identity]

    @classmethod
    def of(cls, names: Iterable[str]) -> Parties:
        """New keys of a server and of a roster."""
        return cls(Identity.make(SERVER), {name: Identity.make(name) for name in names})

    @property
    def cards(self) -> dict[str, PublicCard]:
        """Each site's."""
        return {name: identity.card for name, identity in self.sites.items()}

    @property
    def keys(self) -> dict[str, str]:
        """The table "keys" of study.toml."""
        return {"server": self.server.card.text, **{name: card.text for name, card in self.cards.items()}}

    def answering(self, name: str, answer: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
        """A site's answers as they are carried, from its plain ones; it refuses nothing that the server has signed."""

        def sealed(request: bytes) -> bytes:
            plain, head = open_request(request, self.server.card, name)
            return seal_reply(answer(plain), self.sites[name], self.server.card, head, question_digest(plain))

        return sealed
