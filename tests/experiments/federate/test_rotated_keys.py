"""Keys that change while a study runs: rotated at a site, rotated at the server, revoked."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from support.studies import FileStudy
from support.three_sites import NAMES, same, study_of, three_tables

from hierfl.errors import UserError
from hierfl.experiments.federate.study import Study
from hierfl.experiments.federate.write_keys import write_keys
from hierfl.experiments.run_folder.csv_files import read_frame
from hierfl.inference.engines.remote.keys import Identity
from hierfl.inference.engines.remote.sealed import open_reply, question_digest, seal_request
from hierfl.inference.engines.remote.wire import decode, encode, header


@pytest.fixture
def own(tmp_path: Path) -> dict[str, Path]:
    """Three sites' files."""
    return three_tables(tmp_path / "data")


def stopped_in_round_3(place: FileStudy, *, resume: bool = False) -> None:
    """The server is killed once the sites have answered round 3."""

    def answers(names: list[str]) -> None:
        place.answers(names)
        if list((place.folder / "exchange" / "north" / "requests").glob("000003-round-*")):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        place.serve(answers, resume=resume)


def rotated(place: FileStudy, name: str) -> Identity:
    """A site's or the server's new key, as hierfl federate keys --rotate makes it, and its card in study.toml."""
    home = place.folder / name
    if name == place.parties.server.name:
        place.parties.server.save(home)
    made = write_keys(home, name, rotate=True)
    if name == place.parties.server.name:
        place.parties, place.earlier = dataclasses.replace(place.parties, server=made), Identity.earlier(home)
    else:
        place.parties.sites[name] = made
    place.parties.put_into(place.study)
    return made


@pytest.mark.slow
def test_a_site_rotates_its_key_in_the_middle_of_a_study(
    own: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What the old key signs is dropped from then on, and the study ends as it would have."""
    plain = FileStudy(study_of(own, tmp_path / "a"), own, tmp_path / "plain")
    plain.serve()
    place = FileStudy(study_of(own, tmp_path / "b"), own, tmp_path / "rotated")
    stopped_in_round_3(place)
    old = place.gates["north"]
    rotated(place, "north")
    for name in NAMES:
        pin_again(place, name, "north")
        place.restart(name)
    new, place.gates["north"] = place.gates["north"], old  # its process still has the old key
    stopped_in_round_3(place, resume=True)
    assert [line for line in caplog.messages if line.startswith("the reply of north is dropped: it is not signed by")]
    place.gates["north"] = new
    place.serve(resume=True)
    same(plain, place)


def pin_again(place: FileStudy, name: str, whose: str) -> None:
    """As operations say: the line of the old card is taken out of known.toml, and the new one pinned."""
    path = place.folder / name / "known.toml"
    path.write_text("".join(line for line in path.read_text().splitlines(True) if not line.startswith(f"{whose} =")))


@pytest.mark.slow
def test_the_server_rotates_its_key_in_the_middle_of_a_study(own: dict[str, Path], tmp_path: Path) -> None:
    """Sites refuse it until they have pinned and approved again."""
    plain = FileStudy(study_of(own, tmp_path / "a"), own, tmp_path / "plain")
    plain.serve()
    place = FileStudy(study_of(own, tmp_path / "b"), own, tmp_path / "rotated")
    stopped_in_round_3(place)
    old = place.parties.server
    rotated(place, "coordinator")
    new = place.parties
    place.parties = dataclasses.replace(new, server=old)
    with pytest.raises(UserError, match="was agreed on with the server coordinator"):
        place.serve(resume=True)
    place.parties = new
    with pytest.raises(UserError):
        place.serve(resume=True, deadline=0.5)
    with pytest.raises(UserError, match="coordinator is pinned with other keys"):
        place.approve("north")
    for name in NAMES:
        pin_again(place, name, "coordinator")
        place.restart(name)
    place.serve(resume=True)
    same(plain, place)


def test_a_site_that_was_revoked_takes_no_part(
    own: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its name and card are taken out of study.toml: it is not asked, and what is left in its name is not read."""
    place = FileStudy(study_of(own, tmp_path), own, tmp_path)
    stopped_in_round_3(place)
    text = place.study.read_text()
    place.study.write_text(text.replace('    "east",\n', ""))
    with pytest.raises(UserError, match="keys.east is of no client on the roster: take the line out"):
        Study.read(place.study)
    place.parties.put_into(place.study)
    for name in NAMES[:2]:
        place.restart(name)
    with pytest.raises(UserError, match="does not have the card of"):
        place.approve("east")
    place.serve(resume=True)
    who = read_frame(place.folder / "server" / "participation.csv")
    assert who.columns.tolist() == ["round", "north", "south"]
    # a server that asks it under the old roster all the same is refused by those who have approved the new one
    place.study.write_text(text)
    study = Study.read(place.study)
    asked = encode({"kind": "scores", "round": 4, "client": "north", "handshake": study.handshake.table()}, {})
    reply = place.gates["north"].answer(seal_request(asked, place.parties.server, study.digest, 99))
    assert header(reply)["refused"] == "approval"
    about = decode(
        open_reply(
            reply, place.parties.server, place.parties.cards["north"], question_digest(asked), study=study.digest
        )
    )[0]
    assert about["refused"] == "approval"
