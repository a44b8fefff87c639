"""Clients' own values in the host's memory."""

from __future__ import annotations

import pytest
import torch
from support.federations import blobs
from torch import Tensor

from hierfl import devices
from hierfl.inference import fit
from hierfl.inference.clients import store
from hierfl.inference.engines import plate
from hierfl.models import FedRep
from hierfl.nn.networks.build import architecture


def test_values_travel_while_the_next_plate_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What travels holds nothing until it is waited for, and the host waits once the next plate has been begun."""
    events: list[str] = []

    def spoiled(values: dict[str, Tensor]) -> dict[str, Tensor]:
        return {k: v.clone().fill_(torch.nan) if v.is_floating_point() else ~v for k, v in values.items()}

    class Receiving(devices.Receiving):
        def __init__(self, values: dict[str, Tensor]) -> None:
            super().__init__(values)
            self._right, self._values = self._values, spoiled(self._values)
            events.append("receive")

        def wait(self) -> dict[str, Tensor]:
            events.append("received")
            return self._right

    class Sending(devices.Sending):
        def __init__(self, values: dict[str, Tensor], device: torch.device) -> None:
            super().__init__(values, device)
            events.append("send")

    def done(*args: object) -> object:
        events.append("compute")
        return real(*args)

    federation = blobs([23, 7, 2, 14, 9])
    method = FedRep(architecture("mlp:5", federation))
    expected = fit(method, federation, rounds=1, chunk=2, progress=False)
    real = plate._done
    monkeypatch.setattr(plate, "_done", done)
    monkeypatch.setattr(store, "Receiving", Receiving)
    monkeypatch.setattr(store, "Sending", Sending)
    on_host = fit(method, federation, rounds=1, chunk=2, progress=False, client_state="host")
    assert events[:12] == [
        "send", "send", "compute", "receive",
        "send", "compute", "receive", "received",
        "compute", "receive", "received", "received",
    ]  # fmt: skip
    for name, value in expected.personal.items():
        assert torch.equal(on_host.personal[name], value), name
