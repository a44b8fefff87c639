"""Clients at their own sites, asked through bytes: the numbers are those of one plate."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.engine_cases import CASES, agree, how_of, keep, named, spoiled_messages
from support.sites import Sites

from hierfl.inference import fit


@pytest.mark.parametrize("name", CASES)
def test_sites_agree_with_the_plate(name: str, tmp_path: Path) -> None:
    """Every method, with partial participation, a message that is rejected and a round that is skipped."""
    method, federation = CASES[name]()
    federation = named(federation)
    how = {k: v for k, v in how_of(method).items() if k != "progress"}
    with spoiled_messages():
        keep(fit(method, federation, progress=False, **how), tmp_path / "plate")
        sites = Sites(method, federation, tmp_path, new_clients=True, **how)
        run = sites.fit()
    keep(run, tmp_path / "sites", sites.values("personal"), sites.values("copies"))
    agree(tmp_path / "plate", tmp_path / "sites", name, by_sums=True)
