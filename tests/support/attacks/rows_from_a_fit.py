"""The same attack by a server that only fits: it has what an honest fit asks for, and nothing else."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import torch
from support.attacks.rows_from_answers import (
    Answers,
    Array,
    Victim,
    asked,
    computed,
    ends_of,
    guess,
    recovered,
    rows,
)

from hierfl.data.formula.federate import from_formula
from hierfl.inference import fit
from hierfl.inference.server.rules.base import AggregationContext
from hierfl.inference.state import State
from hierfl.models import MixedEffects
from hierfl.models.mixed_effects.search.loop import PopulationSearch


def honest(family: str, n: int, seed: int) -> dict[str, object]:
    """What a server learns that only fits: the coefficients of a fit of 10 sites, this one among them."""
    own = rows(family, n, seed)
    parts = [pd.DataFrame({**own._asdict(), "site": "south"})]
    parts += [pd.DataFrame({**rows(family, 60, 100 * seed + j)._asdict(), "site": f"s{j}"}) for j in range(9)]
    with TemporaryDirectory() as folder:
        victim = Victim(family, own, Path(folder))
        path = asked_by(pd.concat(parts), family, victim)
        answers = Answers(path, asked(victim, path).numbers)
        solution = computed(family, victim, answers, n, seed)
    return {
        "family": family, "n": n, "points": len(path), "seed": seed, "recovered": recovered(solution, own),
        "guess": recovered(guess(n), own), "ends": recovered(solution, own, ends_of(own)),
    }  # fmt: skip


def asked_by(df: pd.DataFrame, family: str, victim: Victim) -> Array:
    """Where an honest fit asks, (N, 2): intercept and coefficient of x of the victim's units."""
    federation, design = from_formula(df, "y ~ x + sex + (1 | site)", family=family)
    method, coefficients = MixedEffects(design, draws=0), []
    update = PopulationSearch.update

    def noted(self: PopulationSearch, old: State, total: State, context: AggregationContext) -> State:
        coefficients.append(method.parts(old["effects.at"])["beta"].numpy())
        return update(self, old, total, context)

    PopulationSearch.update = noted  # type: ignore[method-assign]
    try:
        fit(method, federation, rounds=60, evaluate_every=60, splits=(), dtype=torch.float64, progress=False)
    finally:
        PopulationSearch.update = update  # type: ignore[method-assign]
    centre, scale = np.array(design.fixed_units.centre), np.array(design.fixed_units.scale)
    beta = np.unique(np.array(coefficients), axis=0) / scale
    intercept = design.offset + beta[:, 0] - beta[:, 1:] @ centre[1:] + beta[:, 2] * 0.5
    return np.stack([intercept + beta[:, 1] * victim.centre[1], beta[:, 1] * victim.scale[1]], 1)
