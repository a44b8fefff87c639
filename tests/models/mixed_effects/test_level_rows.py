"""Rows of clients with groups inside them or above: at sites, predicted, and refused."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from operator import add
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from support.levels import table
from support.responses import CASES
from support.sites import Sites

from hierfl import mixed_model
from hierfl.data.federated.design import StudyFormula
from hierfl.data.federated.dictionary import Column, Dictionary
from hierfl.data.federated.study_reader import study_reader
from hierfl.data.formula.design import Design
from hierfl.data.formula.federate import from_formula
from hierfl.errors import UserError
from hierfl.inference import fit
from hierfl.models import MixedEffects

GAUSSIAN = CASES["gaussian"]


@pytest.mark.parametrize(
    ("family", "formula"),
    [
        ("gaussian", "y ~ x + (1 | region/site) + (1 + x | region:site:patient)"),
        pytest.param("poisson", "y ~ x + (1 | site/patient)", marks=pytest.mark.slow),
        pytest.param("poisson", "y ~ x + (1 | region/site)", marks=pytest.mark.slow),
    ],
)
def test_sites_find_what_the_table_would(family: str, formula: str, tmp_path: Path) -> None:
    df = table(CASES[family], 3, 3, 3, 4)
    used = ["y", "x", *(name for name in ("region", "patient") if name in formula)]
    # The same after any number of rounds.
    how: dict = {"rounds": 6, "draws": 2, "dtype": torch.float64, "evaluate_every": 6, "splits": ("train",)}
    coarse: dict = {"draws": 8, "nodes": 3}  # in both the same
    federation, design = from_formula(df, formula, family=family, client="site")  # type: ignore[arg-type]
    whole = fit(MixedEffects(design, **coarse), federation, progress=False, **how)

    kinds = {"y": Column("number"), "x": Column("number", least=-5, most=5)}
    kinds |= {"region": Column("category", ("r0", "r1", "r2")), "patient": Column("name")}
    study = StudyFormula(formula, Dictionary({k: v for k, v in kinds.items() if k in used}), family)  # type: ignore[arg-type]
    tables = {str(name): rows[used] for name, rows in df.groupby("site")}
    reader = study_reader(study, reduce(add, (study.first(rows) for rows in tables.values())))
    network = reader.design(reduce(add, (reader.second(rows) for rows in tables.values())))
    most = max(rows.patient.nunique() for rows in tables.values()) if "patient" in used else 0
    if network.inner is not None:  # which each site knows of its own; one federation of all needs the most
        assert network.inner.most == 1
        network = Design.from_columns(
            network.fixed, network.random, network.family, network.extras, blocks=network.blocks,
            centre=network.centre, scale=network.scale, fixed_units=network.fixed_units,
            random_units=network.random_units, inner=replace(network.inner, most=most), outer=network.outer,
        )  # fmt: skip
    assert (network.inner, network.outer) == (
        design.inner and replace(design.inner, units=network.inner.units), design.outer
    )  # fmt: skip
    own = {name: reader.federation(rows, name) for name, rows in tables.items()}
    run = Sites(MixedEffects(network, **coarse), own["s000"], tmp_path, own, **how).fit()
    effects, numbers = run.fitted.method.population_summary(run.fitted)
    expected, pooled = whole.fitted.method.population_summary(whole.fitted)
    assert effects is not None
    assert expected is not None
    pd.testing.assert_frame_equal(effects, expected, rtol=1e-6)
    assert numbers["log_likelihood"] == pytest.approx(pooled["log_likelihood"], rel=1e-10)


def test_predictions_are_of_whom_a_row_says() -> None:
    df = table(GAUSSIAN, 4, 5, 3, 6)
    fitted = mixed_model(df, "y ~ x + (1 | region/site/patient)", client="site", draws=2000)
    e, own = (
        fitted.summary().table.set_index("effect").estimate,
        {name: fitted.ranef(name) for name in ("client", "patient", "region")},
    )
    row = df[df.site == "s001"].iloc[[0]].drop(columns="y")
    base = e["Intercept"] + e["x"] * row.x.iloc[0]
    site = own["client"].set_index("client")["mean"]["s001"]
    region = own["region"].set_index("region")["mean"]["r0"]
    patient = own["patient"].set_index(["client", "patient"])["mean"][("s001", row.patient.iloc[0])]
    for change, effects in (
        ({}, region + site + patient),
        ({"patient": "somebody"}, region + site),  # a patient that was not there, of a site that was
    ):
        predictions = fitted.predict(row.assign(**change))
        assert predictions["mean"].iloc[0] == pytest.approx(base + effects, abs=0.1)
    known, unknown = (fitted.predict(row.assign(patient=name)) for name in (row.patient.iloc[0], "somebody"))
    wide = unknown.upper - unknown.lower
    assert (known.upper - known.lower < 0.7 * wide).all()
    # without the column of regions, which a known client needs not: its own
    pd.testing.assert_frame_equal(fitted.predict(row.drop(columns="region")), fitted.predict(row))
    new = [fitted.predict(row.assign(region=name), level="new") for name in ("r0", "elsewhere")]
    assert new[0]["mean"].iloc[0] == pytest.approx(base + region, abs=0.15)
    assert new[1]["mean"].iloc[0] == pytest.approx(base, abs=0.15)
    spread = np.sqrt(e["sd(Intercept)"] ** 2 + e["sd(Intercept | patient)"] ** 2)
    assert (new[0].upper - new[0].lower).iloc[0] > 3 * spread


def test_more_levels_are_compared() -> None:
    df = table(GAUSSIAN, 4, 5, 3, 6)
    small = mixed_model(df, "y ~ x + (1 | site)", draws=0)
    large = mixed_model(df, "y ~ x + (1 | site/patient)", draws=0)
    comparison = small.compare(large)
    assert comparison.reference.iloc[1] == "half chi-squared(0), half chi-squared(1)"
    assert comparison.statistic.iloc[1] == pytest.approx(2 * (large.log_likelihood - small.log_likelihood), rel=1e-9)


@pytest.mark.slow
def test_a_posterior_is_the_pyro_models() -> None:
    """Log densities of the rows at draws of all levels, by SciPy."""
    case = CASES["poisson"]
    df = table(case, 3, 3, 2, 3, seed=3)
    how: dict = {"family": "poisson", "client": "site", "draws": 24, "nodes": 1}
    fitted = mixed_model(df, "y ~ x + (1 | region/site/patient)", **how)
    data, federation = fitted.posterior().isel(chain=[0]), fitted.run.fitted.federation
    at = torch.cat(list(federation.train)).numpy()
    rows = fitted.method.network.split(federation.x[None, at])
    site = np.repeat(np.arange(9), federation.sizes())
    b, c = (data.posterior[name].to_numpy()[0] for name in ("b", "c"))  # (D, J, 1), (D, J, groups, 1)
    effects = data.posterior["effects"].to_numpy()[0]
    draws = fitted.method.parts(fitted.run.shared["effects.draws"].unflatten(0, (4, -1))[0])
    eta = effects[:, :1] + effects[:, 1:2] * federation.x[at, 1].numpy() + b[:, site, 0]
    eta = eta + c[:, site, rows.inner[0].long().numpy(), 0]
    eta = eta + draws["regions"][:, rows.outer[0].long(), 0].numpy()
    y = pd.DataFrame({"y": federation.y[at].numpy()})
    wanted = case.log_density(y, eta.T, np.zeros(0)).T
    np.testing.assert_allclose(data.log_likelihood["y"].to_numpy()[0], wanted, rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "formula", "how", "line"),
    [
        ({"patient": "one"}, "y ~ x + (1 | site/patient)", {}, "no site has more than one patient"),
        ({"region": "r0"}, "y ~ x + (1 | region/site)", {"client": "site"}, "all rows are of one region"),
        ({"region": None}, "y ~ x + (1 | region/site)", {"client": "site"}, "no region has more than one site"),
        ({}, "y ~ x + (1 | patient/site)", {"client": "site"}, "site 's000' is in two of 'patient', 'p0' and 'p1'"),
        ({"row": None}, "y ~ x + (1 | site/row)", {}, "no row has more rows than the 1 random effect"),
        (
            {},
            "y ~ x + (1 | site:patient)",
            {},
            "the clients have no random term: \\(1 \\| site/patient\\)",
        ),
        (
            {},
            "y ~ x + (1 | region/patient/site)",
            {"client": "site"},
            "one level above the clients \\('site'\\) is understood, not 2",
        ),
        (
            {"twin": None},
            "y ~ x + (1 | site/patient) + (1 | site:twin)",
            {},
            "'patient' and 'twin' are the same groups",
        ),
        ({"patient": "a:b"}, "y ~ x + (1 | region/site/patient)", {}, "column 'patient' has 'a:b'"),
        (
            {},
            "y ~ x + (1 | site/patient)",
            {"client": "region"},
            "belong to 'site:patient', and the clients are 'region'",
        ),
        (
            {"u": None},
            "y ~ x + (1 | site) + (1 + u | site:patient)",
            {},
            "no patient can inform the random slope of 'u'",
        ),
        ({}, "y ~ x + (1 | site/patient)", {"one_round": True}, "one_round is of clients without groups"),
        ({"patient": 0.5}, "y ~ x + (1 | site/patient)", {}, "column 'patient'"),
        ({"v": 1.0, "w": 2.0}, "y ~ x + (1 + x + v + w | region/site)", {"client": "site"}, "slope of 'v'"),
    ],
)
def test_tables_that_say_too_little_are_refused_in_a_line(change: dict, formula: str, how: dict, line: str) -> None:
    df = table(GAUSSIAN, 3, 3, 3, 4)
    own = {"region": df.site, "row": np.arange(len(df)), "u": pd.factorize(df.site + df.patient)[0] * 1.0}
    own["twin"] = df.patient
    df = df.assign(**{k: own[k] if v is None else v for k, v in change.items()})
    with pytest.raises(UserError, match=line) as caught:
        mixed_model(df, formula, **how)
    assert "\n" not in str(caught.value)


def test_too_many_effects_of_regions_are_refused() -> None:
    df = table(CASES["poisson"], 3, 3, 3, 4).assign(u=lambda d: d.x**2)
    with pytest.raises(UserError, match="groups of clients have at most 2 random effects of a poisson response, not 3"):
        mixed_model(df, "y ~ x + (1 + x + u | region) + (1 | region:site)", client="site", family="poisson")


def test_rows_without_their_group_are_dropped_or_refused() -> None:
    df = table(GAUSSIAN, 1, 6, 3, 4)
    df.loc[[0, 5], "patient"] = None
    with pytest.raises(UserError, match="'patient' has 2 missing values"):
        mixed_model(df, "y ~ x + (1 | site/patient)")
    assert mixed_model(df, "y ~ x + (1 | site/patient)", na="drop", draws=0).left_out == {"s000": 2}
