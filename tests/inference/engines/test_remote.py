"""Clients at their own sites, asked through bytes: the numbers are those of one plate."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.engine_cases import CASES, agree, how_of, keep, named, plate, quick, spoiled_messages
from support.once import Once
from support.representatives import of_all
from support.sites import Sites


@pytest.mark.cpu(8, "a mixed model's rounds at every site, one after the other")
@pytest.mark.parametrize("name", of_all([*CASES], quick(), str))
def test_sites_agree_with_the_plate(name: str, once: Once, tmp_path: Path) -> None:
    """Every method, with partial participation, a message that is rejected and a round that is skipped."""
    method, federation = CASES[name]()
    federation = named(federation)
    how = {k: v for k, v in how_of(method).items() if k != "progress"}
    plate_folder = once(f"plate-{name}", plate([name])) / name
    with spoiled_messages():
        sites = Sites(method, federation, tmp_path, new_clients=True, **how)
        run = sites.fit()
    keep(run, tmp_path / "sites", sites.values("personal"), sites.values("copies"))
    agree(plate_folder, tmp_path / "sites", name, by_sums=True)
