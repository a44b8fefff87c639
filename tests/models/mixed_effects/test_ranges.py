"""Coefficients that a site answers about: those of honest fits, and none that cut its rows at a value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from support.bounded import Checked
from support.more_responses import MORE
from support.responses import CASES

from hierfl.data.formula.federate import from_formula
from hierfl.inference.engines.remote.bounds import Bounds, OutOfBounds
from hierfl.models import MixedEffects
from hierfl.models.mixed_effects.search.narrow import too_narrow

SITES, SLOPES, REGIONS = "y ~ x + g + (1 | site)", "y ~ x + g + (1 + x | site)", "y ~ x + g + (1 | region/site)"
SPREAD = "x ~ y + g + (1 | site)"
SLOPES_OF_REGIONS = "y ~ x + g + (1 + x | region/site)"


def table(kind: str = "plain", sites: int = 4, n: int = 30) -> pd.DataFrame:
    """Sites in two regions, x around 60, three levels g; y is 0 or 1, or a count."""
    rng = np.random.default_rng(7)
    site = np.repeat(np.arange(sites), n)
    x, g = rng.normal(60, 12, len(site)).round(1), rng.choice(list("abc"), len(site))
    eta = {"strong": 0.25, "flat": 0.0}.get(kind, 0.03) * (x - 60) + 0.4 * (g == "b") + rng.normal(size=sites)[site]
    y = rng.binomial(1, 1 / (1 + np.exp(-eta)))
    if kind == "quasi":  # a rare level whose outcomes are all 1
        g = np.where(np.arange(len(site)) % 15 == 0, "c", np.where(g == "c", "a", g))
        y = np.where(g == "c", 1, y)
    if kind == "separated":
        y = (x > 60).astype(int)
    if kind == "counts":
        y = rng.poisson(np.exp(0.5 * eta.clip(-3, 3)))
    names = {"site": [f"s{j}" for j in site], "region": [f"r{j % 2}" for j in site]}
    return pd.DataFrame({"y": y, "x": x, "g": g, **names})


def checked(folder: Path, kind: str, formula: str, family: str, **settings: Any) -> Checked:
    """Sites of a study that check every broadcast."""
    federation, design = from_formula(table(kind), formula, family=family, client="site")
    method = MixedEffects(design, **settings)
    options = {"rounds": 80, "evaluate_every": 80, "dtype": torch.float64, "splits": ("train",), "draws": 2}
    return Checked(method, federation, folder, **options).checking()


@pytest.mark.cpu(18, "a fit of four sites with an exploration")
@pytest.mark.parametrize(
    ("kind", "formula", "family", "draws"),
    [
        pytest.param("plain", SLOPES, "binomial", 0, marks=pytest.mark.slow),
        pytest.param("strong", SITES, "binomial", 100, marks=pytest.mark.slow),
        pytest.param("counts", REGIONS, "poisson", 0, marks=pytest.mark.slow),
        pytest.param("quasi", SITES, "binomial", 0, marks=pytest.mark.slow),
        pytest.param("plain", SITES, "gaussian", 100, marks=pytest.mark.slow),
        pytest.param("counts", SITES, "ordinal", 0, marks=pytest.mark.slow),
        pytest.param("plain", SPREAD, "student-t", 100, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_honest_fits_are_within_bounds(kind: str, formula: str, family: str, draws: int, tmp_path: Path) -> None:
    sites = checked(tmp_path, kind, formula, family, draws=draws)
    run = sites.fit()
    assert sites.method.finished(run.shared)


@pytest.mark.slow
@pytest.mark.cpu(30, "a fit of five sites with an exploration")
@pytest.mark.parametrize("family", [case.family for case in MORE])
def test_honest_fits_with_an_exploration_are_within_bounds(family: str, tmp_path: Path) -> None:
    """Of few rows, which leave a student-t's degrees of freedom without an upper end."""
    case = CASES[family]
    rows = {key: value for key, value in case.how.items() if key == "event"}
    federation, design = from_formula(case.table(5, 7, (25, 31)), case.formula, family=family, client="site", **rows)
    method = MixedEffects(design, draws=100, **{k: v for k, v in case.how.items() if k not in rows})
    options = {"rounds": 80, "evaluate_every": 80, "dtype": torch.float64, "splits": ("train",), "draws": 2}
    run = Checked(method, federation, tmp_path, **options).checking().fit()
    assert method.finished(run.shared)


def test_a_scale_that_sites_would_refuse_is_not_asked_about_where_few_are(tmp_path: Path) -> None:
    method = checked(tmp_path, "plain", SPREAD, "student-t", draws=10).method
    points = torch.zeros(64, sum(method.sizes.values()), dtype=torch.float64)
    column = sum([*method.sizes.values()][: [*method.sizes].index("log_scale")])
    for many, kept in ((2, False), (3, True)):
        points[:many, column] = -2.5
        assert bool(too_narrow(method, points).any()) != kept
        assert kept or too_narrow(method, points).tolist() == [k < many for k in range(64)]
    gaussian = checked(tmp_path / "g", "plain", SPREAD, "gaussian", draws=10).method
    assert not too_narrow(gaussian, torch.zeros(4, sum(gaussian.sizes.values()), dtype=torch.float64)).any()


