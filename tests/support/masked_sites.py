"""Sites of masked sums in this process: they add what a test says, and may be away at any step."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from support.sites import HANDSHAKE

from hierfl.inference.engines.remote.keys import Identity
from hierfl.inference.engines.remote.masks.claims import Claims
from hierfl.inference.engines.remote.masks.parts import Contribution, Mode, Total
from hierfl.inference.engines.remote.masks.server import MaskedSums
from hierfl.inference.engines.remote.masks.site import MaskedSite
from hierfl.inference.engines.remote.questions import Questions
from hierfl.inference.engines.remote.refusals import Refused
from hierfl.inference.engines.remote.wire import encode, header
from hierfl.inference.state import State, StateForm, form_of_state

#: made once: keys take no time, and names sort as letters do
IDENTITIES = [Identity.make(f"s{index:03d}") for index in range(12)]


class Memory:
    """Claims in memory: what an account's ledger is to a folder that was restored."""

    def __init__(self) -> None:
        self.first_values: dict[str, str] = {}

    def claim(self, what: str, value: str) -> None:
        """See :class:`~hierfl.inference.engines.remote.masks.claims.Claims`."""
        if self.first_values.setdefault(what, value) != value:
            raise Refused("another answer was given before", "answered")


class Behind:
    """What masks stand before, in a test."""

    handshake, patient, site, basis = HANDSHAKE, False, "the site behind", ""

    def answer(self, request: bytes) -> bytes:
        """It was reached without masks."""
        return encode({"round": 0, "client": header(request)["client"], "behind": True}, {})


class Masked:
    """Sites with masks and their server.

    Args:
        folder: in which everybody has one.
        values: what each site adds, {name: tensors}.
        mode, **how: of both ends.
        names: who is on the roster; None for as many as there are values.

    Attributes:
        away: by kind of request, who does not hear it; by "-kind", whose answer is lost.
        said: requests and answers by name, in their order.
        claims: of each site.
        change: what is done to a request on its way, from its name and bytes.
    """

    def __init__(self, folder: Path, values: Mapping[str, State], *, mode: Mode = "whole", **how: Any) -> None:
        self.folder, self.values, self.mode, self.how = folder, dict(values), mode, how
        self.identities = {identity.name: identity for identity in IDENTITIES if identity.name in values}
        self.identities |= {name: Identity.make(name) for name in values if name not in self.identities}
        self.cards = {name: identity.card for name, identity in self.identities.items()}
        self.away: dict[str, Collection[str]] = {}
        self.transcript: list[tuple[str, bytes, bytes]] = []
        self.claims: dict[str, Claims | None] = dict.fromkeys(values)
        self.flags: dict[str, dict[str, bool]] = {}
        self.change: Callable[[str, bytes], bytes] = lambda name, request: request
        self.sites = {name: self.site(name) for name in values}
        self.restart()

    @property
    def form(self) -> StateForm:
        """Of the sum."""
        return form_of_state(next(iter(self.values.values())))

    def site(self, name: str, folder: Path | None = None) -> MaskedSite:
        """A site, from what is on its disk."""
        both = {key: value for key, value in self.how.items() if key in ("quorum", "groups")}
        return MaskedSite(
            Behind(), self.identities[name], self.cards, folder or self.folder / name,
            lambda plain: self.contribution(name, plain), mode=self.mode, claims=self.claims[name], **both,
        )  # fmt: skip

    def contribution(self, name: str, plain: bytes) -> Contribution:
        """What a site adds."""
        state, head = self.values[name], header(plain)
        adds = name in head.get("adding", [name])
        flags = {"reported": bool(state) and adds, **self.flags.get(name, {})}
        return Contribution(self.form, state if flags["reported"] else {}, **flags)

    def restart(self, **how: Any) -> MaskedSums:
        """The server, from what is on its disk."""
        self.how |= how
        self.questions = Questions(list(self.identities), self.ask, HANDSHAKE, torch.device("cpu"))
        self.server = MaskedSums(self.questions, self.cards, self.folder / "server", mode=self.mode, **self.how)
        return self.server

    def ask(self, requests: Mapping[str, bytes]) -> dict[str, bytes]:
        """Requests on their way to sites, and answers on theirs back."""
        answers = {}
        for name, request in requests.items():
            kind = header(request)["kind"]
            if name in self.away.get(kind, ()):
                continue
            asked = self.change(name, request)
            answer = self.sites[name].answer(asked)
            self.transcript.append((name, asked, answer))
            if name not in self.away.get(f"-{kind}", ()):
                answers[name] = answer
        return answers

    def sum(self, number: int = 1, kind: str = "round", own: Any = None, **about: Any) -> Total | None:
        """One question, of values that are the round's, or ``about["values"]``."""
        tensors = {"shared": torch.tensor([0.0, about.pop("values", float(number))])}
        return self.server.ask({"kind": kind, "round": number, **about}, tensors, self.form, own)

    def rows(self, kind: str = "round") -> list[tuple[str, bytes]]:
        """Masked answers that were given."""
        return [(name, answer) for name, request, answer in self.transcript if header(request)["kind"] == kind]


def numbers(sites: int, size: int = 5, seed: int = 0) -> dict[str, State]:
    """Numbers of both signs and of many sizes, different at each site."""
    made = torch.Generator().manual_seed(seed)
    return {
        f"s{index:03d}": {
            "n": torch.randint(1, 50, (), generator=made),
            "x": torch.randn(size, generator=made, dtype=torch.float64) * 10.0 ** torch.arange(size).sub(2),
            "y": torch.randn((2, size), generator=made),
        }
        for index in range(sites)
    }  # fmt: skip


def plain(values: Mapping[str, State], names: Collection[str] | None = None) -> State:
    """What they add up to."""
    states = [values[name] for name in values if names is None or name in names]
    return {name: sum((state[name] for state in states[1:]), states[0][name]) for name in states[0]}


def altered(request: bytes, **masks: Any) -> bytes:
    """A request whose entry ``masks`` says something else."""
    from hierfl.inference.engines.remote.wire import decode

    head, tensors = decode(request)
    return encode(json.loads(json.dumps({**head, "masks": {**head["masks"], **masks}})), tensors)
