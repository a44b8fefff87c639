"""Clients shared by ranks: the numbers are those of one plate."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from support import rank_fits
from support.engine_cases import CASES, agree, plate, quick_messages
from support.once import Once
from support.ranks import forked

from hierfl.errors import UserError
from hierfl.inference.engines.ranks import shards


def ranks_agree(ranks: int, names: list[str], once: Once, tmp_path: Path) -> None:
    """With partial participation, a message that is rejected and a round that is skipped."""
    folders = {name: once(f"plate-{name}", plate([name])) for name in names}
    importlib.import_module("hierfl.inference.engines.distributed")
    assert forked(ranks, rank_fits.main, tmp_path, *names) == [""] * ranks
    for name in names:
        agree(folders[name] / name, tmp_path / name, name)


@pytest.mark.cpu(24, "two processes, and every aggregation rule")
def test_two_ranks_agree_with_the_plate(once: Once, tmp_path: Path) -> None:
    ranks_agree(2, quick_messages(), once, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ranks_agree_with_the_plate_whatever_the_method(ranks: int, once: Once, tmp_path: Path) -> None:
    ranks_agree(ranks, list(CASES), once, tmp_path)


def test_clients_are_shared_by_cost() -> None:
    """The most costly first, each to the rank that has least to do."""
    assigned = shards([5, 1, 9, 4, 4, 1], list("abcdef"), 2)
    assert assigned == [[2, 4], [0, 1, 3, 5]]
    with pytest.raises(UserError, match="2 clients cannot be shared by 3 ranks"):
        shards([1, 1], ["a", "b"], 3)
