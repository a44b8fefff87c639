"""Who speaks to a site as its coordinator does, and says what it likes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from hierfl.experiments.federate.study import Study
from hierfl.experiments.federate.study_site import Membership
from hierfl.inference.engines.remote.preparation import numbered
from hierfl.inference.engines.remote.wire import decode, encode
from hierfl.inference.state import State


class Coordinator:
    """Asks one site.

    Args:
        answer: what the site makes of a request's plain bytes.
        study: that both have.
        client: the site's name.

    Attributes:
        asked, answered: how many requests, and how many of these had an answer.
        refusals: what was heard instead of answers, in order.
        totals: of the preparation, once there was one.
    """

    def __init__(self, answer: Callable[[bytes], bytes], study: Study, client: str) -> None:
        self.answer, self.study, self.client = answer, study, client
        self.asked = self.answered = 0
        self.refusals: list[Mapping[str, Any]] = []
        self.totals: list[State] = []

    def ask(self, kind: str, tensors: State | None = None, round: int = 0, **head: Any) -> State | None:
        """What the site sends; None where it refuses."""
        header = {"kind": kind, "round": round, "client": self.client, "counted": 0, **head}
        self.asked += 1
        reply, sent = decode(self.answer(encode({**header, "handshake": self.study.handshake.table()}, tensors or {})))
        if "error" in reply or "refused" in reply:
            self.refusals.append(reply)
            return None
        self.answered += 1
        return sent

    def sums(self, before: list[State]) -> State | None:
        """One step of the preparation, told these sums of the steps before."""
        return self.ask("prepare", numbered(before), step=len(before))

    def prepared(self, sites: int = 3, change: Callable[[int, State], State] | None = None) -> bool:
        """The preparation and hello, as if all sites were like this one.

        Args:
            sites: how many there are.
            change: what is said of a step's sums instead, from its number and honest ones.
        """
        self.totals = []
        for step in range(self.study.data.steps):
            own = self.sums(self.totals)
            if own is None:
                return False
            total = {name: value * sites for name, value in own.items()}
            self.totals.append(change(step, total) if change else total)
        return self.ask("hello", numbered(self.totals)) is not None

    def round(self, number: int, shared: State, **head: Any) -> State | None:
        """A message of a round."""
        return self.ask("round", shared, round=number, reports=True, **head)


def plain(folder: Path, study: Path, client: str, data: Path) -> Coordinator:
    """A site without a gate: what a site of hierfl 0.x is."""
    member = Membership(folder, Study.read(study), client, data.absolute())
    member.keep()
    return Coordinator(member.site().answer, member.study, client)


def initial(study: Study, totals: list[State]) -> State:
    """The values that an honest server broadcasts first."""
    from hierfl.experiments.federate.study_site import as_numbers
    from hierfl.inference.method.initial import InitialWeights

    federation, network = study.data.model(as_numbers(totals), study.loaded.cls.latent)
    method, options = study.method(network), study.options("cpu")
    del federation
    values = method.shared(InitialWeights.for_network(method.network, options.seed))
    return {name: value.detach().to(options.dtype, copy=True) for name, value in values.items()}


def doubles(values: Mapping[str, Any]) -> State:
    """Numbers as float64 tensors."""
    return {name: torch.as_tensor(value, dtype=torch.float64) for name, value in values.items()}
