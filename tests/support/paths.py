"""Where things are."""

from __future__ import annotations

from pathlib import Path

#: of the repository
ROOT = Path(__file__).parents[2]