def test_covariates_that_separate_the_outcomes_end_the_fit_in_words(tmp_path: Path) -> None:
    """There is no estimate, and the climb's coefficients are an oracle by themselves."""
    with pytest.raises(OutOfBounds, match="unless covariates separate the outcomes"):
        checked(tmp_path, "separated", SITES, "binomial", draws=0).fit()


def first(tmp_path: Path, formula: str, family: str, **settings: Any) -> tuple[Bounds, dict[str, torch.Tensor]]:
    sites = checked(tmp_path, "plain" if family == "binomial" else "counts", formula, family, **settings)
    site = next(iter(sites.sites.values()))
    return Bounds(site), {k: v.clone() for k, v in site.shared.items()}


#: a shared value, the index of a coefficient of x there, and how large it is, by a formula
STEEP = [
    (SITES, "effects.at", (-3,), 300.0, {}),
    (SITES, "effects.beta", (1,), 300.0, {}),
    (SITES, "effects.points", (5, -3), 300.0, {"effects.phase": 2.0}),
    (SITES, "effects.draws", (5, -3), 300.0, {"effects.phase": 3.0}),
    (SLOPES_OF_REGIONS, "effects.nodes", (0, 0, 1), 1e4, {}),
    (SLOPES_OF_REGIONS, "effects.many_nodes", (1, 0, 0, 1), 1e4, {"effects.phase": 2.0}),
    (SITES, "effects.phase", (), 17.0, {}),
    (SITES, "effects.phase", (), 0.5, {}),
]


@pytest.mark.parametrize(("formula", "name", "index", "value", "beside"), STEEP, ids=[str(case[:3]) for case in STEEP])
def test_made_up_numbers_are_not_computed_with(
    formula: str, name: str, index: tuple[int, ...], value: float, beside: dict[str, float], tmp_path: Path
) -> None:
    bounds, shared = first(tmp_path, formula, "binomial", draws=10)
    for other, number in beside.items():
        shared[other] = torch.tensor(number, dtype=torch.float64)
    head = {"kind": "round", "round": 2}
    bounds.check(head, shared)
    shared[name][index] = value
    with pytest.raises(OutOfBounds):
        bounds.check(head, shared)


def test_few_regions_may_be_far_apart(tmp_path: Path) -> None:
    """Draws of a deviation between two regions have no bound, and a constant moves all rows alike."""
    bounds, shared = first(tmp_path, REGIONS, "poisson", draws=10)
    shared["effects.phase"] = torch.tensor(2.0, dtype=torch.float64)
    shared["effects.many_nodes"][1] = 700.0  # an honest fit of four sites has asked for 656
    bounds.check({"kind": "round", "round": 2}, shared)


def test_effects_of_items_do_not_single_out_rows(tmp_path: Path) -> None:
    """An item whose effect has no end leaves the rows of the others."""
    bounds, shared = first(tmp_path, "y ~ x + (1 | site) + (1 | g)", "binomial", draws=10)
    bounds.check({"kind": "round", "round": 2}, shared)
    for name in ("crossed_at", "crossed"):
        far = {**shared, f"effects.{name}": shared[f"effects.{name}"].clone()}
        far[f"effects.{name}"][1] = 70.0
        with pytest.raises(OutOfBounds):
            bounds.check({"kind": "round", "round": 2}, far)


def test_a_power_of_time_does_not_single_out_the_longest(tmp_path: Path) -> None:
    sites = checked(tmp_path, "counts", SITES.replace("y ~", "I(y + 1) ~"), "weibull", draws=0)
    site = next(iter(sites.sites.values()))
    shared = {k: v.clone() for k, v in site.shared.items()}
    shared["effects.at"][sites.method.sizes["root"]] = 9.0
    with pytest.raises(OutOfBounds):
        Bounds(site).check({"kind": "round", "round": 2}, shared)


@pytest.mark.parametrize(("name", "value"), [("log_scale", -3.0), ("beta", 1e3)])
def test_a_scale_that_is_small_beside_a_sites_responses_does_not_single_them_out(
    name: str, value: float, tmp_path: Path
) -> None:
    """Of a t's scale, and of coefficients beside it."""
    sites = checked(tmp_path, "plain", SPREAD, "student-t", draws=0)
    site = next(iter(sites.sites.values()))
    shared, head = {k: v.clone() for k, v in site.shared.items()}, {"kind": "round", "round": 2}
    Bounds(site).check(head, shared)
    sizes = sites.method.sizes
    shared["effects.at"][sum([*sizes.values()][: [*sizes].index(name)])] = value
    with pytest.raises(OutOfBounds, match="its scale is so small" if name != "beta" else "cut the rows at a value"):
        Bounds(site).check(head, shared)
