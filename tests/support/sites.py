"""Sites in this process, asked through bytes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from support.cancelled import Cancelled
from support.federations import blobs
from support.methods import network_for

from hierfl import Federation
from hierfl.data.outline import without_data
from hierfl.inference import Method, Run
from hierfl.inference.engines.remote.engine import RemoteEngine
from hierfl.inference.engines.remote.questions import Questions
from hierfl.inference.engines.remote.site import Site
from hierfl.inference.engines.remote.wire import Handshake
from hierfl.inference.method.capabilities import needs_everyone
from hierfl.inference.options import Options
from hierfl.inference.run.fit import Fit
from hierfl.inference.state import State

HANDSHAKE = Handshake("a study", "a method")


def own_data(federation: Federation, client: int) -> Federation:
    """One client with its own rows alone: what a site would load from its own file."""
    parts = {split: federation.indices(split)[client] for split in ("train", "validation", "test")}
    rows = torch.cat(list(parts.values())).unique()
    positions = torch.full((len(federation.x),), -1).index_copy_(0, rows, torch.arange(len(rows)))
    return dataclasses.replace(
        federation, x=federation.x[rows].clone(), y=federation.y[rows].clone(), global_test=positions[parts["test"]],
        ids=[federation.ids[client]], **{split: [positions[index]] for split, index in parts.items()},
    )  # fmt: skip


class Sites:
    """All clients of a federation, each a site with a folder of its own.

    Args:
        method: whose sites.
        federation: all of their data together, or what is known of them.
        folder: in which every site has its own.
        own: each site's data; None for those of the federation.
        new_clients: whether they send what a new client begins with.
        **options: of the fit.

    Attributes:
        asked: how many requests there were.
        sent, received: bytes to and from the sites.
    """

    def __init__(
        self, method: Method, federation: Federation, folder: Path, own: Mapping[str, Federation] | None = None,
        new_clients: bool = False, **options: Any,
    ) -> None:  # fmt: skip
        self.method, self.federation, self.folder = method, federation, folder
        self.own = own or {name: own_data(federation, j) for j, name in enumerate(federation.ids)}
        self.options, self.new_clients = Options(**options), new_clients
        self.sites: dict[str, Site] = {}
        self.asked = self.sent = self.received = 0
        self.mode = "whole" if needs_everyone(method) else "shares"
        for name in self.own:
            self.restart(name)

    def restart(self, name: str) -> None:
        """A site is begun again, from what is on its disk."""
        self.sites[name] = Site(
            self.method, self.own[name], self.options, self.folder / name, HANDSHAKE, new_clients=self.new_clients,
            roster=list(self.own),
        )  # fmt: skip

    def ask(self, requests: Mapping[str, bytes]) -> dict[str, bytes]:
        """Every request arrives, and every answer."""
        answers = {name: self.sites[name].answer(request) for name, request in requests.items()}
        self.asked += len(requests)
        self.sent += sum(map(len, requests.values()))
        self.received += sum(map(len, answers.values()))
        return answers

    def fit(self, ask: Any = None, **how: Any) -> Run:
        """The server's side."""
        server = Fit(self.method, without_data(self.federation), self.options, self.engine(ask))
        return server.run(progress=False, **how)

    def engine(self, ask: Any = None) -> Any:
        """What makes the server's engine; with masks that have cancelled, of the mode that ``mode`` says."""
        masks: Any = None
        if self.options.masked:
            questions = Questions(list(self.own), ask or self.ask, HANDSHAKE, torch.device("cpu"))
            masks = Cancelled(questions, self.mode, self.options.mask_groups, str(self.options.seed))
        return partial(
            RemoteEngine, clients=list(self.own), ask=ask or self.ask, handshake=HANDSHAKE,
            new_clients=self.new_clients, masks=masks,
        )  # fmt: skip

    def values(self, part: str) -> State:
        """What the sites have, as a plate would: {name: (J, ...)}."""
        fitted = [getattr(self.sites[name].fitted(), part) for name in self.own]
        return {k: torch.cat([values[k] for values in fitted]) for k in fitted[0]}


#: four rounds, plates of one client
HOW = {"rounds": 4, "participation": 0.7, "draws": 3, "dtype": torch.float64, "chunk": 1}


def ready(cls: type[Method], settings: dict, folder: Path, **how: object) -> Sites:
    """Four sites of a small classification."""
    federation = blobs([23, 7, 2, 14])
    return Sites(cls(network_for(cls, federation), **settings), federation, folder, **{**HOW, **how})


def same(first: Run, ones: Sites, other: Run, others: Sites, but: str = "seconds") -> None:
    """To the bit."""
    for name, value in first.shared.items():
        assert torch.equal(other.shared[name], value), name
    for part in ("personal", "copies"):
        for name, value in ones.values(part).items():
            assert torch.equal(others.values(part)[name], value), name
    left_out = {"seconds", but}
    rows = [[{k: v for k, v in row.items() if k not in left_out} for row in run.evaluations] for run in (first, other)]
    assert json.dumps(rows[0]) == json.dumps(rows[1])
    assert first.participation.equals(other.participation)
