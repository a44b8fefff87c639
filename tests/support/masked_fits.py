"""Sites with masks of their own and their server, in this process: the whole protocol, without what carries bytes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from support.sites import HANDSHAKE, Sites

from hierfl import Federation
from hierfl.inference import Method
from hierfl.inference.engines.remote.engine import RemoteEngine
from hierfl.inference.engines.remote.keys import Identity
from hierfl.inference.engines.remote.masks.parts import Mode
from hierfl.inference.engines.remote.masks.server import MaskedSums
from hierfl.inference.engines.remote.masks.site import MaskedSite
from hierfl.inference.engines.remote.own_part import Contributing
from hierfl.inference.engines.remote.questions import Questions


class MaskedFits(Sites):
    """See :class:`support.sites.Sites`.

    Args:
        how: "whole" or "shares".
        server: folder of the server's masks.
        method, federation, folder, **options: as there.
    """

    def __init__(self, method: Method, federation: Federation, folder: Path, *, how: Mode, **options: Any) -> None:
        self.identities = {name: Identity.make(name) for name in federation.ids}
        self.cards = {name: identity.card for name, identity in self.identities.items()}
        self.how, self.masked = how, dict[str, MaskedSite]()
        super().__init__(method, federation, folder, masked=True, **options)

    def restart(self, name: str) -> None:
        """A site is begun again, from what is on its disk."""
        super().restart(name)
        site, folder = self.sites[name], self.folder / name / "masks"
        contribute = Contributing(site, len(self.own))
        self.masked[name] = MaskedSite(site, self.identities[name], self.cards, folder, contribute, mode=self.how)

    def ask(self, requests: Any) -> dict[str, bytes]:
        """Every request arrives, and every answer."""
        return {name: self.masked[name].answer(request) for name, request in requests.items()}

    def engine(self, ask: Any = None) -> Any:
        """What makes the server's engine, from what is on its disk."""
        questions = Questions(list(self.own), ask or self.ask, HANDSHAKE, torch.device("cpu"))
        masks = MaskedSums(questions, self.cards, self.folder / "masks", mode=self.how)
        return partial(
            RemoteEngine, clients=list(self.own), ask=ask or self.ask, handshake=HANDSHAKE,
            new_clients=self.new_clients, masks=masks,
        )  # fmt: skip
