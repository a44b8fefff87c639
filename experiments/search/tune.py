"""`hierfl tune`: a method's settings for a data set, searched on validation data with a budget that is equal for all.

A method's grid is the published one (``hierfl/models/grids.toml``), or what the command line says. Of its cells as many
are run as the budget allows: from the method's defaults on, one setting after the other moves while that is better. A
larger budget goes on where a smaller one ended. Cells are kept in one json as they end
(:mod:`hierfl.experiments.search.cells`), so that a search that was stopped goes on.
"""

from __future__ import annotations

import dataclasses
import math
import time
import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from hierfl.errors import UserError
from hierfl.inference.method.capabilities import reads_columns
from hierfl.inference.method.settings import applicable, make_settings

from ..configure import configure, usual_data
from ..messages import to_stderr
from ..methods import load
from .cells import criterion, search
from .climb import climb, in_order, start_places

Grid = dict[str, list[str]]


def grids() -> dict[str, dict[str, Any]]:
    """All published grids by method, with their ``source``."""
    return tomllib.loads((files("hierfl.models") / "grids.toml").read_text())


def published_grid(method: str) -> tuple[Grid, str]:
    """A method's grid and whose it is.

    Raises:
        UserError: if there is none.
    """
    grids_of_methods = grids()
    if method not in grids_of_methods:
        raise UserError(
            f"no grid is published for {method}; say one, as in lr=0.1,0.01 batch=10,50; there are some for "
            f"{', '.join(grids_of_methods)}"
        )
    table = dict(grids_of_methods[method])
    source = str(table.pop("source"))
    return {name: [str(v) for v in values] for name, values in table.items()}, source


def data_of(method: str, data: str | None) -> str:
    """The data on which settings are chosen: the method's usual ones for None.

    Raises:
        UserError: for a plain model, all of whose rows are fitted.
    """
    loaded = load(method)
    if reads_columns(loaded.cls):
        raise UserError(
            f"{loaded.name} is a plain Pyro model: settings are chosen on validation data, and all of its rows are "
            "fitted; hierfl ablate A.py B.py compares models by rows that they have not seen"
        )
    return str(data or usual_data(loaded.cls))


def tune(
    method: str, data: str, given: dict[str, Any], grid: Grid, budget: int, out: Path | None = None, *,
    seeds: int = 1, settle: int = 1, by: Sequence[str] = (), progress: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """Searches, and says what was found.

    Args:
        method, data, given: what is fitted to what.
        grid: values by setting; instead of the published ones, or beside them where a setting is fixed to one value.
        budget: how many cells.
        out: the json; None for ``runs/tune-METHOD-DATA.json``.
        seeds, settle: as for :func:`hierfl.experiments.search.cells.search`.
        by: metrics that cells are judged by; those that a method does not have are left out, where it has one of them.
        progress: whether to say what is going on.

    Returns:
        The best cell.

    Raises:
        UserError: for a budget that is none, no grid, none of the metrics, or a search that cannot be.
    """
    if budget < 1:
        raise UserError(f"a budget is a number of cells, not {budget}")
    name = load(method).name
    whole, source = grid, "as given"
    if all(len(values) == 1 for values in grid.values()):  # what is fixed is shown beside the published
        whole, source = published_grid(name)
        whole = {**whole, **grid}
    whole = in_order(whole)
    out = out or Path("runs") / f"tune-{name}-{Path(data).stem}.json"
    begun, tried = time.monotonic(), 0

    tell = to_stderr(progress)

    def say(line: str) -> None:
        tell(f"{tried} of {budget}, {time.monotonic() - begun:.0f} s: {line}")

    many, start = math.prod(map(len, whole.values())), start_places(method, whole)
    first = {key: values[start[key]] for key, values in whole.items()}
    for key, values in whole.items():  # before anything is run
        for number in values:
            configure(method, data, given, {**first, key: number})
    cells: list[dict[str, Any]] = []

    def value(cell: dict[str, str]) -> float:
        nonlocal tried
        tried += 1
        searched = search(method, data, seeds, whole, out, given, settle, by, say, [cell], True, progress)
        wanted = made(configure(method, data, given, cell).settings)
        cells.append(next(c for c in searched if made(c["all_settings"]) == wanted))
        return judged(cells[-1])

    def made(settings: Mapping[str, Any]) -> Any:
        cls = load(method).cls
        return make_settings(cls, applicable(cls, settings))  # a setting that is newer than the file has its default

    def judged(cell: Mapping[str, Any]) -> float:
        has = [k for k in by if k in cell]
        if by and not has:
            raise UserError(f"{name} has no {' and no '.join(by)} to be judged by")
        return criterion(cell, has)

    tell(f"{name} on {data}: at most {min(budget, many)} of {many} settings ({source})")
    try:
        looked = climb(whole, start, budget, value)
    except KeyboardInterrupt:
        tell(f"stopped; {len(cells)} of {budget} settings are in {out}: the same command goes on")
        raise
    if looked < min(budget, many):
        tell(f"no neighbour of the best of {looked} settings is better; hierfl search runs all {many}")
    best = min(cells, key=judged)
    if judged(best) == math.inf:
        raise UserError(f"nothing that was tried is finite; all cells are in {out}")
    if progress:
        print(best_as_toml(name, data, best, len(cells), seeds, by, given))
        print(f"all cells are in {out}")
    return best


def best_as_toml(
    name: str, data: str, best: Mapping[str, Any], budget: int, seeds: int, by: Sequence[str], given: Mapping[str, Any]
) -> str:
    """The best settings as in ``hierfl/models/settings/NAME.toml``: what was searched, or is no default."""
    from tomli_w import dumps

    judged = [k for k in by if best.get(k) is not None] or ["pm_nll" if best.get("pm_nll") is not None else "pm_rmse"]
    score = ", ".join(f"{k} {best[k]:.4g}" for k in judged)
    rounds = f" of {_many(given['rounds'], 'round')}" if "rounds" in given else ""
    how = f"best of {_many(budget, 'setting')}{rounds} on validation data ({score}), {_many(seeds, 'seed')}"
    default = {f.name: f.default for f in dataclasses.fields(load(name).cls.Settings)}
    chosen = {k: v for k, v in best["all_settings"].items() if k in best["settings"] or v != default[k]}
    return dumps({data: {"chosen": how, **chosen}})


def _many(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"
