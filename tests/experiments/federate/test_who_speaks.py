"""Who speaks: a request that the server has not signed, and a reply that its site has not, change nothing."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.parties import Parties
from support.studies import FileStudy
from support.three_sites import same, study_of, three_tables

from hierfl.experiments.federate.contributions import read_status
from hierfl.experiments.run_folder.csv_files import read_frame
from hierfl.inference.engines.remote.files import name_of, reply_path
from hierfl.inference.engines.remote.keys import Identity
from hierfl.inference.engines.remote.sealed import open_request, question_digest, seal_reply, seal_request
from hierfl.inference.engines.remote.wire import decode, encode, header


@pytest.fixture
def own(tmp_path: Path) -> dict[str, Path]:
    """Three sites' files."""
    return three_tables(tmp_path / "data")


def request_of(file_study: FileStudy, name: str) -> bytes:
    (path,) = (file_study.folder / "exchange" / name / "requests").glob("*-round-*")
    return path.read_bytes()


def leave(file_study: FileStudy, name: str, request: bytes) -> Path:
    """Lays a request into the exchange folder, as anybody may who can write there; where its reply will be."""
    path = file_study.folder / "exchange" / name / "requests" / f"{name_of(request)}.request"
    path.write_bytes(request)
    return reply_path(file_study.folder / "exchange", name, request)


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


@pytest.mark.parametrize(
    "how", [how if not number else pytest.param(how, marks=pytest.mark.slow) for number, how in enumerate(FORGERIES)]
)
def test_a_forged_finish_ends_no_study(how: str, own: dict[str, Path], tmp_path: Path) -> None:
    """A file that somebody leaves in the exchange folder: refused, and the study ends as it would have."""
    plain = FileStudy(study_of(own, tmp_path), own, tmp_path / "plain")
    plain.serve()
    file_study = FileStudy(plain.study, own, tmp_path / "attacked", plain.parties)
    left: list[Path] = []

    def answers(names: list[str]) -> None:
        if not left and list((file_study.folder / "exchange" / "north" / "requests").glob("000002-round-*")):
            left.append(leave(file_study, "north", FORGERIES[how](request_of(file_study, "north"), file_study.parties)))
            file_study.answers(["north"])
            assert header(left[0].read_bytes())["refused"] == "signature"
            assert not file_study.gates["north"].ended
        file_study.answers(names)

    file_study.serve(answers)
    assert left
    same(plain, file_study)


def replies_of(file_study: FileStudy, name: str) -> dict[str, Callable[[bytes], bytes]]:
    """Replies to a request to north, by somebody else; from south's honest one."""
    parties = file_study.parties

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
        kept[0] = file_study.answering("north")(request)
        return kept[0]

    stranger = Identity.make("north")
    return {
        "first": keep, "linked": linked, "by south": sealed(parties.sites["south"]), "by a stranger": sealed(stranger),
        "refusal": sealed(stranger, refused="policy"),
    }  # fmt: skip


@pytest.mark.parametrize(
    "how", ["linked", *(pytest.param(how, marks=pytest.mark.slow) for how in ("by a stranger", "by south", "refusal"))]
)
def test_a_reply_by_somebody_else_is_dropped(
    how: str, own: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also north's own of another round, offered again. Its site takes no part in that round, and in the next."""
    file_study = FileStudy(study_of(own, tmp_path), own, tmp_path)
    forged = replies_of(file_study, "north")

    def answers(names: list[str]) -> None:
        for number, kind in ((1, "first"), (2, how)):
            for path in (file_study.folder / "exchange" / "north" / "requests").glob(f"{number:06d}-round-*"):
                reply = reply_path(file_study.folder / "exchange", "north", path.read_bytes())
                if not reply.exists():
                    reply.write_bytes(forged[kind](path.read_bytes()))
        file_study.answers(names)

    file_study.serve(answers)
    who = read_frame(file_study.folder / "server" / "participation.csv")
    assert who["north"].tolist() == [1, 2, 1, 1]
    assert [line for line in caplog.messages if line.startswith("the reply of north is dropped")]
    assert not read_status(file_study.folder / "server")["refusals"]


@pytest.mark.skipif(os.name != "posix", reason="permissions are POSIX's")
def test_what_lies_in_the_exchange_folder_is_for_one_user_or_for_the_folders_group(
    own: dict[str, Path], tmp_path: Path
) -> None:
    """One folder for each site; one that was made for a group beforehand stays as it was made."""
    shared = tmp_path / "exchange" / "south" / "requests"
    shared.mkdir(parents=True)
    shared.chmod(0o770)
    file_study = FileStudy(study_of(own, tmp_path), own, tmp_path)
    seen: dict[str, set[int]] = {}

    def answers(names: list[str]) -> None:
        file_study.answers(names)
        for path in (tmp_path / "exchange").rglob("*"):
            kind = "group" if shared in (path, *path.parents) else path.suffix or path.name
            seen.setdefault(kind, set()).add(stat.S_IMODE(path.stat().st_mode))

    file_study.serve(answers)
    assert seen["north"] == seen["requests"] == seen["replies"] == {0o700}
    assert seen[".request"] == seen[".reply"] == {0o600}
    assert seen["group"] == {0o770, 0o660}
