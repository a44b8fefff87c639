"""study.toml: what is written, what is refused, and what a site's own file must be."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tomli_w
from support.commands import Call
from support.parties import Parties
from support.studies import PATIENTS, FileStudy, formula_study, patients, write_tables, written

from hierfl.errors import UserError
from hierfl.experiments.federate.draft import draft
from hierfl.experiments.federate.leaving import leaving
from hierfl.experiments.federate.study import Study
from hierfl.experiments.federate.study_site import Membership, read_site_data
from hierfl.experiments.methods import load
from hierfl.inference.engines.remote.keys import Identity


@pytest.fixture
def own(tmp_path: Path) -> dict[str, Path]:
    """Four sites' files."""
    return write_tables(patients(4), tmp_path / "data")


CHANGES: list[tuple[Callable[[dict], Any], str]] = [
    (lambda t: t.update(format=3), "is of format 3, and this version of hierfl reads 2"),
    (lambda t: t.update(format=1), "is of format 1, without keys: finish this study with the version of hierfl that"),
    (lambda t: t.pop("keys"), "format 2 has the part keys"),
    (lambda t: t.update(extra=1), "unknown entry of .*: 'extra'"),
    (lambda t: t.pop("method"), "is damaged: method is missing"),
    (lambda t: t.update(method="pfedvem"), "not the version here"),
    (lambda t: t.update(method="../other.py"), "a method's own file is beside it"),
    (lambda t: t.update(method_digest="0"), "mixed-effects is not the version here that .* agreed on"),
    (lambda t: t.update(clients=["a", "a"]), "two clients have one name"),
    (lambda t: t.update(clients=["a", "A"]), "names that differ in capitals alone"),
    (lambda t: t.update(clients=["../a"]), "named by letters, digits, - and _, not '../a'"),
    (lambda t: t.update(clients=[]), "the roster is empty"),
    (lambda t: t["run"].update(rounds="3"), "run.rounds is '3'"),
    (lambda t: t["run"].update(rounds=-1), "rounds must be"),
    (lambda t: t["run"].update(device="cuda"), "unknown entry of .*: 'device'"),
    (lambda t: t["run"].pop("seed"), "run.seed is missing"),
    (lambda t: t["data"].update(kind="rows"), "data.kind is 'rows'; known: formula, columns, arrays"),
    (lambda t: t["data"].update(formula="y ~ spline(age)"), "spline"),
    (lambda t: t["data"].update(formula="y ~ weight + (1 | site)"), "column 'weight' is not in the dictionary"),
    (lambda t: t["columns"]["age"].update(kind="word"), "columns.age: unknown kind of a column 'word'"),
    (lambda t: t["columns"]["stage"].update(levels=[]), "a category has levels"),
    (lambda t: t["settings"].update(noise=1), "noise"),
    (lambda t: t["privacy"].update(least_rows=0), "privacy.least_rows is 0"),
    (lambda t: t["privacy"].update(epsilom=1), "unknown entry of .*: 'epsilom'"),
]


@pytest.mark.parametrize(("change", "line"), CHANGES, ids=[line[:30] for _, line in CHANGES])
def test_what_says_nothing_or_something_wrong_is_refused(
    change: Callable[[dict], Any], line: str, own: dict[str, Path], tmp_path: Path
) -> None:
    path = formula_study(tmp_path, own)
    table = tomllib.loads(path.read_text())
    change(table)
    path.write_text(tomli_w.dumps(table))
    with pytest.raises(UserError, match=line) as error:
        Study.read(path)
    assert "\n" not in str(error.value)


def test_all_but_the_roster_is_agreed_on(own: dict[str, Path], tmp_path: Path) -> None:
    path = formula_study(tmp_path, own)
    study = Study.read(path)
    table = tomllib.loads(path.read_text())
    card = Identity.make("h00").card.text
    for name, value in {"clients": ["h00", "other"], "keys": {"h00": card}, "name": "another"}.items():
        path.write_text(tomli_w.dumps(table | {name: value}))
        assert (Study.read(path).digest == study.digest) == (name in ("clients", "keys"))
        assert (Study.read(path).roster == study.roster) == (name == "name")


