"""A prior's scale, chosen on validation data."""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hierfl.errors import UserError
from hierfl.inference.method.settings import scale_setting

from ..configure import configure
from ..messages import to_stderr
from ..methods import load
from .cells import criterion, search

#: multiples of a prior's usual scale that are tried, and how often the grid grows by a factor of three at its end
FACTORS, EXTENSIONS = (0.1, 0.3, 1.0, 3.0, 10.0), 3
#: share of the training data that a scale is chosen by, and of a table's rows that priors are compared on
VALIDATION_FRACTION, TEST_FRACTION = 0.1, 0.2


def priors_of(method: str) -> list[str]:
    """A method's priors, the learned one first.

    Raises:
        UserError: if it has no choice of them.
    """
    loaded = load(method)
    kind = typing.get_type_hints(loaded.cls.Settings).get("prior")
    priors = [str(p) for p in typing.get_args(kind)]
    if len(priors) < 2:
        raise UserError(
            f"{loaded.name} has no priors to compare: a method's are the words of its setting prior, such as "
            "Literal['hierarchical', 'fixed'], the learned one first"
        )
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
        scales: what is tried; by default a tenth to ten times what the method has for these data. If the best value is
            the smallest or largest, further values beyond it are tried.
        progress: whether to show it.

    Raises:
        UserError: if there are no validation data, or nothing is finite.
    """
    cls, say = load(method).cls, to_stderr(progress)
    name = scale_setting(cls, prior)
    if name is None or name in settings:
        say(f"{prior}: {'no scale to choose' if name is None else f'{name}={settings[name]}, as given'}")
        return {}
    whole = configure(method, data, given, {**settings, "prior": prior}).settings
    grid = {k: [str(v)] for k, v in settings.items()} | {"prior": [prior]}
    wanted = sorted(scales or [factor * whole[name] for factor in FACTORS])
    options = {"validation_fraction": VALIDATION_FRACTION, **{k: v for k, v in given.items() if k != "seed"}}
    if options["validation_fraction"] == 0:
        raise UserError(
            "a prior's scale is chosen on validation data: --validation-fraction above 0, or --choose-seeds 0"
        )
    path, tried, best = out / f"choose-{prior}.json", wanted, wanted[0]
    for more in range(EXTENSIONS + 1):
        words = [f"{value:g}" for value in tried]
        cells = search(method, data, seeds, {**grid, name: words}, path, options, say=say)
        # The file may hold cells of other settings, and of other scales than these.
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
