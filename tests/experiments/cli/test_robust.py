"""`hierfl run --robust`: rules by name, what a run leaves, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.commands import Call
from support.liars import LIES, lying

from hierfl.experiments.run_folder.csv_files import read_frame

LINEAR = ("run", "fedavg", "--clients", 10, "--network", "linear", "--rounds", 3, "--out", "o")


@pytest.mark.cpu(6, "two runs, and a page")
def test_a_liar_is_named_on_the_screen_and_in_the_report(hierfl: Call, tmp_path: Path) -> None:
    """As client 3, with a rule and without."""
    for rule in ("none", "krum:1"):
        with lying(LIES["x -10"]()):
            code, out, error = hierfl(*LINEAR, "--robust", rule, "--overwrite")
        assert code == 0, error
        assert "client 3 stands out by the size of its message" in out
        summary = json.loads((tmp_path / "o/summary.json").read_text())
        assert len(summary["warnings"]) == 1
        influence = read_frame(tmp_path / "o/influence.csv")
        assert influence[influence["round"] == 1].set_index("client")["norm"].idxmax() == 3
    assert hierfl("report", "o", "--no-features")[0] == 0
    assert "stands out" in (tmp_path / "o/report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--robust", "mean"), "robust is none, trimmed:SHARE"),
        (("--robust", "krum:4"), "needs at least 11 clients, and there are 10"),
        (("--robust", "median", "--masked"), "mask_groups"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(more: tuple[str, ...], words: str, hierfl: Call) -> None:
    code, _, error = hierfl(*LINEAR, *more)
    assert code == 2
    assert words in error
    assert not Path("o").exists()


def test_groups_of_masked_sums_are_compared(hierfl: Call, tmp_path: Path) -> None:
    """Ten clients in three groups, whose rows of influence.csv have the names of their clients."""
    more = ("--masked", "--mask-groups", 3, "--robust", "median", "--clients", 10)
    code, _, error = hierfl("run", "fedavg", "--network", "linear", "--rounds", 1, "--out", "o", *more)
    assert code == 0, error
    names = read_frame(tmp_path / "o/influence.csv", ("client",))["client"].tolist()
    assert len(names) == 3
    assert sorted(" + ".join(names).split(" + ")) == [str(j) for j in range(10)]
