"""Whoever carries files between a server and a site: links, old requests, and what is left in a folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.attacks.coordinator import initial
from support.attacks.gated import GatedCoordinator, Hospital, outer
from support.attacks.hospitals import SITES, hospital, table_study

from hierfl.inference.engines.remote.files import answer_all, name_of
from hierfl.inference.engines.remote.preparation import numbered
from hierfl.inference.engines.remote.wire import encode

FORMULA = "y ~ age + sex + (1 | site)"


@pytest.fixture
def site(tmp_path: Path) -> GatedCoordinator:
    """Of an approved study."""
    north = Hospital(tmp_path / "north", SITES)
    path = north.study(table_study(tmp_path, FORMULA, hospital(120, lone=False)))
    return north.approved(path, tmp_path / "north.csv")


def said(site: GatedCoordinator, kind: str, **head: object) -> dict[str, object]:
    """The header of a request."""
    about = {"kind": kind, "round": 0, "client": "north", "counted": 0, "handshake": site.study.handshake.table()}
    return {**about, **head}


def test_links_in_an_exchange_folder_lead_nowhere(site: GatedCoordinator, tmp_path: Path) -> None:
    exchange, elsewhere = tmp_path / "exchange", tmp_path / "elsewhere"
    elsewhere.mkdir()
    requests = exchange / "north" / "requests"
    requests.mkdir(parents=True)
    request = site.sealed(encode(said(site, "prepare", step=0), {}))
    (requests / f"{name_of(request)}.request").write_bytes(request)
    private = tmp_path / "north.csv"
    before = private.read_bytes()
    (requests / "zz.request").symlink_to(private)
    (exchange / "north" / "replies").symlink_to(elsewhere)
    answer_all(exchange, "north", site.gate.answer)
    assert list(elsewhere.iterdir()) == []
    assert private.read_bytes() == before


def test_old_requests_and_later_totals_say_nothing_new(site: GatedCoordinator) -> None:
    """A replayed request has the bytes that it had, or none; totals change no more once they were told."""
    assert site.prepared()
    sent = initial(site.study, site.totals)
    request = site.sealed(encode(said(site, "round", round=1, reports=True), sent))
    first = site.gate.answer(request)
    assert outer(first)["refused"] == ""
    assert site.gate.answer(request) == first
    assert site.round(2, {**sent, "effects.at": sent["effects.at"] + 0.1}, counted=1) is not None
    again = site.gate.answer(request)
    assert again == first or outer(again)["refused"] == "answered"
    changed = [{**site.totals[0], "n": site.totals[0]["n"] + 1}, *site.totals[1:]]
    assert site.ask("hello", numbered(changed)) is None
    assert site.ask("hello", numbered(site.totals[:1])) is None
    assert site.classes()[0] == "answered"
