"""Sites find by sums alone what one table would, of structures beside each other."""

from __future__ import annotations

from functools import reduce
from operator import add
from pathlib import Path

import pandas as pd
import pytest
import torch
from support.declared_bytes import declared_only
from support.sites import Sites
from support.wards import wards

from hierfl.data.federated.design import StudyFormula
from hierfl.data.federated.dictionary import Column, Dictionary
from hierfl.data.federated.study_reader import study_reader
from hierfl.data.formula.federate import from_formula
from hierfl.data.formula.row_numbers import RowColumns
from hierfl.inference import fit
from hierfl.models import MixedEffects
from hierfl.models.mixed_effects.likelihood import containment
from hierfl.models.mixed_effects.search.requests import most_points

COLUMNS = {
    "y": Column("number"), "n": Column("whole", least=0, most=99), "x": Column("number", least=0, most=10),
    "t": Column("whole", least=0, most=9), "arm": Column("category", ("a", "b")), "ward": Column("name"),
    "patient": Column("name"), "item": Column("category", ("i0", "i1", "i2", "i3", "i4")),
}  # fmt: skip
STUDIES = {
    "curve, items and three levels, by arm": (
        "y ~ s(x, k=5) + arm + (1 | site/ward/patient) + (1 | item); dispersion ~ arm", "gaussian", ""
    ),
    "series beside three levels": ("y ~ x + (1 | site/ward/patient)", "gaussian", "ar1(t | patient)"),
    "deviations of their own beside wards": ("y ~ x + (1 | site/ward); dispersion ~ (1 | site)", "gaussian", ""),
    "counts of items and wards": ("n ~ x + (1 | site/ward) + (1 | item)", "poisson", ""),
}  # fmt: skip


def message(method: MixedEffects) -> dict[str, tuple[int, ...]]:
    """One site's, by name: as docs/leaves.md says."""
    k, p, m = method.k, len(method.network.fixed), sum(level.columns for level in method.above)
    levels, form = len(method.inside), method.likelihood.form(most_points(method))
    cells = 1 + m + m * (m + 1) // 2 if method.likelihood.searches_beta else (m + p + 1) * (m + p + 2) // 2 + 1
    contained = containment.sizes(method) if method.restricted else {}
    if method.network.spread:
        assert form == {"height": (), "slope": (k,), "curvature": (k, k), "many": form["many"]}
        return {**form, **contained, "counts": (2 + levels,)}
    names = {"crossed", "many"} if method.likelihood.searches_beta else {"cross", "cross_1", "cross_2", "many"}
    assert form.keys() == names
    assert {shape[-1] for shape in form.values()} == {cells}
    assert "crossed" not in form or form["crossed"] == (1 + k + k * k, cells)
    return {**form, **contained, "counts": (2 + levels,)}


@pytest.mark.cpu(6, "searches asked of three sites through bytes")
@pytest.mark.parametrize(
    "which", [next(iter(STUDIES)), *(pytest.param(name, marks=pytest.mark.slow) for name in [*STUDIES][1:])]
)
def test_sites_find_what_the_table_would(which: str, tmp_path: Path) -> None:
    text, family, correlation = STUDIES[which]
    df = wards()
    df = df[(df.site < "s3") & ((df.site != "s1") | (df.index % 3 > 0))].reset_index(drop=True)
    how = {"rounds": 90, "draws": 2, "dtype": torch.float64, "evaluate_every": 90, "splits": ("train",)}
    settings: dict = {"draws": 0}
    federation, design = from_formula(df, text, family=family, client="site", correlation=correlation or None)
    whole = fit(MixedEffects(design, **settings), federation, progress=False, **how)

    own_rows = {str(name): rows.drop(columns="site") for name, rows in df.groupby("site")}
    formula = StudyFormula(text, Dictionary(COLUMNS), family, RowColumns(correlation=correlation))
    reader = study_reader(formula, reduce(add, (formula.first(rows) for rows in own_rows.values())))
    made = reader.design(reduce(add, (reader.second(rows) for rows in own_rows.values())))
    own = {name: reader.federation(rows, name) for name, rows in own_rows.items()}
    # Each site knows how many groups it has itself; here all run one method, which has room for them.
    most = {k: max(of.about["reader"].places.most[k] for of in own.values()) for k in formula.levels.inside}
    method = MixedEffects(made.with_most(most), **settings)
    sites = Sites(method, own["s0"], tmp_path, own, **how)
    response = {name: torch.tensor([*rows[text[0]]], dtype=torch.float64) for name, rows in own_rows.items()}
    groups = set(df.ward) | set(df.patient)
    run = sites.fit(declared_only(sites, message(method), groups, response))

    effects, numbers = run.fitted.method.population_summary(run.fitted)
    expected, pooled = whole.fitted.method.population_summary(whole.fitted)
    assert effects is not None
    assert expected is not None
    pd.testing.assert_frame_equal(effects, expected, rtol=1e-5, atol=1e-7)
    assert numbers["log_likelihood"] == pytest.approx(pooled["log_likelihood"], rel=1e-9)
    for name in (key for key in whole.shared if key.startswith("effects.crossed") and whole.shared[key].dim() == 2):
        torch.testing.assert_close(run.shared[name], whole.shared[name], rtol=1e-4, atol=1e-6)
