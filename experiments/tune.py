"""`hierfl tune`: settings of a method for a data set, searched on validation data with a budget that is the same for all.

A method's grid is the published one (``hierfl/models/grids.toml``), or what the command line says. Of its cells as many
are run as the budget allows, spread evenly over every setting's values; which, depends on the grid and the budget's size
alone, and a larger budget begins with the cells of a smaller one. Cells are kept in one json as they end
(:mod:`hierfl.experiments.choose`), so that a search that was stopped goes on.
"""

from __future__ import annotations

import itertools
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from hierfl.errors import UserError
from hierfl.noise import uniform

from . import choose
from .methods import load

Grid = dict[str, list[str]]


def grids() -> dict[str, dict[str, Any]]:
    """All published grids by method, with their ``source``."""
    return tomllib.loads((files("hierfl.models") / "grids.toml").read_text())


def published_grid(method: str) -> tuple[Grid, str]:
    """A method's grid and whose it is.

    Raises:
        UserError: if there is none.
    """
    found = grids()
    if method not in found:
        raise UserError(
            f"no grid is published for {method}; say one, as in lr=0.1,0.01 batch=10,50; there are some for "
            f"{', '.join(found)}"
        )
    table = dict(found[method])
    source = str(table.pop("source"))
    return {name: [str(v) for v in values] for name, values in table.items()}, source


def spread(grid: Mapping[str, Sequence[str]], budget: int) -> list[dict[str, str]]:
    """So many cells of a grid, all levels of a setting about equally often and in varying company.

    One after the other that cell whose levels, and pairs of levels, have been taken least so far; of equals the first
    in an order that the names alone decide.
    """
    cells = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    cells.sort(key=lambda cell: uniform("cells", *itertools.chain(*cell.items())))
    taken: dict[Any, int] = {}
    chosen = []
    for _ in range(min(budget, len(cells))):
        best = min(cells, key=lambda cell: sum(taken.get(part, 0) for part in _parts(cell)))
        cells.remove(best)
        chosen.append(best)
        for part in _parts(best):
            # (a single level counts for more than a pair)
            taken[part] = taken.get(part, 0) + (len(best) if len(part) == 1 else 1)
    return chosen


def _parts(cell: Mapping[str, str]) -> list[tuple[tuple[str, str], ...]]:
    """Levels, and pairs of levels."""
    return [*((item,) for item in cell.items()), *itertools.combinations(cell.items(), 2)]


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
        seeds, settle: as for :func:`hierfl.experiments.choose.search`.
        by: metrics that cells are judged by; those that a method does not have are left out.
        progress: whether to say what is going on.

    Returns:
        The best cell.

    Raises:
        UserError: for a budget that is none, no grid, or a search that cannot be.
    """
    if budget < 1:
        raise UserError(f"a budget is a number of cells, not {budget}")
    name = load(method).name
    whole, source = grid, "as said on the command line"
    if not grid or all(len(values) == 1 for values in grid.values()):  # (what is fixed stands beside the published)
        whole, source = published_grid(name)
        whole = {**whole, **grid}
    cells = spread(whole, budget)
    out = out or Path("runs") / f"tune-{name}-{Path(data).stem}.json"
    begun, number = time.monotonic(), itertools.count(1)

    def say(line: str) -> None:
        if progress:
            spent = time.monotonic() - begun
            print(f"cell {next(number)} of at most {len(cells)}, {spent:.0f} s: {line}", file=sys.stderr, flush=True)

    if progress:
        many = 1
        for values in whole.values():
            many *= len(values)
        print(f"{name} on {data}: {len(cells)} of {many} settings ({source})", file=sys.stderr, flush=True)
    found = choose.search(method, data, seeds, whole, out, given, settle, by, say, cells=cells, lenient=True)
    best = found[0]
    if choose.criterion(best, [k for k in by if k in best]) == float("inf"):
        raise UserError(f"nothing that was tried is finite; all cells are in {out}")
    if progress:
        print(table(name, data, best, len(cells), seeds, by, given))
        print(f"all cells are in {out}")
    return best


def table(
    name: str, data: str, best: Mapping[str, Any], budget: int, seeds: int, by: Sequence[str], given: Mapping[str, Any]
) -> str:
    """The best settings as they stand in ``hierfl/models/settings/NAME.toml``."""
    from tomli_w import dumps

    judged = [k for k in by if best.get(k) is not None] or ["pm_nll" if best.get("pm_nll") is not None else "pm_rmse"]
    score = ", ".join(f"{k} {best[k]:.4g}" for k in judged)
    rounds = f" of {given['rounds']} rounds" if "rounds" in given else ""
    how = f"best of {budget} settings{rounds} on validation data ({score}), {seeds} seed{'s' * (seeds > 1)}"
    said = {key: best["all_settings"][key] for key in best["settings"]}
    return dumps({data: {"chosen": how, **said}})
