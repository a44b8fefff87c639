"""A hospital that is attacked."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.attacks.gated import Hospital
from support.attacks.hospitals import SITES


@pytest.fixture
def north(tmp_path: Path) -> Hospital:
    """With keys, a policy of defaults, and a ledger of its own."""
    return Hospital(tmp_path / "north", SITES)
