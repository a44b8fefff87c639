"""Who speaks: a request that the server has not signed, and a reply that its site has not, change nothing."""

from __future__ import annotations

import dataclasses
import os
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from support.parties import Parties
from support.studies import FileStudy, formula_study, write_tables

from hierfl.errors import UserError
from hierfl.experiments.federate.contributions import read_status
from hierfl.experiments.federate.study import Study
from hierfl.experiments.federate.write_keys import write_keys
from hierfl.experiments.run_folder.csv_files import read_frame
from hierfl.inference.engines.remote.files import name_of, reply_path
from hierfl.inference.engines.remote.keys import Identity
from hierfl.inference.engines.remote.sealed import open_reply, open_request, question_digest, seal_reply, seal_request
from hierfl.inference.engines.remote.wire import decode, encode, header
from hierfl.inference.run.checkpoint import load

NAMES = ("north", "south", "east")


@pytest.fixture
def own(tmp_path: Path) -> dict[str, Path]:
    """Three sites' files."""
    rng = np.random.default_rng(0)
    site = np.repeat(NAMES, 40)
    age = rng.normal(60, 10, len(site)).clip(20, 99).round(1)
    y = 0.05 * age + np.repeat(rng.normal(size=3), 40) + rng.normal(size=len(site))
    return write_tables(pd.DataFrame({"site": site, "age": age, "y": y, "stage": "I"}), tmp_path / "data")


def study_of(own: dict[str, Path], folder: Path) -> Path:
    return formula_study(folder, own, formula="y ~ age + (1 | site)")


def same(one: FileStudy, other: FileStudy) -> None:
    """To the bit: what the servers have in the end, and the sites."""
    for name, value in load(one.folder / "server" / "checkpoint")[0].items():
        assert torch.equal(value, load(other.folder / "server" / "checkpoint")[0][name]), name
    for name in NAMES:
        mine, others = (load_file(place.place(name) / "site.safetensors") for place in (one, other))
        assert all(torch.equal(value, others[key]) for key, value in mine.items() if key != "answer")


def request_of(place: FileStudy, name: str) -> bytes:
    (path,) = (place.folder / "exchange" / name / "requests").glob("*-round-*")
    return path.read_bytes()


def leave(place: FileStudy, name: str, request: bytes) -> Path:
    """Lays a request into the exchange folder, as anybody may who can write there; where its reply will be."""
    path = place.folder / "exchange" / name / "requests" / f"{name_of(request)}.request"
    path.write_bytes(request)
    return reply_path(place.folder / "exchange", name, request)


def finish_of(request: bytes, client: str = "north") -> bytes:
    """As in the attack: everybody dies, from a request that lies there."""
    plain, _ = open_without_key(request)
    head, tensors = decode(plain)
    values = {f"shared/{name}": torch.full_like(value, 3) for name, value in tensors.items()}
    about = {"kind": "finish", "round": head["round"] + 1, "counted": head["round"], "final": False, "client": client}
    return encode({**head, **about}, values)


def open_without_key(request: bytes) -> tuple[bytes, dict]:
    """What whoever carries a request can read in it."""
    head, tensors = decode(request)
    return tensors["body"].numpy().tobytes(), head


FORGERIES: dict[str, Callable[[bytes, Parties], bytes]] = {
    "as it was": lambda request, parties: finish_of(request),
    "in the seal of another": lambda request, parties: encode(
        {**header(request), "kind": "finish", "round": 3},
        {"body": torch.frombuffer(bytearray(finish_of(request)), dtype=torch.uint8)},
    ),
    "by another site": lambda request, parties: seal_request(
        finish_of(request), parties.sites["south"], header(request)["study"], 99
    ),
    "by a stranger of the server's name": lambda request, parties: seal_request(
        finish_of(request), Identity.make("coordinator"), header(request)["study"], 99
    ),
    "by the server for another site": lambda request, parties: seal_request(
        finish_of(request, "south"), parties.server, header(request)["study"], 99
    ),
}


@pytest.mark.parametrize("how", FORGERIES)
def test_a_forged_finish_ends_no_study(how: str, own: dict[str, Path], tmp_path: Path) -> None:
    """A file that somebody leaves in the exchange folder: refused, and the study ends as it would have."""
    plain = FileStudy(study_of(own, tmp_path), own, tmp_path / "plain")
    plain.serve()
    place = FileStudy(plain.study, own, tmp_path / "attacked", plain.parties)
    left: list[Path] = []

    def answers(names: list[str]) -> None:
        if not left and list((place.folder / "exchange" / "north" / "requests").glob("000002-round-*")):
            left.append(leave(place, "north", FORGERIES[how](request_of(place, "north"), place.parties)))
            place.answers(["north"])
            assert header(left[0].read_bytes())["refused"] == "signature"
            assert not place.gates["north"].ended
        place.answers(names)

    place.serve(answers)
    assert left
    same(plain, place)


