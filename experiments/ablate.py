"""`hierfl ablate`: does a method's hierarchical prior earn its keep?

Runs of a method with each of its priors, everything else equal, over seeds; each prior with a scale of its own, chosen
on validation data; then :mod:`hierfl.experiments.compare`. Everything is in one folder, and what is there is not run
again:

    choose-PRIOR.json     the search for the prior's scale
    PRIOR-SEED/           runs, on all training data
    comparison/           hierarchical against the others
"""

from __future__ import annotations

import sys
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hierfl.data.tables import is_table
from hierfl.errors import UserError
from hierfl.files import check_writable
from hierfl.inference.method.settings import applicable, scale_setting

from . import compare
from . import folder as folders
from .choose import criterion, search
from .methods import load
from .runner import configure
from .tables import check_cell, run_cell

#: of a prior's usual scale, what is tried; how often three times more or less, where the best is at an end
FACTORS, EXTENSIONS = (0.1, 0.3, 1.0, 3.0, 10.0), 3
#: share of the training data that a scale is chosen by, and of a table's rows that priors are compared on
HELD_OUT, TEST = 0.1, 0.2


@dataclass(frozen=True)
class Cell:
    """One run."""

    method: str
    data: str
    given: Mapping[str, Any]
    settings: Mapping[str, Any]
    seed: int

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"{self.settings['prior']}-{self.seed}"

    def config(self, extra: dict[str, Any]) -> dict[str, Any]:
        """Of the run: all training data."""
        given = {"validation": 0.0, **self.given, **extra, "seed": self.seed}
        return configure(self.method, self.data, given, self.settings)


def priors_of(method: str) -> list[str]:
    """A method's priors, the learned one first.

    Raises:
        UserError: if it has no choice of them.
    """
    loaded = load(method)
    kind = typing.get_type_hints(loaded.cls.Settings).get("prior")
    priors = [str(p) for p in typing.get_args(kind)]
    if len(priors) < 2:
        raise UserError(f"{loaded.name} has no priors to compare")
    return priors


