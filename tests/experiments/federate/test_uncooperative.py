"""Sites that refuse, leave, are slow or come twice, and folders that are links: nothing waits for ever."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.failing import HANGS, SMALL, Clock, Worker, quickly, study_in, wait_for, working
from support.parties import Parties
from support.studies import FileStudy, formula_study, patients, write_tables

from hierfl.errors import UserError
from hierfl.experiments.federate import work
from hierfl.experiments.federate.contributions import read_status
from hierfl.experiments.federate.guard.approve import propose
from hierfl.experiments.federate.guard.home import has_ended
from hierfl.experiments.federate.guard.replies import Refused
from hierfl.experiments.federate.progress import progress
from hierfl.experiments.federate.study_site import SiteRows
from hierfl.experiments.run_folder.csv_files import read_frame
from hierfl.file_lock import Busy
from hierfl.inference.engines.remote.wire import header


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    quickly(monkeypatch)


@pytest.mark.parametrize("kind", ["version", "data", "policy"])
def test_a_refusal_ends_what_needs_all_at_once(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """Without a deadline, and though a third site never answers; the line says who, and the class alone."""
    file_study = study_in(tmp_path)
    gate = file_study.gates["h01"]
    if kind == "version":
        handshake = replace(gate.site.handshake, torch="1.0")
        gate.site.handshake = gate.site.desk.handshake = handshake
    elif kind == "data":
        whole = SiteRows.sums

        def sums(self: SiteRows, before: Any) -> Any:
            if self is gate.site.data:
                raise UserError("y holds -777")
            return whole(self, before)

        monkeypatch.setattr(SiteRows, "sums", sums)
    else:
        gate._charge = refuse
    begun = time.monotonic()
    words = rf"h01 refuses \({kind}\): its own log says why; go on when it answers"
    with working(file_study, without=("h02",)), pytest.raises(UserError, match=words):
        file_study.serve(lambda names: None, deadline=HANGS)  # the others are not waited for that long
    assert time.monotonic() - begun < HANGS / 2
    refusal = read_status(tmp_path / "server")["refusals"]["h01"]
    assert (refusal["refused"], refusal["kind"]) == (kind, "prepare")
    assert f"h01 refuses ({kind})" in "\n".join(progress(tmp_path / "server"))
    assert "777" not in (tmp_path / "server" / "status.json").read_text()


def refuse(*given: object) -> Any:
    """A gate whose policy refuses all."""
    raise Refused("policy", "a test says so")


def test_a_study_that_has_ended_asks_nobody_again(tmp_path: Path) -> None:
    """Neither the server that is resumed waits for its sites, nor is it approved anew."""
    file_study = study_in(tmp_path)
    file_study.serve()
    with pytest.raises(UserError, match="the study has ended, all its sites have heard it"):
        file_study.serve(lambda names: None, resume=True)
    gate = file_study.gates["h01"]
    with pytest.raises(UserError, match="has ended at this site, and asks nothing more"):
        propose(gate.home, file_study.study, None)


def test_who_left_the_roster_hears_the_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its process ends with a clear line, also when it begins again."""
    own = write_tables(patients(4), tmp_path / "data")
    parties = Parties.of(own)
    text = (study := formula_study(tmp_path, own, **SMALL)).read_text()
    file_study = FileStudy(study, own, tmp_path, parties)

    def stops(names: list[str]) -> None:
        if list((tmp_path / "exchange" / "h00" / "requests").glob("000001-round-*")):
            raise KeyboardInterrupt

    with working(file_study) as workers:
        with pytest.raises(KeyboardInterrupt):
            file_study.serve(stops)
        file_study.study.write_text(text.replace('    "h03",\n', ""))
        parties.put_into(file_study.study)
        for name in own:
            if name != "h03":
                workers[name].stop.set()
                workers[name].thread.join()
                file_study.restart(name)
        again = {name: Worker(file_study, name) for name in own if name != "h03"}
        file_study.serve(lambda names: None, resume=True)
        wait_for(lambda: workers["h03"].ended and all(worker.ended for worker in again.values()))
    gate = file_study.gates["h03"]
    assert has_ended(gate.folder)
    assert gate.site.closed == "all rounds are done"
    assert "the study has ended without this site: all rounds are done" in caplog.messages
    assert "without this site (all rounds are done)" in work.closing_words(gate.site.closed, tmp_path)
    assert read_status(tmp_path / "server")["known"] == sorted(own)
    file_study.files = {name: own[name] for name in own if name != "h03"}
    assert type(gate)(gate.home, gate.folder, ledger=gate.ledger).ended


def test_two_processes_of_one_name(tmp_path: Path) -> None:
    file_study = study_in(tmp_path)
    (tmp_path / "exchange" / "h00").mkdir(parents=True)
    with working(file_study, without=("h01", "h02")) as workers:
        wait_for((tmp_path / "exchange" / "h00" / work.LOCK).exists)
        second = Worker(file_study, "h00")
        second.thread.join(HANGS)
        assert isinstance(second.error, Busy)
        assert "another process answers as h00" in str(second.error)
        assert workers["h00"].thread.is_alive()


@pytest.mark.parametrize("part", ["h00", "h00/requests", "h00/replies"])
def test_a_folder_that_is_a_link_is_not_followed(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:  # fmt: skip
    """The server begins with one line; a link that comes later is not written through, and the deadline is kept."""
    file_study = study_in(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    link = tmp_path / "exchange" / part
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(elsewhere)
    with pytest.raises(UserError, match="is a link or a file, and no folder: it is not followed"):
        file_study.serve(lambda names: None)
    link.unlink()

    clock = Clock(monkeypatch)

    def links(names: list[str]) -> None:
        if not link.is_symlink():
            link.rename(tmp_path / "moved")
            link.symlink_to(elsewhere)
        if names == ["h00"]:
            clock.forward(2 * HANGS)

    begun = time.monotonic()
    shutil.rmtree(tmp_path / "server")
    with working(file_study), pytest.raises(UserError, match="2 of 3 sites have sent"):
        file_study.serve(links, deadline=HANGS)
    assert time.monotonic() - begun < HANGS
    assert not list(elsewhere.iterdir())
    assert [line for line in caplog.messages if "it is not followed; it is tried again" in line]


def test_a_slow_site_misses_the_round_and_takes_part_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """It answers round 2 when round 3 has been asked."""
    file_study, clock = study_in(tmp_path, rounds=4), Clock(monkeypatch)

    def asked(number: int) -> bool:
        return any((tmp_path / "exchange" / "h00" / "requests").glob(f"{number:06d}-round-*"))

    def slow(request: bytes) -> None:
        if (header(request)["kind"], header(request)["round"]) == ("round", 2):
            wait_for(lambda: asked(3))

    def waiting(names: list[str]) -> None:
        if names == ["h01"] and asked(2):
            clock.forward(2 * HANGS)

    begun = time.monotonic()
    with working(file_study, h01=slow) as workers:
        file_study.serve(waiting, deadline=HANGS)
        wait_for(lambda: all(worker.ended for worker in workers.values()))
    assert time.monotonic() - begun < HANGS
    who = read_frame(tmp_path / "server" / "participation.csv")
    assert who["h01"].tolist()[1] == 2
    assert who["h00"].tolist()[1] == 1
