"""study.toml from before keys: what its studies have left behind opens, and nobody takes part in one."""

from __future__ import annotations

import hashlib
import json
import shutil
import tomllib
from pathlib import Path

import pytest
import tomli_w
from support.commands import Call
from support.parties import Parties
from support.studies import FileStudy, formula_study, patients, write_tables

from hierfl.errors import UserError
from hierfl.experiments.federate.roster_keys import check_server
from hierfl.experiments.federate.study import Study
from hierfl.experiments.federate.study_site import Membership
from hierfl.inference.engines.remote.kept_bytes import decode_kept
from hierfl.inference.engines.remote.keys import Identity
from hierfl.inference.engines.remote.wire import encode


def as_before(folder: Path, out: Path) -> str:
    """A site's folder as an earlier version has left it; the study's digest of then."""
    shutil.copytree(folder, out, ignore=shutil.ignore_patterns("answers"))
    table = tomllib.loads((folder / "study.toml").read_text()) | {"format": 1}
    del table["keys"]
    (out / "study.toml").write_text(tomli_w.dumps(table))
    agreed = {name: value for name, value in table.items() if name != "clients"}
    digest = hashlib.sha256(json.dumps(agreed, sort_keys=True).encode()).hexdigest()[:16]
    for path in out.glob("*.safetensors"):
        head, tensors = decode_kept(path.read_bytes())
        path.write_bytes(encode({**head, "study": digest}, tensors))
    return digest


def test_a_folder_from_before_keys_predicts_and_reports_and_takes_no_part(tmp_path: Path, hierfl: Call) -> None:
    own = write_tables(patients(3), tmp_path / "data")
    file_study = FileStudy(formula_study(tmp_path, own, formula="y ~ age + (1 | site)"), own, tmp_path)
    file_study.serve()
    now, before = file_study.site_folder("h01"), tmp_path / "before"
    digest = as_before(now, before)
    assert Study.read(before / "study.toml", finished=True).digest == digest
    given = [hierfl("predict", folder, "--data", own["h01"]) for folder in (tmp_path / "h01", before)]
    assert given[0] == given[1]
    assert given[0][0] == 0
    assert hierfl("report", before)[0] == 0
    for read in (
        lambda: Study.read(before / "study.toml"), lambda: Membership.read(before, finished=False),
    ):  # fmt: skip
        with pytest.raises(UserError, match="finish this study with the version of hierfl that began it, or draft it"):
            read()
    serve = ("--home", tmp_path / "x", "--exchange", tmp_path / "exchange")
    for command in (("server", before / "study.toml", *serve), ("check", before / "study.toml", "--data", own["h01"])):
        code, _, error = hierfl("federate", *command)
        assert (code, error.count("\n")) == (2, 1)
        assert "is of format 1, without keys" in error


PARTIES, OTHER = Parties.of(["h00", "h01"]), Identity.make("h02")
WRONG = [
    ({"h00": "a card"}, r"keys.h00: this is no public card"),
    ({"h02": OTHER.card.text}, "keys.h02 is of no client on the roster: take the line out"),
    ({"h00": OTHER.card.text}, "keys.h00 is the card of h02: each has a card with its own name"),
    ({"server": PARTIES.cards["h01"].text}, "keys.server is the card of h01"),
    (
        {"h01": PARTIES.cards["h00"].text.replace(" h00 ", " h01 ")},
        "h00 and h01 have one key: each makes its own",
    ),
]


@pytest.mark.parametrize(("keys", "line"), WRONG, ids=[line[:30] for _, line in WRONG])
def test_cards_that_are_not_their_owners_are_refused(keys: dict[str, str], line: str, tmp_path: Path) -> None:
    path = formula_study(tmp_path, write_tables(patients(2), tmp_path / "data"))
    table = tomllib.loads(path.read_text())
    path.write_text(tomli_w.dumps(table | {"keys": PARTIES.keys}))
    study = Study.read(path)
    assert study.keys == {"server": PARTIES.server.card, **PARTIES.cards}
    check_server(study.keys, study.clients, PARTIES.server, path)
    path.write_text(tomli_w.dumps(table | {"keys": PARTIES.keys | keys}))
    with pytest.raises(UserError, match=line) as error:
        Study.read(path)
    assert "\n" not in str(error.value)


def test_a_server_asks_only_with_the_card_that_was_agreed_on_and_all_cards_known(tmp_path: Path) -> None:
    cards = {"server": PARTIES.server.card, **PARTIES.cards}
    path, clients = tmp_path / "study.toml", ["h00", "h01"]
    with pytest.raises(UserError, match="has no card of h01: each site sends NAME.pub"):
        check_server({name: card for name, card in cards.items() if name != "h01"}, clients, PARTIES.server, path)
    with pytest.raises(UserError, match="has no keys.server: add the server's card"):
        check_server(PARTIES.cards, clients, PARTIES.server, path)
    with pytest.raises(UserError, match="was agreed on with the server coordinator"):
        check_server(cards, clients, Identity.make("coordinator"), path)


def test_a_client_is_not_named_as_the_server_is(tmp_path: Path) -> None:
    path = formula_study(tmp_path, write_tables(patients(2), tmp_path / "data"))
    table = tomllib.loads(path.read_text())
    path.write_text(tomli_w.dumps(table | {"clients": ["h00", "Server"]}))
    with pytest.raises(UserError, match="a client cannot be named 'Server'"):
        Study.read(path)


@pytest.mark.parametrize(
    ("part", "name", "value", "line"),
    [
        ("run", "rounds", 0, "rounds is 0, and a study has one at least"),
        ("run", "quorum", 3, "a quorum of 3 cannot be reached by 2 clients"),
        ("age", "most", float("inf"), "a range has ends below 1e"),
        ("age", "least", -1e300, "a range has ends below 1e"),
        ("privacy", "least_rows", 0, "least_rows is 0"), ("run", "rounds", 2.5, "rounds is 2.5"),
        ("privacy", "least_rows", float("nan"), "least_rows is nan"),
    ],
)  # fmt: skip
def test_numbers_that_no_study_can_have_are_refused(
    part: str, name: str, value: float, line: str, tmp_path: Path
) -> None:
    path = formula_study(tmp_path, write_tables(patients(2), tmp_path / "data"))
    table = tomllib.loads(path.read_text())
    (table["columns"]["age"] if part == "age" else table[part])[name] = value
    path.write_text(tomli_w.dumps(table))
    with pytest.raises(UserError, match=line) as error:
        Study.read(path)
    assert "\n" not in str(error.value)
