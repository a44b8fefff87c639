"""Clients shared by ranks: the numbers are those of one plate."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.engine_cases import CASES, agree, how_of, keep, named, spoiled_messages
from support.paths import ROOT
from support.ranks import processes

from hierfl.errors import UserError
from hierfl.inference import fit
from hierfl.inference.engines.ranks import shards


@pytest.fixture(scope="module")
def plate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every case on one plate."""
    folder = tmp_path_factory.mktemp("plate")
    for name, make in CASES.items():
        method, federation = make()
        with spoiled_messages():
            keep(fit(method, named(federation), **how_of(method)), folder / name)
    return folder


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(3, marks=pytest.mark.slow)])
def test_ranks_agree_with_the_plate(ranks: int, plate: Path, tmp_path: Path) -> None:
    """Every method, with partial participation, a message that is rejected and a round that is skipped."""
    started = processes(ranks, str(ROOT / "tests" / "support" / "rank_fits.py"), str(tmp_path))
    said = [process.communicate()[1].decode() for process in started]
    assert [process.returncode for process in started] == [0] * ranks, said[0][-2000:]
    for name in CASES:
        agree(plate / name, tmp_path / name, name)


def test_clients_are_shared_by_cost() -> None:
    """The most costly first, each to the rank that has least to do."""
    found = shards([5, 1, 9, 4, 4, 1], list("abcdef"), 2)
    assert found == [[2, 4], [0, 1, 3, 5]]
    with pytest.raises(UserError, match="2 clients cannot be shared by 3 ranks"):
        shards([1, 1], ["a", "b"], 3)
