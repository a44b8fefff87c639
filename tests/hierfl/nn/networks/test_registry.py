"""Kinds of network are listed as they are written."""

from __future__ import annotations

from hierfl.nn.networks.registry import KINDS, NETWORKS


def test_networks_are_listed_as_they_are_written() -> None:
    assert [kind.written.partition(":")[0] for kind in KINDS.values()] == list(KINDS)
    assert list(NETWORKS)[: len(KINDS)] == [kind.written for kind in KINDS.values()]