def chosen_scale(
    method: str, data: str, prior: str, given: Mapping[str, Any], settings: Mapping[str, Any], out: Path,
    seeds: int, scales: Sequence[float] = (), progress: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """The scale of a prior by validation data, {setting: value}; empty for a prior that has none.

    Args:
        method, data, given, settings: what is fitted to what.
        prior: whose scale.
        out: the folder of the search.
        seeds: how many it is averaged over.
        scales: what is tried; by default a tenth to ten times what the method has for these data, and on from there
            where the best is at an end.
        progress: whether to show it.

    Raises:
        UserError: if there are no validation data, or nothing is finite.
    """
    cls, say = load(method).cls, (lambda line: print(line, file=sys.stderr, flush=True)) if progress else _nothing
    name = scale_setting(cls, prior)
    if name is None or name in settings:
        say(f"{prior}: {'no scale to choose' if name is None else f'{name}={settings[name]}, as said'}")
        return {}
    whole = configure(method, data, given, {**settings, "prior": prior})["settings"]
    grid = {k: [str(v)] for k, v in settings.items()} | {"prior": [prior]}
    wanted = sorted(scales or [factor * whole[name] for factor in FACTORS])
    told = {"validation": HELD_OUT, **{k: v for k, v in given.items() if k != "seed"}}
    if told["validation"] == 0:
        raise UserError("a prior's scale is chosen on validation data: --validation above 0, or --choose-seeds 0")
    path, tried, best = out / f"choose-{prior}.json", wanted, wanted[0]
    for more in range(EXTENSIONS + 1):
        words = [f"{value:g}" for value in tried]
        cells = search(method, data, seeds, {**grid, name: words}, path, told, say=say)
        # (the file may hold cells of other settings, and of other scales than these)
        mine = [c for c in cells if {**c["all_settings"], name: None} == {**whole, name: None}]
        mine = [c for c in mine if f"{c['all_settings'][name]:g}" in words]
        if criterion(mine[0]) == float("inf"):
            raise UserError(f"under the {prior} prior nothing that was tried is finite: {name}={', '.join(words)}")
        best = float(mine[0]["all_settings"][name])
        at_end = f"{best:g}" in (words[0], words[-1]) and len(words) > 1
        if scales or not at_end or more == EXTENSIONS:
            break
        tried = [tried[0] / 3, *tried] if f"{best:g}" == words[0] else [*tried, tried[-1] * 3]
    say(f"{prior}: {name}={best:g}{', at the end of what was tried' if at_end else ''}")
    return {name: best}


def _nothing(line: str) -> None:
    """Says nothing."""


def run(
    method: str, data: str, given: Mapping[str, Any], settings: Mapping[str, Any], seeds: int, out: Path, *,
    choose_seeds: int = 1, scales: Sequence[float] = (), progress: bool = True,
) -> compare.Comparison:  # fmt: skip
    """Chooses, runs and compares; see the module.

    Args:
        method, data: what is fitted to what.
        given: run options.
        settings: of the method, the same for every prior.
        seeds: runs of each prior.
        out: the folder of all of it.
        choose_seeds: seeds over which a scale is chosen; 0 takes the scale that the method has for these data.
        scales: what is tried.
        progress: whether to show the runs.

    Raises:
        UserError: for a method without priors, or ``prior`` among the settings.
    """
    if "prior" in settings:
        raise UserError("the prior is what ablate varies")
    if seeds < 1 or choose_seeds < 0:
        raise UserError("ablate needs at least one seed, and no less than 0 to choose by")
    if scales and not choose_seeds:
        raise UserError("--scales are to be chosen among, and --choose-seeds 0 chooses none")
    priors, found = priors_of(method), dict[str, dict[str, Any]]()
    if is_table(data):
        given = {"test": TEST, **given}
        if not given["test"]:
            raise UserError("priors are compared on test data: --test above 0")
    names = {name for prior in priors if (name := scale_setting(load(method).cls, prior))}
    if scales and (fixed := sorted(names & settings.keys())):
        raise UserError(f"{fixed[0]} is said by --set, so that --scales changes nothing")
    for prior in priors:
        found[prior] = {**applicable(load(method).cls, settings, {"prior": prior}), "prior": prior}
        configure(method, data, given, found[prior])  # (cannot be? say so before anything is run)
    whole = {k: v for k, v in given.items() if k not in ("seed", "validation")}
    place = {k: given[k] for k in ("data_root", "device") if k in given}
    check_writable(out / "ablation")
    for prior in priors:  # (a folder of another ablation? say so before anything is run)
        name = scale_setting(load(method).cls, prior)
        for seed in range(seeds):
            cell = Cell(method, data, whole, found[prior], seed)
            if (out / cell.name / "config.toml").is_file():
                held = folders.read_config(out / cell.name)["settings"].get(name)
                known = {} if name is None or not choose_seeds else {name: held}
                check_cell(replace(cell, settings={**known, **found[prior]}), out / cell.name, place)
    for prior in priors if choose_seeds else ():
        own = {k: v for k, v in found[prior].items() if k != "prior"}
        found[prior] |= chosen_scale(method, data, prior, given, own, out, choose_seeds, scales, progress)
    runs = []
    for seed in range(seeds):
        for prior in priors:
            cell = Cell(method, data, whole, found[prior], seed)
            folder = out / cell.name
            if progress and not (folder / "summary.json").is_file():
                print(f"{prior} prior, seed {seed}", file=sys.stderr, flush=True)
            run_cell(cell, folder, place, progress)
            runs.append(folder)
    order = sorted(runs, key=lambda folder: priors.index(folder.name.rpartition("-")[0]))
    result = compare.compared(order)
    compare.write(result, compare.make(out / "comparison"))
    return result
