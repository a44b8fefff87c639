"""Folders of studies and runs from before sites had keys, and studies that run while places are upgraded."""

from __future__ import annotations

import logging
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import tomli_w
from support.commands import Call
from support.homes import Kept, kept_home, small_study
from support.once import Once
from support.run_folders import Finished

from hierfl.arviz_io import read, write
from hierfl.errors import UserError
from hierfl.experiments.federate.guard.audit import Audit
from hierfl.experiments.federate.study import Study
from hierfl.experiments.run_folder.config_file import read_config
from hierfl.experiments.run_folder.summary import read_summary
from hierfl.inference.engines.remote import sealed
from hierfl.inference.engines.remote.files import requests_in
from hierfl.inference.engines.remote.sealed import read_request, seal_request
from hierfl.inference.engines.remote.wire import decode, encode
from hierfl.schema import read_toml


@pytest.fixture
def kept(tmp_path: Path, once: Once) -> Kept:
    return kept_home(tmp_path / "place", once)


def before_keys(path: Path) -> str:
    """study.toml as it was of format 1; its digest then."""
    table = read_toml(path, {"format": int})
    table = {k: v for k, v in table.items() if k != "keys"} | {"format": 1}
    path.write_text(tomli_w.dumps(table))
    return Study.read(path, finished=True).digest


def site_before(kept: Kept, to: Path) -> Path:
    """A site's folder as it was: one study directly in it, and files of the first format of the wire."""
    shutil.copytree(kept.folder, to, ignore=shutil.ignore_patterns("answers", "told.*"))
    digest = before_keys(to / "study.toml")
    for name in ("site.safetensors", "prepared.safetensors"):
        head, tensors = decode((to / name).read_bytes())
        del head["checksum"]
        (to / name).write_bytes(encode({**head, "format": 1, "study": digest}, tensors))
    return to


@pytest.mark.cpu(4, "a study, a report")
def test_a_site_from_before_keys_predicts_and_reports_and_takes_no_part(
    kept: Kept, tmp_path: Path, hierfl: Call
) -> None:
    old, new = site_before(kept, tmp_path / "at-north"), kept.home.folder
    sample = kept.root / "sample.csv"
    answers = [hierfl("predict", folder, "--data", sample) for folder in (old, new)]
    assert answers[0] == answers[1]
    assert answers[0][0] == 0
    assert hierfl("report", old, "--quiet")[0] == 0
    assert (old / "results/report.html").is_file()
    for command in (
        ("site", old, "--exchange", tmp_path / "x"),
        ("respond", kept.root / "sample.csv", "--folder", old, "--out", tmp_path / "replies"),
        ("approve", old, "--study", kept.root / "study.toml", "--data", kept.root / "north.csv", "--by", "N"),
        ("forget", old),
    ):
        code, _, error = hierfl("federate", *command)
        assert (code, error.count("\n")) == (2, 1), error
        assert "is from before sites had keys" in error


def test_a_server_from_before_keys_shows_its_status_and_goes_on_with_its_own_version(
    kept: Kept, tmp_path: Path, hierfl: Call
) -> None:
    server, study = kept.root / "server", kept.root / "study.toml"
    before_keys(server / "study.toml")
    before_keys(study)
    for path in (server / "status.json", server / "summary.json"):
        assert path.is_file()
    assert "round 2 of 2" in hierfl("federate", "status", server)[1]
    kept_server = ("--home", kept.root, "--exchange", tmp_path / "x", "--out", server, "--resume")
    for command in (("server", study, *kept_server), ("check", study, "--data", kept.root / "north.csv")):
        code, _, error = hierfl("federate", *command)
        assert (code, error.count("\n")) == (2, 1), error
        assert "finish this study with the version of hierfl that began it, or draft it again" in error


def test_a_run_from_before_rows_were_said_opens(finished: Finished, tmp_path: Path, hierfl: Call) -> None:
    """Its config.toml has no `rows`, its summary no `held_rows`, its posterior.nc says neither."""
    folders = [finished("pfedvem", tmp_path / name, "--seed", seed) for seed, name in enumerate(("a", "b"))]
    for folder in folders:
        config = (folder / "config.toml").read_text()
        (folder / "config.toml").write_text(config.replace("rows = true\n", ""))
        summary = (folder / "summary.json").read_text()
        start = summary.index(' "held_rows"')
        (folder / "summary.json").write_text(summary[:start] + summary[summary.index(' "versions"') :])
        data = read(folder / "posterior.nc")
        data.attrs.clear()
        write(data, folder / "posterior.nc")
        assert not read(folder / "posterior.nc").attrs
    assert read_config(folders[0]).run.rows is True
    assert "held_rows" not in read_summary(folders[0])
    assert hierfl("report", folders[0], "--quiet", "--no-features")[0] == 0
    page = (folders[0] / "report.html").read_text()
    assert "This run is from before its folder said so" in page
    assert hierfl("run", "--resume", folders[0], "--quiet")[0] == 0
    # of one setting, which a comparison says in one line
    assert "nothing to compare" in hierfl("compare", *folders)[2]


def test_requests_and_replies_of_another_version_are_one_line_that_says_what_to_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = small_study(tmp_path)
    asked: list[bytes] = []

    def answers(names: list[str]) -> None:
        if not asked:
            asked.extend(path.read_bytes() for path in requests_in(tmp_path / "exchange", "north"))
            study.gates["north"].answer(asked[0])
        study.answers(names)

    study.serve(answers)
    plain, outer = read_request(asked[0])
    gate, server = study.gates["north"], study.parties.server
    head, tensors = decode(plain)
    now = Study.read(study.study).handshake

    def reason(request: bytes) -> tuple[str, str]:
        caplog.clear()
        gate.answer(request)
        line = Audit(gate.home.folder).lines[-1]
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
        return line["refused"], line["reason"]

    # an earlier server's request is not sealed at all
    assert reason(encode({**head, "handshake": {**asdict(now), "format": 1}}, tensors)) == (
        "signature", "it is not signed as hierfl's messages of format 2 are: install the same version of hierfl at "
        "both ends, or finish this study with the version that began it",
    )  # fmt: skip
    # a later one's is of a form that is not known
    monkeypatch.setattr(sealed, "FORMAT", 3)
    later = seal_request(plain, server, outer["study"], 99)
    monkeypatch.undo()
    assert "install the same version of hierfl at both ends" in reason(later)[1]
    # one whose files differ
    other = {**head, "handshake": asdict(replace(now, code="0" * 16))}
    assert reason(seal_request(encode(other, tensors), server, outer["study"], 99)) == (
        "version", "hierfl's own files differ: install the same version of hierfl at both ends, unchanged",
    )  # fmt: skip


def test_a_server_says_which_site_is_of_another_version(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A site of the format before answers in the clear."""
    study = small_study(tmp_path)
    answering = study.answering

    def earlier(name: str) -> object:
        if name != "south":
            return answering(name)
        return lambda request: encode({"client": name, "round": 0, "error": "the format is another one"}, {})

    study.answering = earlier  # type: ignore[method-assign, assignment]
    with pytest.raises(UserError, match="2 of 3 sites"):
        study.serve(deadline=1.0)
    messages = [record.getMessage() for record in caplog.records if "south is dropped" in record.getMessage()]
    assert messages
    assert "install the same version of hierfl at both ends" in messages[0]
