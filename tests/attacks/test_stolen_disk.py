"""Whoever has a site's disk: what they read there, and what they do not."""

from __future__ import annotations

import stat
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.homes import Kept, kept_home
from support.once import Once
from support.rows_of_files import of_rows

from hierfl.experiments.federate.guard.answers import ANSWERS
from hierfl.experiments.federate.papers.forget import forget
from hierfl.experiments.federate.papers.withdraw import withdraw
from hierfl.inference.engines.remote.sealed import open_reply
from hierfl.inference.engines.remote.wire import Unreadable, header

#: rows of the site north
ROWS = 40


@pytest.fixture
def kept(tmp_path: Path, once: Once) -> Kept:
    return kept_home(tmp_path / "place", once)


def responses(kept: Kept) -> np.ndarray:
    return pd.read_csv(kept.root / "north.csv")["y"].to_numpy()


def test_stored_answers_do_not_open_with_the_sites_own_key(kept: Kept) -> None:
    """They are sealed to the server: not even who has the site's disk reads what was answered."""
    stored = sorted((kept.folder / ANSWERS).glob("*.reply"))
    assert stored
    site = kept.home.identity
    for path in stored:
        data = path.read_bytes()
        with pytest.raises(Unreadable):
            open_reply(data, site, site.card, str(header(data)["question"]), study=kept.study)


def test_only_its_user_may_look_into_a_home_and_a_ledger(kept: Kept) -> None:
    for folder in (kept.home.folder, kept.ledger.folder / "rows"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    private = [
        "site.key",
        "audit.jsonl",
        "known.toml",
        "approvals/*",
        "studies/*/site.safetensors",
        "studies/*/answers/*",
    ]
    for pattern in private:
        paths = sorted(kept.home.folder.glob(pattern))
        assert paths, pattern
        assert {stat.S_IMODE(path.stat().st_mode) for path in paths} == {0o600}


def test_no_row_is_in_a_home_or_in_the_ledger(kept: Kept) -> None:
    """Values of the site's model are, and hashes of rows whose key is beside them."""
    assert of_rows(kept.home.folder, {ROWS}, responses(kept)) == []
    lines = of_rows(kept.ledger.folder, {ROWS}, responses(kept))
    assert {line.partition(":")[0].split("/")[0] for line in lines} == {"rows"}  # a hash for each row
    assert not [line for line in lines if "has a response" in line]


@pytest.mark.parametrize("how", ["withdraw", "forget"])
def test_what_was_withdrawn_or_forgotten_is_not_on_the_disk(how: str, kept: Kept) -> None:
    """Neither state nor answers: what stays are digests and who decided what."""
    before = {path.read_bytes() for path in kept.folder.rglob("*") if path.suffix in (".safetensors", ".reply")}
    assert len(before) > 3
    if how == "withdraw":
        withdraw(kept.home, kept.folder, "Dr North", kept.ledger)
    else:
        forget(kept.home, "", None, kept.ledger)
    contents = [path.read_bytes() for path in kept.home.folder.rglob("*") if path.is_file()]
    assert not before & set(contents)
    assert not [path for path in kept.home.folder.rglob("*") if path.suffix in (".safetensors", ".reply")]