def test_a_draft_is_a_study(own: dict[str, Path], tmp_path: Path) -> None:
    """Every table that a draft writes is read again; what was said stands in it."""
    sample = tmp_path / "sample.csv"
    pd.DataFrame({"y": ["ill", "well"], "age": [50.5, 60.0], "n": [1, 2], "on": [True, False]}).to_csv(
        sample, index=False
    )
    text = draft(
        "pfedvem", sample, ["a", "b"], "trial", {"rounds": 7, "network": "linear"}, {}, y="y", out=tmp_path / "s.toml"
    )
    table = tomllib.loads(text)
    assert (table["run"]["rounds"], table["data"]["network"], table["data"]["x"]) == (7, "linear", ["age", "n", "on"])
    kinds = {name: column["kind"] for name, column in table["columns"].items()}
    assert kinds == {"age": "number", "n": "whole", "on": "flag", "y": "category"}
    with pytest.raises(UserError, match="--formula says nothing of"):
        draft("pfedvem", sample, ["a"], "trial", {"formula": "y ~ 1"}, {}, y="y", out=tmp_path / "s.toml")


def test_a_method_whose_server_answers_single_clients_is_no_study(tmp_path: Path, hierfl: Call) -> None:
    """Said before anything is written; and of a study that somebody else has written, too."""
    sample = tmp_path / "sample.csv"
    pd.DataFrame({"y": ["ill", "well"], "age": [50.5, 60.0]}).to_csv(sample, index=False)
    arguments = ("--sample", sample, "--site", "a", "--site", "b", "--y", "y", "--out", tmp_path / "study.toml")
    code, _, error = hierfl("federate", "study", "fedpac", *arguments)
    assert (code, error.count("\n")) == (2, 1)
    assert "fedpac: the server makes each client's 'mu', and sites hear one broadcast" in error
    assert not (tmp_path / "study.toml").exists()
    assert hierfl("federate", "study", "fedrep", *arguments)[0] == 0
    table = tomllib.loads((tmp_path / "study.toml").read_text())
    other = load("fedpac")
    (tmp_path / "study.toml").write_text(tomli_w.dumps(table | {"method": "fedpac", "method_digest": other.digest}))
    with pytest.raises(UserError, match="fedpac: the server makes each client's 'mu'"):
        Study.read(tmp_path / "study.toml")


SITES: list[tuple[Callable[[pd.DataFrame], pd.DataFrame], str]] = [
    (lambda df: df.drop(columns="age"), "has no column 'age'"),
    (lambda df: df.assign(age=7000.123), "'age' has 15 values outside of its range, 0 to 120"),
    (lambda df: df.assign(stage="secret"), "'stage' has 15 values that are none of its 4 levels"),
    (lambda df: df.assign(y="much"), "'y' holds words, and is declared a number"),
    (lambda df: df.assign(y=np.nan), "'y' lacks 15 of its 15 values"),
    (lambda df: df[:1], "has 1 row, fewer than the 2 that the study asks of a site"),
]


@pytest.mark.parametrize(("change", "line"), SITES, ids=[line[:20] for _, line in SITES])
def test_a_file_that_does_not_fit_is_one_line_without_its_values(
    change: Callable[[pd.DataFrame], pd.DataFrame], line: str, own: dict[str, Path], tmp_path: Path, hierfl: Call
) -> None:
    """Nothing of it is sent, nor written; check and approve say the same."""
    study, df, parties = formula_study(tmp_path, own), pd.read_csv(own["h01"])[:15], Parties.of(own)
    parties.put_into(study)
    parties.sites["h01"].save(tmp_path / "h01")
    assert hierfl("federate", "policy", tmp_path / "h01")[0] == 0
    change(df).to_csv(own["h01"], index=False)
    code, _, error = hierfl("federate", "check", study, "--data", own["h01"])
    assert (code, error.count("\n")) == (2, 1)
    assert line in error
    assert "7000" not in error
    assert "secret" not in error
    arguments = ("--study", study, "--data", own["h01"], "--by", "Dr Test")
    code, _, again = hierfl("federate", "approve", tmp_path / "h01", *arguments)
    assert (code, again) == (2, error)
    assert not (tmp_path / "h01" / "studies").exists()
    assert not (tmp_path / "h01" / "approvals").exists()
    assert not (tmp_path / "exchange").exists()


