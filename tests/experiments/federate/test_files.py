"""Studies by way of files: the pooled fit's numbers, whoever is late, cut off or killed."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from support.once import Once
from support.parties import Parties
from support.studies import FORMULA, PATIENTS, FileStudy, formula_study, patients, write_tables

from hierfl.data.formula.federate import from_formula
from hierfl.errors import UserError
from hierfl.experiments.federate.contributions import last_contributions, read_status
from hierfl.experiments.federate.respond import write_replies
from hierfl.experiments.run_folder.csv_files import read_frame
from hierfl.experiments.run_folder.summary import read_summary
from hierfl.inference import fit
from hierfl.inference.engines.remote import files
from hierfl.inference.engines.remote.wire import encode, header
from hierfl.inference.run.checkpoint import load
from hierfl.models import MixedEffects


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "POLL", 0.01)


@pytest.mark.slow
@pytest.mark.parametrize("counts", [False, True])
def test_thirty_sites_by_files_find_what_the_table_would(counts: bool, tmp_path: Path) -> None:
    """One command a site and round; ten sites lack a level, and none sends more than sums."""
    df, family = patients(30, counts=counts), "poisson" if counts else "gaussian"
    columns = {"kind": "whole", "least": 0} if counts else {"kind": "number"}
    how = {"rounds": 60, "evaluate_every": 60}
    federation, design = from_formula(df, FORMULA, family=family)
    options = {**how, "dtype": torch.float64, "splits": ("train",), "draws": 2}
    whole = fit(MixedEffects(design, draws=0), federation, progress=False, **options)
    own = write_tables(df, tmp_path / "data")
    study = formula_study(tmp_path, own, {**PATIENTS, "y": columns}, family=family, **how, draws=2)
    file_study = FileStudy(study, own, tmp_path)
    commands = dict.fromkeys(own, 0)

    def respond(names: list[str]) -> None:
        for name in names:
            waiting, replies = files.requests_in(tmp_path / "exchange", name), tmp_path / "exchange" / name / "replies"
            ((_, problem),) = write_replies(file_study.answering(name), waiting, replies)
            assert not problem
            commands[name] += 1

    file_study.serve(respond)
    effects = read_frame(tmp_path / "server" / "effects.csv", ("effect", "note"))
    expected, numbers = whole.fitted.method.population_summary(whole.fitted)
    assert expected is not None
    pd.testing.assert_frame_equal(effects.drop(columns="note"), expected.drop(columns="note"), rtol=1e-8)
    summary = read_summary(tmp_path / "server")
    assert summary["log_likelihood"] == pytest.approx(numbers["log_likelihood"], rel=1e-12)
    assert summary["rounds"] == whole.rounds < 17
    # two rounds of sums, a greeting, a command for each round; metrics after the first and the last; the end
    assert set(commands.values()) == {2 + 1 + whole.rounds + 2 + 1}


@pytest.fixture
def own(tmp_path: Path) -> dict[str, Path]:
    """Four sites' files."""
    return write_tables(patients(4), tmp_path / "data")


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    """What a server has in the end, and what its sites have."""
    state = {f"server/{k}": v for k, v in load(folder / "server" / "checkpoint")[0].items()}
    from safetensors.torch import load_file

    for path in sorted(folder.glob("h*/studies/*/site.safetensors")):
        state |= {f"{path.parents[2].name}/{k}": v for k, v in load_file(path).items()}
    return state


def same(folder: Path, other: Path) -> None:
    """To the bit."""
    mine, others = tensors(folder), tensors(other)
    assert mine.keys() == others.keys()
    assert all(torch.equal(value, others[name]) for name, value in mine.items())


def test_a_study_leaves_what_its_people_ask_for(own: dict[str, Path], tmp_path: Path) -> None:
    file_study = FileStudy(formula_study(tmp_path, own), own, tmp_path)
    file_study.serve()
    status, sites = read_status(tmp_path / "server"), last_contributions(tmp_path / "server")
    assert (status["round"], status["waiting"], status["ended"]) == (4, [], "all rounds are done")
    assert [row[:2] for row in sites] == [[name, 4] for name in own]
    who = read_frame(tmp_path / "server" / "participation.csv")
    assert who[list(own)].to_numpy().tolist() == [[1] * 4] * 4
    # no value of any site's table is in what the others, or the server, hold
    words = {f"{v}" for v in patients(4).y}
    for path in [*(tmp_path / "server").rglob("*"), *(tmp_path / "exchange").rglob("*")]:
        if path.is_file() and path.suffix in (".csv", ".json", ".toml"):
            assert not [word for word in words if word in path.read_text()], path


