"""Every structure of a mixed model has a budget of points, with which an honest fit ends."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from hierfl.data.formula.federate import from_formula
from hierfl.errors import UserError
from hierfl.experiments.federate.guard.budgets import MORE, STRUCTURES, default_budget, usual_need
from hierfl.inference.method.capabilities import evaluated_points
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.options import Options
from hierfl.models import MixedEffects
from hierfl.responses.registry import RESPONSES
from hierfl.schema import read_toml

OPTIONS, MEASURED = Options(rounds=100, splits=("train",)), read_toml(STRUCTURES, {"*": dict})
INSIDE = ("(1 | site/ward)", "(1 | site/ward/patient)", "(1 | site) + (1 | site:ward) + (1 | site:patient)")
CROSSING = (
    "(1 | site) + (1 | item)", "(1 | site/ward) + (1 | item)", "s(z, k=5) + (1 | site)",
    "s(z, k=5) + s(v, k=5) + (1 | site/ward/patient) + (1 | item)",
)  # fmt: skip
GAUSSIAN = ("", "; dispersion ~ x", "; dispersion ~ (1 | site)", "; dispersion ~ x + (1 | site)")


def method(family: str, right: str) -> MixedEffects:
    row = np.arange(48)
    y = row % 2 if family.startswith("binomial") else (1 + row % 4) / (9 if family == "beta" else 1)
    names = {"site": row % 4, "ward": row // 4 % 3, "patient": row // 12 % 2, "item": row // 3 % 4}
    df = pd.DataFrame({"y": y, "n": 9, "x": row % 5, "z": row % 7 * 1.0, "v": row % 11 * 1.0})
    df = df.assign(**{name: values.astype(str) for name, values in names.items()})
    left = "p(y, n)" if family == "beta-binomial" else "y"
    design = from_formula(df, f"{left} ~ x + {right}", family=family, client="site")[1]
    return MixedEffects(design, draws=0, **({"intervals": "3"} if family == "cox" else {}))


def budget_and_round(of: MixedEffects) -> tuple[int, int]:
    """The budget, and what a round around a point costs; a fit of 19 in 20 is within the budget."""
    budget = default_budget(of, OPTIONS)
    assert usual_need(of, OPTIONS) <= budget <= default_budget(of, OPTIONS, exploration=True)
    return budget, evaluated_points(of, of.shared(InitialWeights.for_network(of.network, 0)))


@pytest.mark.parametrize("family", RESPONSES)
def test_levels_inside_sites_need_what_the_family_does(family: str) -> None:
    alone = default_budget(method(family, "(1 | site)"), OPTIONS)
    for terms in INSIDE:
        try:
            of = method(family, terms)
        except UserError:  # of some responses not every structure is
            continue
        budget, each = budget_and_round(of)
        assert each == 1
        assert budget >= (MORE * MEASURED["combined"]["points"] if family == "gaussian" else alone)


@pytest.mark.parametrize("family", RESPONSES)
def test_rounds_of_a_stencil_are_counted_in_points(family: str) -> None:
    alone = default_budget(method(family, "(1 | site)"), OPTIONS)
    for terms in CROSSING:
        of = method(family, terms)
        budget, each = budget_and_round(of)
        if family == "gaussian":
            assert each == 1
            assert budget >= max(alone, MORE * MEASURED["combined"]["points"])
        else:
            assert each == 1 + of.k + of.k**2
            assert budget >= MORE * each * MEASURED["crossed"]["points"]


@pytest.mark.parametrize("terms", ["(1 | site)", *INSIDE, *CROSSING])
def test_deviations_of_clients_own_are_a_search(terms: str) -> None:
    alone = default_budget(method("gaussian", "(1 | site)"), OPTIONS)
    for dispersion in GAUSSIAN:
        try:
            of = method("gaussian", terms + dispersion)
        except UserError:
            assert "(1" in dispersion  # beside some structures there are none
            continue
        budget, each = budget_and_round(of)
        assert each == 1
        assert budget >= (MORE * MEASURED["own-spreads"]["points"] if "(1" in dispersion else alone)
