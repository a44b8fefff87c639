"""Whoever carries files between a server and a site: links, old requests, and what is left in a folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.attacks.coordinator import initial
from support.attacks.gated import GatedCoordinator, Hospital, outer
from support.attacks.hospitals import SITES, hospital, table_study
from support.masked import networks

from hierfl.experiments.run_folder.csv_files import read_frame
from hierfl.inference.engines.remote import files
from hierfl.inference.engines.remote.files import answer_all, name_of
from hierfl.inference.engines.remote.preparation import numbered
from hierfl.inference.engines.remote.wire import encode, header

FORMULA = "y ~ age + sex + (1 | site)"


@pytest.fixture
def site(tmp_path: Path) -> GatedCoordinator:
    """Of an approved study."""
    north = Hospital(tmp_path / "north", SITES)
    path = north.study(table_study(tmp_path, FORMULA, hospital(120, lone=False)))
    return north.approved(path, tmp_path / "north.csv")


def request_header(site: GatedCoordinator, kind: str, **head: object) -> dict[str, object]:
    """The header of a request."""
    about = {"kind": kind, "round": 0, "client": "north", "counted": 0, "handshake": site.study.handshake.table()}
    return {**about, **head}


def test_links_in_an_exchange_folder_lead_nowhere(site: GatedCoordinator, tmp_path: Path) -> None:
    exchange, elsewhere = tmp_path / "exchange", tmp_path / "elsewhere"
    elsewhere.mkdir()
    requests = exchange / "north" / "requests"
    requests.mkdir(parents=True)
    request = site.sealed(encode(request_header(site, "prepare", step=0), {}))
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
    request = site.sealed(encode(request_header(site, "round", round=1, reports=True), sent))
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


@pytest.mark.cpu(3, "a study of four sites, with keys, shares and signatures")
def test_replies_and_requests_that_are_played_again_are_in_no_masked_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Keys, shares, signatures and masked answers of another site or question: one site's are lost, and no more."""
    monkeypatch.setattr(files, "POLL", 0.01)
    file_study, replayed = networks(tmp_path, rounds=3, evaluate_every=3), set[str]()
    requests, replies = (tmp_path / "exchange" / "h03" / part for part in ("requests", "replies"))
    old: dict[str, bytes] = {}
    keys = tmp_path / "h03" / "studies"

    def answers(names: list[str]) -> None:
        asked = {path.stem: path.read_bytes() for path in requests.glob("*.request")}
        file_study.answers(names)
        (stem,) = asked
        number, kind = stem.split("-")[:2]
        own, theirs = replies / f"{stem}.reply", list((tmp_path / "exchange" / "h02" / "replies").glob("*.reply"))
        if kind not in replayed and (int(number), kind) in ((1, "sign"), (1, "open"), (2, "round")):
            replayed.add(kind)
            own.write_bytes(old["round"] if kind == "round" else theirs[0].read_bytes())
        elif number == "000003" and kind == "round" and "old" not in replayed:
            replayed.add("old")
            (state,) = keys.glob("*/masks/epoch.json")
            before = state.read_bytes()
            for request in (old[f"request {name}"] for name in ("keys", "shares", "round", "sign", "open")):
                assert "masked" not in header(file_study.gates["h03"].answer(request))
            assert state.read_bytes() == before
        if number == "000001" and kind == "round":
            old["round"] = own.read_bytes()
        for data in asked.values():
            old.setdefault(f"request {kind}", data)

    file_study.serve(answers)
    assert replayed == {"sign", "open", "round", "old"}
    who = read_frame(tmp_path / "server" / "participation.csv")
    assert who[["h00", "h01", "h02"]].to_numpy().tolist() == [[1, 1, 1]] * 3
    assert who["h03"].tolist() == [1, 2, 1]
    assert "the reply of h03 is dropped: another client has answered" in caplog.text
    assert "the reply of h03 is dropped: it answers another question" in caplog.text
