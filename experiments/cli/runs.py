"""`hierfl runs`: which runs there are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .as_json import AsJson, print_json
from .options import path_argument


def runs(
    folder: Annotated[Path, path_argument("[FOLDER]", "Folder of the runs, and of folders of runs.")] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """List runs: method, data, rounds, their main score, and whether they have finished; the newest last."""
    from ..run_folder.listing import listed

    rows = listed(folder)
    if as_json:
        print_json([vars(row) for row in rows])
        return
    if not rows:
        typer.echo(f"no runs in {folder}")
        return
    from .screen import console, text_table

    table = text_table("run", "method", "data", "rounds", "score", "state")
    for row in rows:
        score = "" if row.score is None else f"{row.metric} {row.score:.4g}"
        progress_words = "" if row.rounds is None else f"{'?' if row.done is None else row.done} of {row.rounds}"
        table.add_row(row.name, row.method, row.data, progress_words, score, row.state)
    console().print(table)