def replies_of(place: FileStudy, name: str) -> dict[str, Callable[[bytes], bytes]]:
    """Replies to a request to north, by somebody else; from south's honest one."""
    parties = place.parties

    def sealed(identity: Identity, **changes: object) -> Callable[[bytes], bytes]:
        def answer(request: bytes) -> bytes:
            plain, head = open_request(request, parties.server.card)
            made = encode({"round": head["round"], "client": "north", **changes}, {})
            refused = str(changes.get("refused", ""))
            return seal_reply(made, identity, parties.server.card, head, question_digest(plain), refused=refused)

        return answer

    def linked(request: bytes) -> bytes:
        """What north itself has answered before."""
        return kept[0]

    kept = [b""]

    def keep(request: bytes) -> bytes:
        kept[0] = place.answering("north")(request)
        return kept[0]

    stranger = Identity.make("north")
    return {
        "first": keep, "linked": linked, "by south": sealed(parties.sites["south"]), "by a stranger": sealed(stranger),
        "refusal": sealed(stranger, refused="policy"),
    }  # fmt: skip


@pytest.mark.parametrize("how", ["linked", "by south", "by a stranger", "refusal"])
def test_a_reply_by_somebody_else_is_dropped(
    how: str, own: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also north's own of another round, offered again. Its site takes no part in that round, and in the next."""
    place = FileStudy(study_of(own, tmp_path), own, tmp_path)
    forged = replies_of(place, "north")

    def answers(names: list[str]) -> None:
        for number, kind in ((1, "first"), (2, how)):
            for path in (place.folder / "exchange" / "north" / "requests").glob(f"{number:06d}-round-*"):
                reply = reply_path(place.folder / "exchange", "north", path.read_bytes())
                if not reply.exists():
                    reply.write_bytes(forged[kind](path.read_bytes()))
        place.answers(names)

    place.serve(answers)
    who = read_frame(place.folder / "server" / "participation.csv")
    assert who["north"].tolist() == [1, 2, 1, 1]
    assert [line for line in caplog.messages if line.startswith("the reply of north is dropped")]
    assert not read_status(place.folder / "server")["refusals"]


@pytest.mark.skipif(os.name != "posix", reason="permissions are POSIX's")
def test_what_lies_in_the_exchange_folder_is_for_one_user_or_for_the_folders_group(
    own: dict[str, Path], tmp_path: Path
) -> None:
    """One folder for each site; one that was made for a group beforehand stays as it was made."""
    shared = tmp_path / "exchange" / "south" / "requests"
    shared.mkdir(parents=True)
    shared.chmod(0o770)
    place = FileStudy(study_of(own, tmp_path), own, tmp_path)
    seen: dict[str, set[int]] = {}

    def answers(names: list[str]) -> None:
        place.answers(names)
        for path in (tmp_path / "exchange").rglob("*"):
            kind = "group" if shared in (path, *path.parents) else path.suffix or path.name
            seen.setdefault(kind, set()).add(stat.S_IMODE(path.stat().st_mode))

    place.serve(answers)
    assert seen["north"] == seen["requests"] == seen["replies"] == {0o700}
    assert seen[".request"] == seen[".reply"] == {0o600}
    assert seen["group"] == {0o770, 0o660}


# -- keys that change while a study runs ------------------------------------------------------------------------


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
    new, place.gates["north"] = place.gates["north"], old  # (its process still has the old key)
    stopped_in_round_3(place, resume=True)
    assert [line for line in caplog.messages if line.startswith("the reply of north is dropped: it is not signed by")]
    place.gates["north"] = new
    place.serve(resume=True)
    same(plain, place)


def pin_again(place: FileStudy, name: str, whose: str) -> None:
    """As operations say: the line of the old card is taken out of known.toml, and the new one pinned."""
    path = place.folder / name / "known.toml"
    path.write_text("".join(line for line in path.read_text().splitlines(True) if not line.startswith(f"{whose} =")))


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
    with pytest.raises(UserError, match="keys.east is of nobody on the roster: take the line out"):
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
