"""tracking.json: by which identity each tracker knows a run, so that a resumed run goes on in it."""

from __future__ import annotations

import json
from pathlib import Path

from hierfl.files import write_whole
from hierfl.schema import Number, Schema, read_json

FILE = "tracking.json"
FORM: Schema = {"*": {"id": str, "where": str, "logged?": [{"round": Number(int, 0), "split": str}]}}


def read_kept(folder: Path, tracker: str) -> dict | None:
    """The entry of a tracker; None without one.

    Args:
        folder: of the run.
        tracker: its name.

    Raises:
        UserError: for a damaged file.
    """
    path = folder / FILE
    return read_json(path, FORM).get(tracker) if path.is_file() else None


def write_kept(folder: Path, tracker: str, entry: dict) -> None:
    """Replaces the entry of a tracker. Arguments as of :func:`read_kept`."""
    path = folder / FILE
    kept = read_json(path, FORM) if path.is_file() else {}
    write_whole(path, (json.dumps({**kept, tracker: entry}, indent=1) + "\n").encode())
