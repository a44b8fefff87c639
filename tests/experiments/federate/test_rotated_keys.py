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


def stopped_in_round_3(file_study: FileStudy, *, resume: bool = False) -> None:
    """The server is killed once the sites have answered round 3."""

    def answers(names: list[str]) -> None:
        file_study.answers(names)
        if list((file_study.folder / "exchange" / "north" / "requests").glob("000003-round-*")):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        file_study.serve(answers, resume=resume)


def rotated(file_study: FileStudy, name: str) -> Identity:
    """A site's or the server's new key, as hierfl federate keys --rotate makes it, and its card in study.toml."""
    home = file_study.folder / name
    if name == file_study.parties.server.name:
        file_study.parties.server.save(home)
    made = write_keys(home, name, rotate=True)
    if name == file_study.parties.server.name:
        file_study.parties, file_study.earlier = (
            dataclasses.replace(file_study.parties, server=made),
            Identity.earlier(home),
        )
    else:
        file_study.parties.sites[name] = made
    file_study.parties.put_into(file_study.study)
    return made


@pytest.mark.slow
def test_a_site_rotates_its_key_in_the_middle_of_a_study(
    own: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What the old key signs is dropped from then on, and the study ends as it would have."""
    plain = FileStudy(study_of(own, tmp_path / "a"), own, tmp_path / "plain")
    plain.serve()
    file_study = FileStudy(study_of(own, tmp_path / "b"), own, tmp_path / "rotated")
    stopped_in_round_3(file_study)
    old = file_study.gates["north"]
    rotated(file_study, "north")
    for name in NAMES:
        pin_again(file_study, name, "north")
        file_study.restart(name)
    new, file_study.gates["north"] = file_study.gates["north"], old  # its process still has the old key
    stopped_in_round_3(file_study, resume=True)
    assert [line for line in caplog.messages if line.startswith("the reply of north is dropped: it is not signed by")]
    file_study.gates["north"] = new
    file_study.serve(resume=True)
    same(plain, file_study)


def pin_again(file_study: FileStudy, name: str, whose: str) -> None:
    """As operations say: the line of the old card is taken out of known.toml, and the new one pinned."""
    path = file_study.folder / name / "known.toml"
    path.write_text("".join(line for line in path.read_text().splitlines(True) if not line.startswith(f"{whose} =")))


@pytest.mark.slow
def test_the_server_rotates_its_key_in_the_middle_of_a_study(own: dict[str, Path], tmp_path: Path) -> None:
    """Sites refuse it until they have pinned and approved again."""
    plain = FileStudy(study_of(own, tmp_path / "a"), own, tmp_path / "plain")
    plain.serve()
    file_study = FileStudy(study_of(own, tmp_path / "b"), own, tmp_path / "rotated")
    stopped_in_round_3(file_study)
    old = file_study.parties.server
    rotated(file_study, "coordinator")
    new = file_study.parties
    file_study.parties = dataclasses.replace(new, server=old)
    with pytest.raises(UserError, match="was agreed on with the server coordinator"):
        file_study.serve(resume=True)
    file_study.parties = new
    with pytest.raises(UserError):
        file_study.serve(resume=True, deadline=0.5)
    with pytest.raises(UserError, match="coordinator is pinned with other keys"):
        file_study.approve("north")
    for name in NAMES:
        pin_again(file_study, name, "coordinator")
        file_study.restart(name)
    file_study.serve(resume=True)
    same(plain, file_study)


def test_a_site_that_was_revoked_takes_no_part(
    own: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its name and card are taken out of study.toml: it is not asked, and what is left in its name is not read."""
    file_study = FileStudy(study_of(own, tmp_path), own, tmp_path)
    stopped_in_round_3(file_study)
    text = file_study.study.read_text()
    file_study.study.write_text(text.replace('    "east",\n', ""))
    with pytest.raises(UserError, match="keys.east is of no client on the roster: take the line out"):
        Study.read(file_study.study)
    file_study.parties.put_into(file_study.study)
    for name in NAMES[:2]:
        file_study.restart(name)
    with pytest.raises(UserError, match="does not have the card of"):
        file_study.approve("east")
    file_study.serve(resume=True)
    who = read_frame(file_study.folder / "server" / "participation.csv")
    assert who.columns.tolist() == ["round", "north", "south"]
    # a server that asks it under the old roster all the same is refused by those who have approved the new one
    file_study.study.write_text(text)
    study = Study.read(file_study.study)
    asked = encode({"kind": "scores", "round": 4, "client": "north", "handshake": study.handshake.table()}, {})
    reply = file_study.gates["north"].answer(seal_request(asked, file_study.parties.server, study.digest, 99))
    assert header(reply)["refused"] == "approval"
    about = decode(
        open_reply(
            reply,
            file_study.parties.server,
            file_study.parties.cards["north"],
            question_digest(asked),
            study=study.digest,
        )
    )[0]
    assert about["refused"] == "approval"
