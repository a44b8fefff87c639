"""Rows that sites declare: bounds of study.toml, and messages that agree with what was said at the preparation."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import tomli_w
import torch
from support.studies import FileStudy, formula_study, patients, write_tables

from hierfl.data.federated.array_data import ArrayData
from hierfl.data.federated.formula_data import FormulaData
from hierfl.errors import UserError
from hierfl.experiments.federate.study import Study
from hierfl.experiments.federate.study_site import SiteRows
from hierfl.experiments.run_folder.csv_files import read_frame
from hierfl.inference.engines.remote.preparation import prepare
from hierfl.inference.engines.remote.row_counts import RowBounds, training_rows
from hierfl.inference.engines.remote.wire import Unreadable
from hierfl.inference.server.receiver import Receiver
from hierfl.inference.state import State
from hierfl.schema import read_json


def study(folder: Path, rounds: int = 40, **privacy: Any) -> FileStudy:
    own = write_tables(patients(4), folder / "data")
    path = formula_study(folder, own, rounds=rounds)
    table = tomllib.loads(path.read_text())
    table["privacy"] |= privacy
    path.write_text(tomli_w.dumps(table))
    return FileStudy(path, own, folder)


def test_bounds_between_which_no_site_lies_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="least_rows, 5, is above most_rows, 4"):
        study(tmp_path, least_rows=5, most_rows=4)


def test_a_site_with_more_rows_takes_no_part(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"rows, more than the 6 that the study allows \(most_rows\)"):
        study(tmp_path, most_rows=6)


@pytest.mark.parametrize(("factor", "words"), [(1e9, "the study is of sites of 2 to 60"), (1.01, "no whole number")])
def test_a_site_that_invents_rows_at_the_preparation(
    factor: float, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its sums are not used, and a study needs all: the server says who it is."""
    file_study, sums = study(tmp_path, most_rows=60), SiteRows.sums

    def lying(rows: SiteRows, before: Any) -> State:
        site_sums = sums(rows, before)
        if rows.site_data.client == "h02" and not before:  # type: ignore[attr-defined]
            site_sums["n"] = site_sums["n"] * factor
        return site_sums

    monkeypatch.setattr(SiteRows, "sums", lying)
    with pytest.raises(UserError, match="3 of 4 sites have sent their sums"):
        file_study.serve()
    assert any("h02" in line and words in line for line in caplog.messages)


def test_messages_agree_with_the_preparation(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A resumed server knows what was declared. With a robust rule the study goes on without the liar."""
    file_study = study(tmp_path, robust="median")
    add = Receiver.add

    def lying(receiver: Receiver, messages: Any, clients: Any, healthy: Any = None) -> Any:
        assert receiver.rows is not None
        if clients == [2]:
            counts = messages["effects"]["counts"]
            messages = {"effects": {**messages["effects"], "counts": counts * torch.tensor([1.0, 1e9])}}
        return add(receiver, messages, clients, healthy)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Receiver, "add", lying)
        summary = file_study.serve()
    assert any("h02 stands out by messages that were rejected" in line for line in summary["warnings"])
    assert any("h02" in line and "not used" in line for line in caplog.messages)
    assert (tmp_path / "server" / "influence.csv").is_file()
    assert (tmp_path / "server" / "without.csv").is_file()
    assert read_json(tmp_path / "server" / "summary.json", {"*": object})["rounds"] < 40
    assert 2 in read_frame(tmp_path / "server" / "participation.csv")["h02"].tolist()


def rows_of(step: int, sums: Mapping[str, torch.Tensor]) -> float | None:
    return None if step else float(sums["n"])


def test_what_is_declared_is_kept_once() -> None:
    bounds = RowBounds(rows_of, 5, 20)
    for n, words in ((4, "it declares 4 rows"), (21, "it declares 21 rows"), (7.5, "no whole number")):
        with pytest.raises(Unreadable, match=words):
            bounds.check(0, 3, {"n": torch.tensor(float(n))})
    bounds.check(1, 3, {"n": torch.tensor(1000.0)})
    bounds.note(0, 1, {"n": torch.tensor(12.0)})
    bounds.note(0, 1, {"n": torch.tensor(13.0)})
    assert bounds.rows_by_client == {1: 12}


def test_training_rows_of_what_is_declared() -> None:
    """All of them, or between a half of what is not held out and all; who is not known may say what it likes."""
    assert training_rows({}, ["a"], 0.0) is None
    exact = training_rows({"a": 100}, ["a", "b"], 0.0)
    some = training_rows({"a": 100}, ["a"], 0.2)
    assert exact is not None
    assert some is not None
    assert exact.tolist() == [[100, 1], [100, torch.inf]]
    assert some.tolist() == [[40], [100]]


def test_kinds_of_data_say_how_many_rows_their_sums_are_of(tmp_path: Path) -> None:
    images = ArrayData((3, 4, 5), True, 10, network="mlp:5", name="a study")
    assert images.declared_rows(0, {"n": torch.tensor(140.0)}) == 7
    numbers = ArrayData((4,), False, 10, network="mlp:5", name="a study")
    assert numbers.declared_rows(0, {}) is None
    learned = ArrayData((4,), False, 0, network="mlp:5", name="a study", learn_sd="shared")
    assert learned.declared_rows(0, {k: torch.tensor(8.0) for k in learned.form([])}) == 8
    assert learned.summed_columns(0) == {"": [], "y_": ("the response",)}
    assert images.summed_columns(0) == {"": ["channel 1", "channel 2", "channel 3"]}
    data = Study.read(study(tmp_path).study).data
    assert isinstance(data, FormulaData)
    assert data.declared_rows(0, {"n": torch.tensor(9.0)}) == 9
    assert data.declared_rows(1, {}) is None


@pytest.mark.cpu(3, "a study by files")
def test_a_site_in_other_units_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Before the first round; in summary.json of a resumed server, too. No number is changed."""
    file_study, sums = study(tmp_path, rounds=1), SiteRows.sums

    def grams(rows: SiteRows, before: Any) -> State:
        site_sums = sums(rows, before)
        if rows.site_data.client == "h02" and before:  # type: ignore[attr-defined]
            site_sums |= {
                "response.total": 1e4 * site_sums["response.total"],
                "response.square": 1e8 * site_sums["response.square"],
            }
        return site_sums

    monkeypatch.setattr(SiteRows, "sums", grams)
    summary = file_study.serve()
    (line,) = (line for line in summary["warnings"] if "before the first round" in line)
    assert line.startswith("h02 stands out before the first round by the ")
    assert " of the response, " in line
    assert caplog.messages.count(line) == 1
    again = RowBounds(rows_of)
    questions = Mock(handshake=Study.read(file_study.study).handshake, ids=["h02"])
    prepare(questions, Mock(), tmp_path / "server", rows=again)
    assert again.unlike == [line]
