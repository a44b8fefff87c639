"""A site with keys, policy, approval and a gate, and a coordinator who has the server's keys."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from hierfl.errors import UserError
from hierfl.experiments.federate.guard.approve import Proposal, propose
from hierfl.experiments.federate.guard.gate import Gate
from hierfl.experiments.federate.guard.home import Home
from hierfl.experiments.federate.guard.ledger import Ledger
from hierfl.experiments.federate.guard.policy import POLICY, Policy, write_policy
from hierfl.experiments.federate.study import Study
from hierfl.inference.engines.remote.keys import Identity, PublicCard
from hierfl.inference.engines.remote.sealed import open_reply, question_digest, seal_request
from hierfl.inference.engines.remote.wire import header

from .coordinator import Coordinator

#: of the approvals
BY = "data protection officer"


class Hospital:
    """A site of a study's roster, whose account and data outlive each of its homes.

    Args:
        folder: of all that the site has; its ledger, and a home.
        roster: names; the first is this site's.
        server: the server's keys; None for new ones.
        **policy: entries of its policy that are not the defaults.

    Attributes:
        sent: how many requests the server has signed for it.
    """

    def __init__(
        self, folder: Path, roster: Collection[str], server: Identity | None = None, **policy: Any
    ) -> None:  # fmt: skip
        self.folder, self.name, self.sent = folder, next(iter(roster)), 0
        self.policy = policy
        self.server = server or Identity.make("coordinator")
        self.others = {name: Identity.make(name) for name in roster if name != self.name}
        self.ledger = Ledger(folder / "ledger")
        self.home = self.new_home("home")

    def new_home(self, name: str, identity: Identity | None = None) -> Home:
        """Another folder of the same site and account."""
        path = self.folder / name
        (identity or Identity.make(self.name)).save(path)
        write_policy(path)
        if self.policy:
            (path / POLICY).write_text(replace(Policy(), **self.policy).text())
        return Home(path)

    @property
    def pins(self) -> list[PublicCard]:
        """Cards that came by another way than a study."""
        return [self.server.card, *(other.card for other in self.others.values())]

    def study(self, path: Path, **changes: Any) -> Path:
        """study.toml with the roster's keys, as the coordinator sends it."""
        table = tomllib.loads(path.read_text()) | changes
        table.setdefault("format", 2)
        cards = {self.name: self.home.identity.card, **{name: other.card for name, other in self.others.items()}}
        known = {name: cards[name].text for name in table["clients"] if name in cards}
        table["keys"] = {"server": self.server.card.text, **known, **changes.get("keys", {})}
        out = path.with_name(f"{table['name']}.toml")
        out.write_text(tomli_w.dumps(table))
        return out

    def proposal(
        self, study: Path, data: Path, allow: Collection[str] = ("points",), home: Home | None = None
    ) -> Proposal:
        """What the site would approve."""
        return propose(home or self.home, study, data, pins=self.pins, allow=allow, ledger=self.ledger)

    def failing(self, study: Path, data: Path) -> list[str]:
        """Rules that do not hold; asserts that then nothing is on record, and nobody is answered."""
        proposal = self.proposal(study, data)
        if proposal.failing:
            for attempt in (partial(proposal.record, BY), partial(self.coordinator, study)):
                with pytest.raises(UserError):
                    attempt()
        return list(proposal.failing)

    def approved(
        self, study: Path, data: Path, allow: Collection[str] = ("points",), home: Home | None = None
    ) -> GatedCoordinator:
        """The coordinator of an approved study.

        Raises:
            UserError: where it is not approved.
        """
        self.proposal(study, data, allow, home).record(BY)
        return self.coordinator(study, home)

    def coordinator(self, study: Path, home: Home | None = None) -> GatedCoordinator:
        """Who asks this site by the study's name, with a gate that has begun anew."""
        site_home, agreed = home or self.home, Study.read(study)
        return GatedCoordinator(self, Gate(site_home, site_home.folder_of(agreed), ledger=self.ledger), agreed)


class GatedCoordinator(Coordinator):
    """Asks through a gate, by requests that the server's keys have signed.

    Attributes:
        gate: of the site.
        seen: replies as the carrier has seen them.
    """

    def __init__(self, hospital: Hospital, gate: Gate, study: Study) -> None:
        super().__init__(self._carried, study, hospital.name)
        self.hospital, self.gate = hospital, gate
        self.seen: list[bytes] = []

    def sealed(self, plain: bytes, signer: Identity | None = None, study: str = "") -> bytes:
        """A request as it is carried."""
        self.hospital.sent += 1
        return seal_request(plain, signer or self.hospital.server, study or self.study.digest, self.hospital.sent)

    def _carried(self, plain: bytes) -> bytes:
        reply = self.gate.answer(self.sealed(plain))
        self.seen.append(reply)
        card = self.gate.home.identity.card
        return open_reply(reply, self.hospital.server, card, question_digest(plain), study=self.study.digest)

    def classes(self) -> list[str]:
        """The class of each refusal; asserts that whoever knows the class knows all that was said."""
        words = {(str(refusal["refused"]), str(refusal["error"])) for refusal in self.refusals}
        assert len({about for about, _ in words}) == len(words), words
        assert all(set(refusal) <= {"error", "refused", "client", "round", "kind"} for refusal in self.refusals)
        return [str(refusal["refused"]) for refusal in self.refusals]


def outer(reply: bytes) -> Mapping[str, Any]:
    """What a carrier reads of a reply."""
    return header(reply)
