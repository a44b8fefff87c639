"""`hierfl federate` as it is typed: one line for what cannot be, and nothing half done."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from support.commands import Call
from support.parties import Parties
from support.studies import FileStudy, formula_study, patients, write_tables

from hierfl.experiments.federate import flower_control
from hierfl.experiments.federate.guard import ledger
from hierfl.experiments.federate.guard.ledger import Ledger
from hierfl.experiments.federate.study import Study
from hierfl.experiments.federate.study_site import at_work
from hierfl.file_lock import locked
from hierfl.inference.engines.remote.files import requests_in
from hierfl.inference.engines.remote.keys import Identity, PublicCard


@pytest.fixture
def own(tmp_path: Path) -> dict[str, Path]:
    """Three sites' files."""
    return write_tables(patients(3), tmp_path / "data")


def refused(answer: tuple[int, str, str]) -> str:
    """The one line of an error."""
    code, _, error = answer
    assert code == 2
    assert error.count("\n") == 1
    return error


def test_a_server_says_what_it_needs(own: dict[str, Path], tmp_path: Path, hierfl: Call) -> None:
    study, out = formula_study(tmp_path, own), tmp_path / "server"
    serve = ("federate", "server", study, "--home", tmp_path / "coordinator")
    assert "has no keys: hierfl federate keys" in refused(hierfl(*serve, "--exchange", "x"))
    parties = Parties.of(own)
    parties.save(tmp_path)
    assert "say what carries requests" in refused(hierfl(*serve))
    assert "--deadline must be" in refused(hierfl(*serve, "--exchange", "x", "--deadline", "-1"))
    assert "has no keys.server: add the server's card" in refused(hierfl(*serve, "--exchange", "x"))
    parties.put_into(study)
    other_home = ("--home", tmp_path / "h00", "--exchange", "x")
    assert "was agreed on with the server coordinator" in refused(hierfl("federate", "server", study, *other_home))
    assert not out.exists()
    lacking = hierfl(*serve, "--exchange", tmp_path / "x", "--out", out, "--resume")
    assert "is not the folder of a study's server" in refused(lacking)
    assert "is not the folder of a study's server" in refused(hierfl("federate", "status", out))
    (shared := tmp_path / "shared").mkdir()
    with locked(shared / ".server.lock", "another server asks there, from a folder of its own"):
        busy = refused(hierfl(*serve, "--exchange", shared, "--out", out, "--deadline", 0.1))
    assert f"another server asks in {shared}: a study needs its own folder" in busy
    assert not out.exists()
    assert [path.name for path in shared.iterdir()] == [".server.lock"]
    FileStudy(study, own, tmp_path, parties).serve()
    again = hierfl(*serve, "--exchange", tmp_path / "x", "--out", out)
    assert "exists; go on with it (--resume)" in refused(again)
    study.write_text(study.read_text().replace("rounds = 4", "rounds = 5"))
    other = hierfl(*serve, "--exchange", tmp_path / "x", "--out", out, "--resume")
    assert "differ in more than their rosters" in refused(other)
    code, text, _ = hierfl("federate", "status", out)
    assert code == 0
    assert "round 4 of 4" in text
    assert "h02" in text


