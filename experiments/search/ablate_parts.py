"""`hierfl ablate` of a method whose parts can be taken out, or added: what is each of them worth?

A method declares its parts as ``ablations``, settings by name, the whole first. All are run with the same seeds, on all
training data, and compared client by client. What is there is not run again:

    NAME-SEED/            runs
    comparison/           the whole against the others
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

from hierfl.errors import UserError
from hierfl.files import check_writable

from ..compare.comparison import Comparison, compare_runs
from ..configure import configure
from ..grid import Cell, check_cell, run_cells
from ..messages import to_stderr
from ..methods import load
from ..report.comparison import comparison_folder, write_comparison


@runtime_checkable
class HasParts(Protocol):
    """A method, or a class of methods, whose parts ``hierfl ablate`` takes out one by one."""

    ablations: ClassVar[Mapping[str, Mapping[str, str]]]


def has_parts(method: str) -> bool:
    """Whether a method declares its ablations."""
    return isinstance(load(method).cls, HasParts)


def ablate_parts(
    method: str, data: str, given: Mapping[str, Any], settings: Mapping[str, Any], seeds: int, out: Path,
    progress: bool = True,
) -> Comparison:  # fmt: skip
    """Runs the whole and each ablation, and compares them.

    Args:
        method, data: what is fitted to what.
        given: run options.
        settings: of the method, the same for all.
        seeds: runs of each, with seeds 0, 1, ...
        out: the folder of all of it.
        progress: whether to show the runs.

    Raises:
        UserError: for a setting that an ablation varies, no seed, or a folder of other runs.
    """
    cls: Any = load(method).cls
    varied = sorted({name for own in cls.ablations.values() for name in own} & settings.keys())
    if varied:
        raise UserError(f"{varied[0]} is what ablate varies")
    if seeds < 1:
        raise UserError("ablate needs at least one seed")
    given = {"validation_fraction": 0.0, **{k: v for k, v in given.items() if k != "seed"}}
    location: dict[str, Any] = {k: given[k] for k in ("data_root", "device") if k in given}
    cells = [
        Cell(f"{name}-{seed}", f"{name}, seed {seed}", name, method, data, given, {**settings, **own}, seed)
        for seed in range(seeds)
        for name, own in cls.ablations.items()
    ]
    for cell in cells[: len(cls.ablations)]:  # cannot be? say so before anything is run
        configure(method, data, given, dict(cell.settings))
    check_writable(out / "ablation")
    for cell in cells:
        if (out / cell.name / "config.toml").is_file():
            check_cell(cell, out / cell.name, location)
    run_cells(cells, out, location, say=to_stderr(progress), progress=progress)
    names = list(cls.ablations)
    in_order = sorted(cells, key=lambda cell: names.index(cell.row))
    labels = {out / cell.name: cell.row.replace("-", " ") for cell in in_order}
    result = compare_runs([*labels], labels=labels)
    write_comparison(result, comparison_folder(out / "comparison"))
    return result