@pytest.fixture(scope="module")
def plain(once: Once) -> Path:
    """The study of four sites as it is where nothing goes wrong."""

    def fill(folder: Path) -> None:
        own = write_tables(patients(4), folder / "data")
        FileStudy(formula_study(folder, own), own, folder).serve()

    return once("a plain study by files", fill)


def test_replies_that_are_still_copied_are_waited_for(own: dict[str, Path], plain: Path, tmp_path: Path) -> None:
    """Half of a reply is no reply yet; the whole is."""
    file_study = FileStudy(formula_study(tmp_path, own), own, tmp_path / "cut")
    withheld: dict[Path, bytes] = {}

    def answers(names: list[str]) -> None:
        for path, data in withheld.items():
            path.write_bytes(data)
        withheld.clear()
        file_study.answers(names)
        for name in names[1:]:
            for path in (tmp_path / "cut" / "exchange" / name / "replies").glob("*.reply"):
                withheld[path] = path.read_bytes()
                path.write_bytes(withheld[path][: len(withheld[path]) // 2])

    file_study.serve(answers)
    same(plain, tmp_path / "cut")


@pytest.mark.parametrize("what", [("nothing", "garbage", "huge"), ("another's", "a folder", "a pipe")], ids=" ".join)
def test_what_is_no_reply_is_no_answer(
    what: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Sites that answer nonsense in round 2 take no part in that round, and the others do."""
    own = write_tables(patients(5), tmp_path / "data")
    monkeypatch.setattr(files, "LARGEST", 10**6)
    file_study, wrong = (
        FileStudy(formula_study(tmp_path, own), own, tmp_path),
        dict(zip(("h01", "h02", "h03"), what, strict=True)),
    )

    def answers(names: list[str]) -> None:
        asked = {name: (tmp_path / "exchange" / name / "requests").glob("000002-round-*") for name in wrong}
        for name, path in [(name, path) for name, paths in asked.items() for path in paths]:
            reply = path.parents[1] / "replies" / f"{path.stem}.reply"
            if wrong[name] == "garbage":
                reply.write_bytes(b"\xff" * 1000)
            elif wrong[name] == "huge":
                reply.write_bytes(bytes(10**6 + 1))
            elif wrong[name] == "another's":
                reply.write_bytes(encode({"round": 2, "client": "h04"}, {}))
            elif wrong[name] == "a folder":
                reply.mkdir(exist_ok=True)
            elif wrong[name] == "a pipe":
                reply.exists() or os.mkfifo(reply)
            names = [other for other in names if other != name]
        file_study.answers(names)

    file_study.serve(answers, deadline=1.0)
    who = read_frame(tmp_path / "server" / "participation.csv")
    assert who[list(own)].to_numpy().tolist() == [[1] * 5, [1, 2, 2, 2, 1], [1] * 5, [1] * 5]
    for name in wrong:
        assert [line for line in caplog.messages if name in line]


def test_late_replies_are_not_used(own: dict[str, Path], tmp_path: Path) -> None:
    """As if that site had not answered, though its reply lies there in the next round."""
    file_study = FileStudy(formula_study(tmp_path, own), own, tmp_path)
    late: list[str] = []

    def answers(names: list[str]) -> None:
        if list((tmp_path / "exchange" / "h01" / "requests").glob("000002-round-*")):
            late.append("h01")
            names = [name for name in names if name != "h01"]
        elif late:  # it answers round 2 when round 3 is asked
            late.clear()
        file_study.answers(names)

    file_study.serve(answers, deadline=0.5)
    who = read_frame(tmp_path / "server" / "participation.csv")
    assert who["h01"].tolist() == [1, 2, 1, 1]


def test_a_site_that_joins_late_and_one_that_leaves(
    own: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without stopping those who stay; the one who joins is told what the others agreed on."""
    text = formula_study(tmp_path, own, rounds=60).read_text()
    first = tmp_path / "study.toml"
    first.write_text(text.replace('    "h03",\n', ""))
    three, parties = {name: path for name, path in own.items() if name != "h03"}, Parties.of(own)
    file_study = FileStudy(first, three, tmp_path, parties)

    def stops(names: list[str]) -> None:
        if list((tmp_path / "exchange" / "h00" / "requests").glob("000004-round-*")):
            raise KeyboardInterrupt
        file_study.answers(names)

    with pytest.raises(KeyboardInterrupt):
        file_study.serve(stops)
    assert read_status(tmp_path / "server")["ended"] == "KeyboardInterrupt"
    first.write_text(text.replace('    "h00",\n', ""))
    parties.put_into(first)
    file_study.files = own
    for name in ("h01", "h02", "h03"):  # everybody agrees on the new roster
        file_study.restart(name)
    file_study.serve(resume=True)
    assert "the roster has changed after round 3: left h00" in caplog.messages
    assert "the roster has changed after round 3: joined h03" in caplog.messages
    who = read_frame(tmp_path / "server" / "participation.csv")
    assert who.columns.tolist() == ["round", "h01", "h02", "h03"]
    last = len(who)
    assert who["h03"].tolist() == [0, 0, 0] + [1] * (last - 3)
    assert who["h01"].tolist() == who["h02"].tolist() == [1] * last
    assert load(tmp_path / "server" / "checkpoint")[0]["engine/counted"].tolist() == [last] * 3
    # what the method finds in the end is of those who are there
    df = patients(4)
    federation, design = from_formula(df[df.site != "h00"], FORMULA)
    left = fit(MixedEffects(design, draws=0), federation, progress=False, rounds=60, dtype=torch.float64, draws=2)
    expected, _ = left.fitted.method.population_summary(left.fitted)
    effects = read_frame(tmp_path / "server" / "effects.csv", ("effect", "note"))
    assert expected is not None
    slopes = [not name.startswith("Intercept") for name in expected.effect]  # ages are centred at all four sites'
    np.testing.assert_allclose(effects.estimate[slopes], expected.estimate[slopes], rtol=1e-6)


def test_a_site_away_holds_up_what_needs_all(own: dict[str, Path], plain: Path, tmp_path: Path) -> None:
    """The preparation is sums over all sites: the server says who is missing, and goes on later."""
    file_study = FileStudy(formula_study(tmp_path, own), own, tmp_path / "away")

    def without(kind: str) -> None:
        def answers(names: list[str]) -> None:
            folder = tmp_path / "away" / "exchange" / "h02" / "requests"
            file_study.answers([name for name in names if name != "h02" or not list(folder.glob(f"*-{kind}-*"))])

        file_study.serve(answers, deadline=0.3, resume=(tmp_path / "away" / "server").exists())

    with pytest.raises(UserError, match=r"3 of 4 sites have sent their sums \(step 1 of 2\): go on when all have"):
        without("prepare")
    file_study.serve(resume=True)
    same(plain, tmp_path / "away")


def test_what_a_site_has_refused_it_is_asked_again(own: dict[str, Path], tmp_path: Path) -> None:
    """A site with another version of torch is mended while the server is away: its old reply is not taken again."""
    file_study = FileStudy(formula_study(tmp_path, own), own, tmp_path)
    good = {name: site.desk.handshake for name, site in file_study.sites.items()}
    for site in file_study.sites.values():
        site.handshake = site.desk.handshake = replace(site.handshake, torch="1.0")
    with pytest.raises(UserError, match="0 of 4 sites have sent their sums"):
        file_study.serve()
    for name, site in file_study.sites.items():
        site.handshake = site.desk.handshake = good[name]
    file_study.serve(resume=True)
    assert read_status(tmp_path / "server")["round"] == 4


def test_what_is_wrong_with_a_sites_data_stays_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An outcome that the family cannot have, and no range excludes: no approval; and no sum of a file that changes."""
    df = patients(4, counts=True)
    wrong = df.assign(y=np.where(df.site == "h01", -777, df.y))
    study = formula_study(tmp_path, dict.fromkeys(df.site.unique()), family="poisson")
    with pytest.raises(UserError, match="not approved: columns of the study: nothing was recorded"):
        FileStudy(study, own := write_tables(wrong, tmp_path / "data"), tmp_path / "wrong")
    assert not (tmp_path / "wrong" / "h01" / "approvals").exists()
    write_tables(df, tmp_path / "data")
    file_study = FileStudy(study, own, tmp_path)
    write_tables(wrong, tmp_path / "data")
    file_study.restart("h01")
    with pytest.raises(UserError, match=r"3 of 4 sites have sent their sums \(step 1 of 2\); h01 refuses \(data\)"):
        file_study.serve()
    (reply,) = (tmp_path / "exchange" / "h01" / "replies").iterdir()
    assert header(reply.read_bytes())["refused"] == "data"
    assert "the rows are not those that were approved" in caplog.text
    assert "777" not in caplog.text


def test_sites_are_told_where_the_server_ends_with_an_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """And wait for it to go on: what is wrong may be mended."""
    own = write_tables(patients(3).assign(y=1.5), tmp_path / "data")
    file_study = FileStudy(formula_study(tmp_path, own), own, tmp_path)
    with pytest.raises(UserError, match="the response does not vary"):
        file_study.serve()
    caplog.clear()
    file_study.answers(list(own))
    told = [line for line in caplog.messages if line.startswith("the server has ended with an error")]
    assert len(told) == len(own)
    assert all(line.endswith("this site waits for it: the response does not vary") for line in told)
    with pytest.raises(UserError, match="the response does not vary"):
        file_study.serve(resume=True)