@pytest.mark.cpu(4, "a command for each request, twice")
def test_requests_are_answered_by_hand(
    own: dict[str, Path], tmp_path: Path, hierfl: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One command a round; the same request gets the same bytes; what is no request is one line."""
    study = formula_study(tmp_path, own, rounds=2)
    file_study = FileStudy(study, own, tmp_path)
    gate, home = file_study.gates.pop("h01"), ["--folder", tmp_path / "h01"]
    monkeypatch.setattr(ledger, "state_folder", lambda: file_study.account("h01"))
    commands = 0

    def answers(names: list[str]) -> None:
        nonlocal commands
        file_study.answers(names)
        for path in requests_in(tmp_path / "exchange", "h01") if "h01" in names else ():
            reply = path.parents[1] / "replies" / f"{path.stem}.reply"
            given = []
            for _ in range(2):
                code, text, error = hierfl("federate", "respond", path, *home, "--out", reply)
                assert (code, text.strip(), error) == (0, str(reply), "")
                given.append(reply.read_bytes())
                commands += 1
            assert (given[0] == given[1]) == ("hello" not in path.name)

    file_study.serve(answers)
    assert commands == 2 * (2 + 1 + 2 + 2 + 1)
    nonsense = tmp_path / "x.request"
    nonsense.write_bytes(b"nothing")
    out = ("--out", tmp_path / "replies")
    assert f"{nonsense} is no request: it is cut off" in refused(hierfl("federate", "respond", nonsense, *home, *out))
    assert "no file that can be read" in refused(hierfl("federate", "respond", tmp_path / "none.request", *home, *out))
    new = ("--folder", tmp_path / "new", *out)
    assert "has no keys: hierfl federate keys" in refused(hierfl("federate", "respond", nonsense, *new))
    # a folder that two processes work in
    with at_work(file_study.site_folder("h01")):
        assert "another process works in" in refused(hierfl("federate", "respond", nonsense, *home, *out))
    with locked(Ledger().lock_of(gate.member.study.digest, "h01"), "busy"):
        assert "another process of this account" in refused(hierfl("federate", "respond", nonsense, *home, *out))


def test_keys_are_made_once_and_rotated_where_that_is_said(tmp_path: Path, hierfl: Call) -> None:
    home = tmp_path / "at-north"
    make = ("federate", "keys", home, "--name", "north")
    code, text, _ = hierfl(*make)
    card = Identity.load(home).card
    assert code == 0
    assert f"fingerprint: {card.fingerprint}" in text
    assert "north.pub: send it to the coordinator" in text
    assert PublicCard.read(home / "north.pub") == card
    private = [home / "site.key", home / "node.key"]
    assert [stat.S_IMODE(path.stat().st_mode) for path in (home, *private)] == [0o700, 0o600, 0o600]
    before = [path.read_bytes() for path in private]
    assert "exists: --rotate moves it aside" in refused(hierfl(*make))
    assert "is the key of north, not of south" in refused(hierfl(*make[:-1], "south", "--rotate"))
    assert [path.read_bytes() for path in private] == before
    code, text, _ = hierfl(*make, "--rotate")
    assert code == 0
    assert Identity.load(home).card.fingerprint in text
    assert [old.card for old in Identity.earlier(home)] == [card]
    assert private[1].read_bytes() == before[1]
    other = ("federate", "keys", tmp_path / "at-south", "--name")
    assert "a name is made of letters" in refused(hierfl(*other, "south/../north"))
    assert "has no keys" in refused(hierfl(*other, "south", "--rotate"))
    assert not (tmp_path / "at-south").exists()


def test_a_draft_takes_cards_and_says_whose_are_missing(tmp_path: Path, hierfl: Call) -> None:
    parties = Parties.of(["north", "south"])
    parties.save(tmp_path)
    sample = tmp_path / "sample.csv"
    sample.write_text("y,x\n0.5,1.5\n1.5,2.5\n")
    options = ("mixed-effects", "--sample", sample, "--formula", "y ~ x + (1 | site)", "--out", tmp_path / "study.toml")
    cards = [tmp_path / who / f"{who}.pub" for who in ("coordinator", "north", "south")]
    code, text, _ = hierfl("federate", "study", *options, "--site", cards[1], "--site", "south")
    assert code == 0
    assert "no card yet of server, south: their lines go into its part keys" in text
    assert Study.read(tmp_path / "study.toml").keys == {"north": parties.cards["north"]}
    whole = (*options, "--overwrite", "--key", cards[0], "--site", cards[1], "--site")
    code, text, _ = hierfl("federate", "study", *whole, cards[2])
    assert "no card yet" not in text
    study = Study.read(tmp_path / "study.toml")
    assert study.clients == ["north", "south"]
    assert study.keys == {"server": parties.server.card, **parties.cards}
    assert "no file" in refused(hierfl("federate", "study", *whole, tmp_path / "east.pub"))
    (tmp_path / "east.pub").write_text("hierfl-key-1 east AAAA")
    assert "is no public card" in refused(hierfl("federate", "study", *whole, tmp_path / "east.pub"))


def test_certificates_are_made_once(
    own: dict[str, Path], tmp_path: Path, hierfl: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("flwr", reason="hierfl[flower] is not installed")
    monkeypatch.setattr(flower_control, "BEGINNING", 0.5)
    assert hierfl("federate", "keys", tmp_path / "north", "--name", "north")[0] == 0
    where = ("--host", "127.0.0.1", "--host", "study.example.org")
    assert hierfl("federate", "certificates", tmp_path / "tls", *where)[0] == 0
    assert stat.S_IMODE((tmp_path / "tls" / "server.key").stat().st_mode) == 0o600
    assert "exists; to rotate" in refused(hierfl("federate", "certificates", tmp_path / "tls", *where))

    import ssl

    context = ssl.create_default_context(cafile=str(tmp_path / "tls" / "ca.crt"))
    assert context.cert_store_stats()["x509_ca"] == 1
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
        tmp_path / "tls" / "server.pem", tmp_path / "tls" / "server.key"
    )

    study = formula_study(tmp_path, own)
    register = ("federate", "register", study, "--superlink", "127.0.0.1:1")
    assert "say --key FILE" in refused(hierfl(*register, "--client", "h00"))
    public = tmp_path / "north" / "node.pub"
    assert "unknown client of the study 'x'" in refused(hierfl(*register, "--client", "x", "--key", public))
    assert "is not in" in refused(hierfl(*register, "--client", "h00", "--remove"))
    line = refused(hierfl(*register, "--client", "h00", "--key", public))
    assert "flwr supernode has failed" in line
    assert "no SuperLink answers at 127.0.0.1:1 (tried for 0 s): start flower-superlink there" in line
    assert not (tmp_path / "nodes.toml").exists()
