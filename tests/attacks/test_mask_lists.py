"""Lists of survivors: a site signs one, and nothing opens without most."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.masked import Coordinator, Seen, Snapshot, fewer, networks, until, watched

from hierfl.inference.engines.remote.keys import Identity


@pytest.fixture(scope="module")
def opening(tmp_path_factory: pytest.TempPathFactory) -> tuple[Snapshot, list[Seen]]:
    """A network of four sites, whose rounds count without one of them: all have signed, and are asked to open."""
    file_study = networks(tmp_path_factory.mktemp("network") / "open")
    seen = watched(file_study)
    return Snapshot(file_study, until(file_study, "open")), seen


def sign_request(seen: list[Seen]) -> dict[str, Any]:
    """Header of what the first site was asked to sign."""
    return next(head for name, head, *_ in seen if (name, head["kind"]) == ("h00", "sign"))


def test_a_site_signs_one_list_also_from_a_restored_folder(opening: tuple[Snapshot, list[Seen]]) -> None:
    """Two sums of one round that differ by a site would show its message; the account remembers the first list."""
    file_study, head = opening[0].restored(), sign_request(opening[1])
    server = Coordinator(file_study)
    assert server.refused("h00", fewer(head, 3)) == "answered"
    assert server.refused("h00", fewer(head, 2)) == "policy"
    assert server.refused("h00", head) == ""
    path = file_study.site_folder("h00") / "masks" / "epoch.json"
    older = json.loads(path.read_text())
    assert older["slots"]["0"]["survivors"]
    older["slots"]["0"]["survivors"] = ""
    path.write_text(json.dumps(older))
    file_study.restart("h00")
    assert server.refused("h00", fewer(head, 3)) == "answered"
    assert server.refused("h00", head) == ""


def test_nothing_opens_without_two_thirds_of_signatures(opening: tuple[Snapshot, list[Seen]]) -> None:
    asked, server = opening[0].asked, Coordinator(opening[0].restored())
    head, tensors = asked["h00"]
    signatures = head["masks"]["signatures"]
    assert len(signatures) >= 3
    few: dict[str, Any] = dict(list(signatures.items())[:2])
    other = Identity.make("h03")
    for given in (few, {**few, "h03": other.sign(b"anything").hex()}):
        reply_head, answer = server.ask("h00", {**head, "masks": {**head["masks"], "signatures": given}}, tensors)
        assert reply_head.get("refused")
        assert not answer
    assert server.refused("h00", head, tensors) == ""
