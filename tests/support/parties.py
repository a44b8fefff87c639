"""A server and sites that know each other's keys."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import tomli_w

from hierfl.inference.engines.remote.keys import Identity, PublicCard
from hierfl.inference.engines.remote.sealed import open_request, question_digest, read_request, seal_reply
from hierfl.inference.engines.remote.wire import Unreadable, encode, header

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

    def save(self, folder: Path) -> None:
        """Writes everybody's keys, as people do it: a folder for each name, the server's too."""
        for name, identity in {self.server.name: self.server, **self.sites}.items():
            identity.save(folder / name)

    def put_into(self, study: Path) -> None:
        """Puts the cards of all who are on the roster into study.toml."""
        table = tomllib.loads(study.read_text())
        table["keys"] = {name: text for name, text in self.keys.items() if name in ("server", *table["clients"])}
        study.write_text(tomli_w.dumps(table))

    def answering(self, name: str, answer: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
        """A site's answers as they are carried, from its plain ones; what the server has not signed is refused."""

        def sealed(request: bytes) -> bytes:
            plain, head = read_request(request)
            try:
                open_request(request, self.server.card, name)
                reply, refused = answer(plain), ""
            except Unreadable:
                reply, refused = encode({"error": "refused", "refused": "signature"}, {}), "signature"
            refused = refused or ("failed" if "error" in header(reply) else "")
            return seal_reply(reply, self.sites[name], self.server.card, head, question_digest(plain), refused=refused)

        return sealed
