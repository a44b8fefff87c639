"""How many points a study may ask about, and what an answer costs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from support.homes import small_study

from hierfl.data.formula.federate import from_formula
from hierfl.errors import UserError
from hierfl.experiments.federate.guard.approve import propose
from hierfl.experiments.federate.guard.budgets import BUDGETS, EXPLORATION, MORE, default_budget, usual_need
from hierfl.experiments.federate.guard.ledger import Charge
from hierfl.experiments.federate.guard.policy import POLICY, Policy
from hierfl.experiments.federate.guard.rows import keep_rows
from hierfl.experiments.federate.study import Study
from hierfl.inference.engines.remote.points import explores, points_of
from hierfl.inference.method.initial import InitialWeights
from hierfl.inference.options import Options
from hierfl.models import MixedEffects, PFedVEM
from hierfl.nn.networks.build import architecture
from hierfl.responses.registry import RESPONSES
from hierfl.schema import read_toml

TABLE = read_toml(BUDGETS, {"*": dict})
OPTIONS = Options(rounds=100, splits=("train",))


def method(family: str, terms: str = "(1 | site)", known_se: str | None = None, **settings: Any) -> MixedEffects:
    site, outcomes = np.arange(36) % 6, 1 + np.arange(36) % 4
    if family.startswith("binomial"):
        outcomes = outcomes % 2
    elif family == "beta":
        outcomes = outcomes / 9
    df = pd.DataFrame({
        "site": site.astype(str), "region": (site % 2).astype(str), "patient": (np.arange(36) % 9).astype(str),
        "x": np.arange(36) % 5, "y": outcomes, "n": 9,
        "se": 0.5 + (np.arange(36) % 2),
    })  # fmt: skip
    left = "p(y, n)" if family == "beta-binomial" else "y"
    design = from_formula(df, f"{left} ~ x + {terms}", family=family, client="site", known_se=known_se)[1]
    return MixedEffects(design, **({"intervals": "3"} if family == "cox" else {}), **settings)


def shared(of: MixedEffects, phase: float) -> dict[str, torch.Tensor]:
    values = {k: v.double() for k, v in of.shared(InitialWeights.for_network(of.network, 0)).items()}
    return {**values, "effects.phase": torch.tensor(phase, dtype=torch.float64)}


@pytest.mark.parametrize(("family", "need"), [("gaussian", 1), ("binomial", 4)])
def test_a_fit_with_noise_needs_its_releases_alone(family: str, need: int) -> None:
    noisy = Options(rounds=100, splits=("train",), dp="site", epsilon=4.0)
    assert usual_need(method(family, draws=100), noisy, explores=True) == need


@pytest.mark.parametrize("family", RESPONSES)
def test_every_family_has_a_measured_budget_with_a_quarter_more(family: str) -> None:
    budget = default_budget(method(family), OPTIONS)
    assert MORE * TABLE[family]["points"] <= budget < MORE * TABLE[family]["points"] + 6
    assert TABLE[family]["points_95"] <= TABLE[family]["points"]
    more = default_budget(method(family), OPTIONS, exploration=True) - budget
    assert (more == 0) if family == "gaussian" else (more >= max(EXPLORATION, MORE * TABLE[family]["explored"]))


def test_bounds_of_intervals_and_test_scores_need_more() -> None:
    plain = default_budget(method("binomial"), OPTIONS)
    assert default_budget(method("binomial", profile=0.95), OPTIONS) == plain + MORE * 16
    tested = Options(rounds=100, evaluate_every=100, splits=("test",))
    assert default_budget(method("binomial"), tested) == math.ceil(plain + MORE * 3)
    assert default_budget(method("poisson", "(1 | region/site)"), OPTIONS) > default_budget(method("poisson"), OPTIONS)


def test_the_budget_of_a_network_is_its_rounds_and_evaluations() -> None:
    from support.federations import blobs

    options = Options(rounds=10, evaluate_every=5, splits=("train", "test"))
    network = PFedVEM(architecture("linear", blobs([9, 9])))
    assert default_budget(network, options) == math.ceil(MORE * (10 + 2 + 3))
    assert points_of(network, {"kind": "round"}, {}) == 1
    assert not explores(network, {"kind": "round"}, {})


#: family, terms, phase, points that a round costs, and whether it explores
COSTS = [
    ("binomial", "(1 | site)", 0.0, 1, False), ("binomial", "(1 | site)", 2.0, 128, True),
    ("binomial", "(1 | site)", 3.0, 0, False), ("poisson", "(1 | region/site)", 0.0, 9, False),
    ("gaussian", "(1 | site)", 0.0, 1, False), ("gaussian", "(1 | site)", 2.0, 1, False),
    ("gaussian", "(1 | site/patient)", 2.0, 257, True),
]  # fmt: skip


@pytest.mark.parametrize(("family", "terms", "phase", "points", "explored"), COSTS)
def test_what_a_round_costs(family: str, terms: str, phase: float, points: int, explored: bool) -> None:
    """Of a gaussian response of one level all points are of the same sums: a round costs one."""
    of = method(family, terms)
    cost = points_of(of, {"kind": "round"}, shared(of, phase))
    assert cost == points or (phase == 2.0 and cost == points + 1)  # a test of a deviation is beside
    assert explores(of, {"kind": "round"}, shared(of, phase)) == explored


@pytest.mark.parametrize(
    ("kind", "points"), [("scores", 1), ("sums", 1), ("calibration", 1), ("hello", 0), ("finish", 0)]
)
def test_what_other_questions_cost(kind: str, points: int) -> None:
    assert points_of(method("binomial"), {"kind": kind}, {}) == points


def test_known_standard_errors_are_no_few_sums() -> None:
    assert method("gaussian").fixed_sums
    assert not method("gaussian", known_se="se").fixed_sums
    assert not method("gaussian", "(1 | site/patient)").fixed_sums
    assert not method("lognormal").fixed_sums


def test_an_approval_says_whether_the_points_left_are_enough(tmp_path: Path) -> None:
    """A second honest study is refused before it has asked anything, and not in its middle."""
    file_study = small_study(tmp_path)
    home, ledger = file_study.home("north"), file_study.ledger("north")
    (home.folder / POLICY).write_text(Policy(budget={"gaussian": 30}).text())
    need, study, number = TABLE["gaussian"]["points_95"], Study.read(file_study.study).digest, iter(range(9))

    def rule() -> tuple[bool, str]:
        pins = [file_study.parties.server.card, *file_study.parties.cards.values()]
        (budget,) = [
            r for r in propose(home, file_study.study, None, pins=pins, ledger=ledger).rules if r.name == "budget"
        ]
        return budget.holds, budget.margin

    def charge(of: str, points: int) -> None:
        data, name = keep_rows(file_study.gates["north"].site.data.site_data, ledger), f"round {next(number)}"
        ledger.charge(Charge(data, of, "north", name, name, 0, name, points), 10**9)

    assert rule() == (True, f"0 of 30 points were evaluated on these rows, in all studies; this study may need {need}")
    charge("an earlier study", 30 - need)
    assert rule()[0]
    charge(study, 4)  # of the study itself, which needs as many fewer
    assert rule()[0]
    charge("another", 1)
    holds, margin = rule()
    assert not holds
    assert margin.endswith(f"may need {need - 4}: gaussian = 31 in [budget] of policy.toml allows it")
    with pytest.raises(UserError, match="not approved: budget"):
        file_study.approve("north")
