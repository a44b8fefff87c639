"""Studies with masked sums: what can be masked, and what a site is told of it."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tomli_w
from support.commands import Call
from support.masked import mixed
from support.parties import Parties
from support.studies import formula_study, patients, write_tables

from hierfl.errors import UserError
from hierfl.experiments.federate.draft import draft
from hierfl.experiments.federate.guard.approve import propose
from hierfl.experiments.federate.guard.policy import POLICY
from hierfl.experiments.federate.guard.simulated import PERMISSIVE_POLICY
from hierfl.experiments.federate.leaving import leaving
from hierfl.experiments.federate.study import Study
from hierfl.experiments.federate.study_site import read_site_data
from hierfl.inference.engines.remote.keys import Identity


def of_numbers(folder: Path, method: str, settings: dict[str, Any], clients: int = 3, **given: Any) -> Path:
    """A masked study of a network on a table of numbers."""
    sample, names = folder / "sample.csv", [f"h{j:02d}" for j in range(clients)]
    rng = np.random.default_rng(0)
    pd.DataFrame({"x": rng.normal(size=9).round(2), "y": [f"c{k % 3}" for k in range(9)]}).to_csv(sample, index=False)
    setup = {"masked": True, "rounds": 2, "network": "mlp:4", "test_fraction": 0.0, "validation_fraction": 0.0, **given}
    keys, out = Parties.of(names).keys, folder / "study.toml"
    out.write_text(draft(method, sample, names, "numbers", setup, settings, keys=keys, y="y", out=out))
    return out


CHANGES: list[tuple[Callable[[dict], Any], str]] = [
    (lambda t: (t["clients"].pop(), t["keys"].pop("h02")), "masks need at least 3 clients, not 2"),
    (lambda t: t["keys"].pop("h01"), "masks need the public card of each, and there is none of h01"),
    (lambda t: t["keys"].pop("server"), "masks need the public card of each, and there is none of server"),
    (lambda t: t["settings"].update(one_round=True), "messages of 'effects' are looked at one by one.*one_round=False"),
]


@pytest.mark.parametrize(("change", "line"), CHANGES, ids=[line[:40] for _, line in CHANGES])
def test_what_cannot_be_masked_is_one_line(change: Callable[[dict], Any], line: str, tmp_path: Path) -> None:
    names = ["h00", "h01", "h02"]
    path = formula_study(tmp_path, dict.fromkeys(names, tmp_path), masked=True, parties=Parties.of(names))
    table = tomllib.loads(path.read_text())
    assert table["privacy"]["masked"] is True
    assert Study.read(path).options("cpu").masked
    change(table)
    path.write_text(tomli_w.dumps(table))
    with pytest.raises(UserError, match=line) as error:
        Study.read(path)
    assert "\n" not in str(error.value)
    table["privacy"].pop("masked")
    path.write_text(tomli_w.dumps(table))
    Study.read(path)  # what is not masked may be so


@pytest.mark.parametrize(
    ("method", "settings", "line"),
    [
        ("fedpop", {"compress": "quantise:4"}, "messages of 'base' are compressed"),
        ("qlsd", {}, "are compressed"),
        ("fedavg", {}, ""),
        ("pfedvem", {}, ""),
    ],
)
def test_networks_are_masked_where_their_messages_add_up(
    method: str, settings: dict[str, Any], line: str, tmp_path: Path
) -> None:
    if not line:
        assert Study.read(of_numbers(tmp_path, method, settings)).options("cpu").masked
        return
    with pytest.raises(UserError, match=line):
        of_numbers(tmp_path, method, settings)


def test_the_command_drafts_masks(tmp_path: Path, hierfl: Call) -> None:
    own = write_tables(patients(3), tmp_path / "data")
    pd.read_csv(own["h01"]).head(8).to_csv(tmp_path / "sample.csv", index=False)
    sites = []
    for name in ("coordinator", *own):
        Identity.make(name).save(tmp_path / name)
        sites += ["--site", tmp_path / name / f"{name}.pub"] if name in own else []
    arguments = [
        "federate", "study", "mixed-effects", "--sample", tmp_path / "sample.csv", "--formula", "y ~ age + (1 | site)",
        "--key", tmp_path / "coordinator" / "coordinator.pub", "--masked", "--out", tmp_path / "study.toml",
    ]  # fmt: skip
    code, _, error = hierfl(*arguments, *sites)
    assert (code, error) == (0, "")
    assert Study.read(tmp_path / "study.toml").options("cpu").masked
    code, _, error = hierfl(*arguments, *sites[:4], "--overwrite")
    assert code == 2
    assert "masks need at least 3 clients, not 2" in error


def test_who_has_left_is_said_before_a_smaller_roster_is_approved(tmp_path: Path) -> None:
    file_study = mixed(tmp_path)
    text = file_study.study.read_text()
    file_study.study.write_text(text.replace('    "h03",\n', ""))
    file_study.parties.sites.pop("h03")
    file_study.parties.put_into(file_study.study)
    proposal = propose(
        file_study.home("h01"),
        file_study.study,
        None,
        pins=[file_study.parties.server.card],
        ledger=file_study.ledger("h01"),
    )
    (margin,) = (rule.margin for rule in proposal.rules if rule.name == "sites that have left")
    assert margin.startswith("h03: a sum from before less the same sum without them")


def test_a_policy_that_demands_masks_approves_a_study_that_has_them(tmp_path: Path) -> None:
    file_study = mixed(tmp_path, masked=False)
    (file_study.home("h01").folder / POLICY).write_text(replace(PERMISSIVE_POLICY, masked=True).text())
    about = {"pins": [file_study.parties.server.card], "ledger": file_study.ledger("h01")}
    proposal = propose(file_study.home("h01"), file_study.study, file_study.files["h01"], **about)
    assert proposal.failing == ["masked"]
    table = tomllib.loads(file_study.study.read_text())
    table["privacy"]["masked"] = True
    file_study.study.write_text(tomli_w.dumps(table))
    assert propose(file_study.home("h01"), file_study.study, file_study.files["h01"], **about).failing == []


def test_what_leaves_under_masks_is_said(tmp_path: Path, hierfl: Call) -> None:
    file_study = mixed(tmp_path)
    code, text, error = hierfl("federate", "check", file_study.study, "--data", file_study.files["h01"])
    assert (code, error) == (0, "")
    assert "Alone each number is noise. The server gets sums over 4 sites." in " ".join(text.split())
    study = Study.read(file_study.study)
    plain = Study.read(mixed(tmp_path / "plain", masked=False).study)
    rows = read_site_data(study, file_study.files["h01"], "h01")
    bytes_of, masked = (
        {(v.request.partition(",")[0], v.name): v.nbytes for v in leaving(variant, rows)} for variant in (plain, study)
    )
    assert masked.keys() - bytes_of.keys() == {
        ("keys", "public keys"), ("every masked answer", "counts"), ("prepare", "support"),
    }  # fmt: skip
    assert all(masked[about] == 3 * size for about, size in bytes_of.items() if about[0] != "hello")