def test_check_says_what_leaves_and_nothing_else_does(own: dict[str, Path], tmp_path: Path, hierfl: Call) -> None:
    """Names and bytes that check prints are those of the answers; it leaves no file."""
    study = formula_study(tmp_path, own)
    before = sorted(tmp_path.rglob("*"))
    code, out, _ = hierfl("federate", "check", study, "--data", own["h01"])
    assert code == 0
    assert "Nothing has been sent." in out
    assert sorted(tmp_path.rglob("*")) == before
    from hierfl.inference.engines.remote.wire import decode

    file_study, seen = FileStudy(study, own, tmp_path), {}

    def watch(name: str, request: bytes, reply: bytes) -> None:
        head, asked = decode(reply), decode(request)[0]
        kind = f"prepare, step {asked['step'] + 1}" if asked["kind"] == "prepare" else asked["kind"]
        seen.setdefault(kind, {}).update({k.rpartition("|")[2] if "|" in k else k: v for k, v in head[1].items()})

    file_study.watch = watch
    file_study.serve()
    agreed = Study.read(study)
    declared: dict[str, dict] = {}
    for value in leaving(agreed, read_site_data(agreed, own["h01"], "h01")):
        declared.setdefault(value.request.partition(" (")[0], {})[value.name] = value
    assert declared.pop("hello").keys() == {"splits"}
    assert seen.pop("hello") == {}
    assert seen.pop("finish") == {}
    assert seen.keys() == declared.keys()
    for kind, values in seen.items():
        assert values.keys() == declared[kind].keys(), kind
        for name, value in values.items():
            assert (tuple(value.shape), value.nbytes) == (declared[kind][name].shape, declared[kind][name].nbytes)


def test_a_methods_own_file_is_run_where_it_is_known(
    own: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A study from elsewhere names Python that does not run unasked."""
    from hierfl.experiments import trust

    source = tmp_path / "mine.py"
    source.write_text("from hierfl.models import MixedEffects\n\n\nclass Mine(MixedEffects):\n    name = 'mine'\n")
    (tmp_path / "sample.csv").write_text("y,age,stage\n0.5,50,I\n1,60.5,II\n")
    options = {"formula": "y ~ age + (1 | site)", "rounds": 2}
    text = draft(
        str(source), tmp_path / "sample.csv", list(own), "mine", options, {"draws": 0}, out=tmp_path / "study.toml"
    )
    path = written(tmp_path, text, PATIENTS)
    monkeypatch.setattr(trust, "_named", set())
    monkeypatch.setattr(trust, "memory", lambda: tmp_path / "nowhere")
    with pytest.raises(UserError, match="which you have neither named nor run before: read it, then say --trust-code"):
        Study.read(path)
    assert Study.read(path, trust_code=True).loaded.name == "mine"
    monkeypatch.setattr(trust, "_named", set())
    monkeypatch.setattr(trust, "memory", lambda: tmp_path / "elsewhere")
    Parties.of(own).put_into(path)
    with pytest.raises(UserError, match="which you have neither named nor run before"):
        FileStudy(path, own, tmp_path)
    Study.read(path, trust_code=True)
    file_study = FileStudy(path, own, tmp_path)
    folder = file_study.site_folder("h01")
    copy = folder / "mine.py"
    assert copy.read_bytes() == source.read_bytes()
    # what was approved runs without a question; where the approval is gone it does not
    for name in ("_named", "memory"):
        monkeypatch.setattr(trust, name, set() if name == "_named" else lambda: tmp_path / "nobody")
    assert Membership.read(folder, finished=False).study.loaded.name == "mine"
    monkeypatch.setattr(trust, "_named", set())
    monkeypatch.setattr(trust, "memory", lambda: tmp_path / "no one")
    approval = file_study.home("h01").approval_of(folder)
    (file_study.home("h01").folder / "approvals" / f"{approval.study}.toml").unlink()
    with pytest.raises(UserError, match="which you have neither named nor run before"):
        Membership.read(folder, finished=False)
    copy.write_text(source.read_text() + "\n")
    with pytest.raises(UserError, match="has changed since"):
        Membership.read(copy.parent, finished=False)
    source.write_text(source.read_text() + "\n")
    with pytest.raises(UserError, match="has changed since"):
        Study.read(path)
