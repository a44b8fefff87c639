"""Settings of several methods, chosen on validation data with one budget for all: before anything is tested.

    hierfl table choose-digits --out OUT

Each method's search is a ``hierfl tune`` of its own, kept in OUT/tune-METHOD-DATA.json, and goes on where it was. What
was chosen is written as OUT/chosen.toml: entries ``[[where]]``, as a table of runs has them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hierfl.errors import UserError

from ..configure import configure
from ..messages import to_stderr
from ..methods import load
from ..run_folder.files import write_text
from ..search.cells import criterion
from ..search.tune import tune
from .definition import EntryKey, Table


def run_searches(
    table: Table, asked: list[EntryKey], budget: int, seeds: int, given: Mapping[str, Any], out: Path, collect: bool
) -> list[dict[str, Any]]:
    """Searches what is missing; for each method and data set what is best of what has been tried, by earlier calls too.

    Args:
        table: with a grid for each method.
        asked: those of its methods and data sets that are searched.
        budget: settings of each method.
        seeds: of each setting, from 0.
        given: run options.
        out: the folder.
        collect: search nothing.

    Raises:
        UserError: for a method without a grid, a budget that is none, or validation data that there are not.
    """
    if budget < 1:
        raise UserError(f"a budget is a number of settings, not {budget}")
    for entry in asked:
        if entry.method not in table.grid:
            raise UserError(f"{table.name} has no grid of {entry.method}: [grid.{entry.method}]")
    chosen = []
    for entry in table.places():
        if entry.method not in table.grid:
            continue
        kind, row = table.variants.get(entry.method, (entry.method, {}))
        condition = table.condition(entry)
        options = {**table.run, **condition.run, **given, **({"clients": entry.clients} if entry.clients else {})}
        fixed = {k: [str(v)] for k, v in {**table.settings, **condition.settings, **row}.items()
                 if k in load(kind).cls.Settings.__dataclass_fields__}  # fmt: skip
        grid = {**table.grid[entry.method], **fixed}
        name = "-".join(
            filter(None, ("tune", Path(entry.method).stem, Path(entry.data).stem, str(entry.clients or "")))
        )
        path = out / f"{name}.json"
        if entry in asked and not collect:
            to_stderr()(f"{entry.method} on {entry.data}: {min(budget, math.prod(map(len, grid.values())))} settings")
            tune(kind, entry.data, options, grid, budget, path, seeds=seeds, by=["pm_nll"], progress=False)
        cells = json.loads(path.read_text())["cells"] if path.is_file() else []
        best = min(cells, key=lambda cell: criterion(cell, ["pm_nll"]), default=None)
        if best is not None and best.get("pm_nll") is not None:
            whole = configure(kind, entry.data, options, best["settings"]).settings
            searched = {k: whole[k] for k in table.grid[entry.method]}
            chosen.append({
                "entry": entry, "settings": searched, "tried": len(cells), "of": math.prod(map(len, grid.values())),
                "nll": best["pm_nll"],
            })  # fmt: skip
    if chosen:
        write_text(out / "chosen.toml", as_toml(chosen, seeds))
    return chosen


def as_toml(chosen: list[dict[str, Any]], seeds: int) -> str:
    """What was chosen, as entries of a table of runs."""
    from tomli_w import dumps

    entries = [
        "[[where]]\n" + dumps({"data": choice["entry"].data, "method": choice["entry"].method})
        + "\n[where.settings]\n" + dumps(choice["settings"])
        for choice in chosen
    ]  # fmt: skip
    comments = [
        f"# {choice['entry'].method}: best of {choice['tried']} settings ({choice['of']} in the grid) by "
        f"validation NLL {choice['nll']:.4f}, {seeds} seed{'s' * (seeds != 1)}"
        for choice in chosen
    ]
    return "\n".join([*comments, "", *entries])
