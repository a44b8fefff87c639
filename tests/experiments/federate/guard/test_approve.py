"""A site's say as it is typed: approve, audit, and the studies of one home."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.commands import Call
from support.parties import Parties
from support.studies import FileStudy, formula_study, written

from hierfl.errors import UserError
from hierfl.experiments.federate.guard.approval import Approval
from hierfl.experiments.federate.guard.home import Home
from hierfl.experiments.federate.study import Study
from hierfl.inference.engines.remote.keys import Identity, PublicCard


@pytest.fixture(autouse=True)
def _account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger of this test's own."""
    monkeypatch.setenv("HIERFL_STATE", str(tmp_path / "state"))


def table(*, few: int = 8) -> pd.DataFrame:
    """Forty patients, of whom ``few`` have stage IV."""
    rng = np.random.default_rng(3)
    stage = ["I"] * (30 - few) + ["II"] * 10 + ["IV"] * few
    age = rng.normal(60, 9, len(stage)).round(1)
    return pd.DataFrame({"y": rng.normal(size=len(stage)).round(3), "age": age, "stage": stage})


@pytest.fixture
def parties(tmp_path: Path) -> Parties:
    """Three sites' keys."""
    site_keys = Parties.of(["h00", "h01", "h02"])
    site_keys.save(tmp_path)
    return site_keys


@pytest.fixture
def study(parties: Parties, tmp_path: Path) -> Path:
    """A study with everybody's cards."""
    path = formula_study(tmp_path, dict.fromkeys(parties.sites))
    parties.put_into(path)
    return path


def cards(tmp_path: Path, *names: str) -> list[object]:
    """Options that pin them."""
    return [part for name in names for part in ("--pin", tmp_path / name / f"{name}.pub")]


def test_an_approval_shows_what_it_records(study: Path, parties: Parties, tmp_path: Path, hierfl: Call) -> None:
    home, data = tmp_path / "h01", tmp_path / "own.csv"
    table().to_csv(data, index=False)
    arguments = ("federate", "approve", home, "--study", study, "--data", data, "--by", "Dr One")
    pins = cards(tmp_path, "coordinator", "h00", "h02")
    assert "has no policy.toml: hierfl federate policy" in hierfl(*arguments)[2]
    assert hierfl("federate", "policy", home)[0] == 0
    slip = tmp_path / "h0l"  # a folder of another name is said so, and none is made
    for command in (("policy", slip), ("site", slip, "--exchange", tmp_path), ("approve", slip, *arguments[3:])):
        assert f"{slip} has no keys: hierfl federate keys" in hierfl("federate", *command)[2]
    assert not slip.exists()
    for lacking, words in ((pins[2:], "server"), (pins[:2], "sites")):
        code, text, error = hierfl(*arguments, *lacking)
        assert (code, error.count("\n")) == (2, 1)
        assert f"not approved: {words}: nothing was recorded" in error
        assert "FAILS" in text
        assert "not pinned" in text
    assert not any((home / name).exists() for name in ("approvals", "known.toml", "studies", "audit.jsonl"))
    assert "no study is approved in" in hierfl("federate", "site", home, "--exchange", tmp_path)[2]
    code, text, error = hierfl(*arguments, *pins)
    assert (code, error) == (0, "")
    for words in ("prepare, step 1", "holds", parties.server.card.fingerprint, "pinned", "approved by Dr One"):
        assert words in text
    assert "not pinned" not in text
    agreed = Study.read(study)
    approval = Approval.read(home, agreed.digest)
    assert approval is not None
    assert (approval.by, approval.client, approval.roster) == ("Dr One", "h01", agreed.roster)
    assert approval.rules["sites"]
    assert Home(home).known().keys() == {"coordinator", "h00", "h01", "h02"}
    code, text, _ = hierfl("federate", "audit", home)
    assert code == 0
    assert f"study {agreed.digest[:8]} by Dr One" in text
    assert "1 line, none missing" in text


def test_all_cards_are_there_before_anybody_approves(study: Path, tmp_path: Path, hierfl: Call) -> None:
    """The roster changes with one that comes later."""
    home, data = tmp_path / "h01", tmp_path / "own.csv"
    table().to_csv(data, index=False)
    hierfl("federate", "policy", home)
    text = study.read_text()
    study.write_text("\n".join(line for line in text.splitlines() if not line.startswith("h02 = ")))
    pins = cards(tmp_path, "coordinator", "h00", "h02")
    code, text, error = hierfl("federate", "approve", home, "--study", study, "--data", data, "--by", "N", *pins)
    assert (code, "not approved: cards" in error) == (2, True), error
    assert "none of h02 in study.toml" in " ".join(text.split())


def test_a_hospital_with_four_of_a_stage_does_not_take_part(study: Path, tmp_path: Path, hierfl: Call) -> None:
    """Its sums would be those of four patients; nothing is said of them but to the site itself."""
    home, data = tmp_path / "h01", tmp_path / "own.csv"
    table(few=4).to_csv(data, index=False)
    hierfl("federate", "policy", home)
    pins = cards(tmp_path, "coordinator", "h00", "h02")
    code, text, error = hierfl("federate", "approve", home, "--study", study, "--data", data, "--by", "N", *pins)
    assert code == 2
    assert "not approved: " in error
    assert "FAILS" in text
    assert not (home / "approvals").exists()
    code, text, _ = hierfl("federate", "check", study, "--data", data, "--home", home)
    assert code == 0
    assert "FAILS" in text
    assert "Nothing has been sent." in text


def test_whose_card_it_is_and_who_approves(study: Path, parties: Parties, tmp_path: Path, hierfl: Call) -> None:
    home, data = tmp_path / "h01", tmp_path / "own.csv"
    table().to_csv(data, index=False)
    hierfl("federate", "policy", home)
    command = ("federate", "approve", home, "--data", data, "--study")
    pins = cards(tmp_path, "coordinator", "h00", "h02")
    assert "say who approves: --by NAME" in hierfl(*command, study, *pins, "--by", " ")[2]
    assert "--allow everything says nothing" in hierfl(*command, study, *pins, "--by", "N", "--allow", "everything")[2]
    stranger = Parties(parties.server, {**parties.sites, "h01": Identity.make("h01")})
    other = written(tmp_path / "data2", study.read_text()) if (tmp_path / "data2").mkdir() is None else study
    stranger.put_into(other)
    assert "does not have the card of" in hierfl(*command, other, *pins, "--by", "N")[2]
    assert hierfl(*command, study, *pins, "--by", "N")[0] == 0
    # a server with another key than the pinned one
    Parties(Identity.make("coordinator"), parties.sites).put_into(study)
    assert "not approved: server" in hierfl(*command, study, "--by", "N")[2]
    (tmp_path / "new.pub").write_text(Identity.make("coordinator").card.text)
    assert "is pinned with other keys" in hierfl(*command, study, "--by", "N", "--pin", tmp_path / "new.pub")[2]


def test_a_home_has_several_studies(study: Path, parties: Parties, tmp_path: Path, hierfl: Call) -> None:
    home, data = tmp_path / "h01", tmp_path / "own.csv"
    table().to_csv(data, index=False)
    hierfl("federate", "policy", home)
    pins = cards(tmp_path, "coordinator", "h00", "h02")
    (tmp_path / "second").mkdir()
    other = written(tmp_path / "second", study.read_text(), name="other")
    for path in (study, other):
        assert hierfl("federate", "approve", home, "--study", path, "--data", data, "--by", "N", *pins)[0] == 0
    for command in (("federate", "site", home, "--exchange", tmp_path), ("predict", home, "--data", data),
                    ("report", home)):  # fmt: skip
        code, _, error = hierfl(*command)
        assert (code, error.count("\n")) == (2, 1)
        assert "has several studies; say --study NAME: other, patients" in error
        assert "unknown study in" in hierfl(*command, "--study", "third")[2]
    assert "the study has not begun for this site" in hierfl("predict", home, "--data", data, "--study", "other")[2]
    assert Home(home).running("patients").name.startswith("patients-")
    assert "say the site's own folder once" in hierfl("federate", "site", home, "--folder", home)[2]


def test_a_folder_from_before_homes_predicts_and_takes_no_part(tmp_path: Path, hierfl: Call) -> None:
    (tmp_path / "site.toml").write_text('client = "h01"\ndata = "x.csv"\n')
    assert Home(tmp_path).study_folder() == tmp_path
    code, _, error = hierfl("federate", "site", tmp_path, "--exchange", tmp_path)
    assert code == 2
    assert "is from before sites had keys: it predicts and reports" in error


def test_lost_lines_of_an_audit_file_are_put_on_record(
    study: Path, parties: Parties, tmp_path: Path, hierfl: Call
) -> None:
    own = {name: tmp_path / f"{name}.csv" for name in parties.sites}
    for path in own.values():
        table().to_csv(path, index=False)
    file_study = FileStudy(study, own, tmp_path, parties)
    home = tmp_path / "h01"
    path, ledger = home / "audit.jsonl", file_study.ledger("h01")
    command = ("federate", "audit", home)
    import hierfl.experiments.federate.guard.look as look

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(look, "Ledger", lambda: ledger)
        assert "there is nothing to accept" in hierfl(*command, "--accept", "N")[2]
        path.write_text("")
        assert "has 0 lines, and this account has seen 1" in hierfl(*command)[2]
        with pytest.raises(UserError, match="has 0 lines"):
            file_study.restart("h01")
        code, text, _ = hierfl(*command, "--accept", "Dr One")
        assert code == 0
        assert "accepted  by Dr One" in text
    file_study.restart("h01")
    line = json.loads(path.read_text())
    path.write_text(json.dumps({**line, "by": "Dr Two"}) + "\n")
    assert "line 1 was edited" in hierfl(*command)[2]


def test_pinned_cards_are_those_of_their_names(tmp_path: Path) -> None:
    home, card = Home(tmp_path), Identity.make("south").card
    Identity.make("north").save(tmp_path)
    home.pin([card])
    assert home.known()["south"] == card
    (tmp_path / "known.toml").write_text(f'north = "{card.text}"\n')
    with pytest.raises(UserError, match="the card of north has another name"):
        home.known()
    assert PublicCard.read(card.text) == card
