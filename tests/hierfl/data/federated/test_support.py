"""At how many sites each part of the data occurs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.study_tables import DICTIONARY, FORMULAS, parts, pooled

from hierfl.data.federated.array_data import ArrayData
from hierfl.data.federated.column_data import ColumnData
from hierfl.data.federated.design import StudyFormula
from hierfl.data.federated.dictionary import Column, Dictionary
from hierfl.data.federated.formula_data import FormulaData
from hierfl.data.federated.study_data import StudyData
from hierfl.data.federated.support import check_support, part_names, parts_of
from hierfl.errors import UserError


def counted(data: StudyData, tables: dict[str, pd.DataFrame], folder: Path, *, classes: bool = False) -> dict[str, int]:
    """{part: sites that have it}."""
    total = np.zeros(len(names := part_names(data, classes=classes)))
    for name, df in tables.items():
        df.to_csv(folder / f"{name}.csv", index=False)
        total += parts_of(data.site(folder / f"{name}.csv", name), classes=classes)
    return dict(zip(names, total.astype(int).tolist(), strict=True))


@pytest.mark.parametrize(("formula", "family", "more"), FORMULAS, ids=[formula for formula, *_ in FORMULAS])
@pytest.mark.cpu(3, "six sites read their tables")
def test_columns_and_levels_of_every_kind_of_formula(formula: str, family: str, more: object, tmp_path: Path) -> None:
    """The first site has never seen stage IV, nor grade 2; everything else is everywhere but rare levels."""
    counts = counted(FormulaData(StudyFormula(formula, DICTIONARY, family, more), "s"), parts(pooled()), tmp_path)
    assert counts.pop("Intercept") == 6
    lacking = {name for name in counts if "IV" in name or name in ("grade=2", "C(grade)[2]")}
    assert all(counts[name] == 6 for name in counts.keys() - lacking)
    assert all(4 <= counts[name] <= 5 for name in lacking)
    check_support(list(counts), np.array(list(counts.values())))


def test_a_level_of_two_sites_is_named() -> None:
    """A level that nobody has adds nothing, and is no reason to refuse."""
    with pytest.raises(UserError, match=r"ward=C: at fewer than 3 sites, .* join levels in the dictionary, or leave"):
        check_support(["ward=A", "ward=B", "ward=C"], np.array([6, 0, 2]))
    with pytest.raises(UserError, match="ward=A, and 1 more: at fewer than 3 sites"):
        check_support(["ward=A", "ward=B", "ward=C"], np.array([1, 6, 2]))


def test_an_interaction_of_one_site_is_counted(tmp_path: Path) -> None:
    """Both levels are at every site, and together at one."""
    df = pooled()
    df.loc[(df.sex == "m") & (df.site != "s0"), "stage"] = "I"
    df.loc[df.index[(df.site == "s0") & (df.sex == "m")][:2], "stage"] = "II"
    data = FormulaData(StudyFormula("y ~ sex:stage + (1 | site)", DICTIONARY), "s")
    counts = counted(data, parts(df), tmp_path)
    few = [name for name, sites in counts.items() if 0 < sites < 3]
    assert [name for name in few if "m" in name and "II" in name]


def test_groups_of_sites_are_counted(tmp_path: Path) -> None:
    dictionary = Dictionary({**DICTIONARY.columns, "region": Column("category", ("north", "south"))})
    tables = {name: df.assign(region="north" if name < "s4" else "south") for name, df in parts(pooled()).items()}
    counts = counted(FormulaData(StudyFormula("y ~ age + (1 | region/site)", dictionary), "s"), tables, tmp_path)
    assert (counts["region=north"], counts["region=south"]) == (4, 2)


def test_inputs_and_classes_of_networks(tmp_path: Path) -> None:
    """Classes are counted for methods whose messages are sums over each."""
    data = ColumnData(DICTIONARY, ("age", "stage", "smokes"), "sex", "s", "mlp:3", test=0.0)
    counts = counted(data, parts(pooled()), tmp_path, classes=True)
    assert counts["stage=IV"] in (4, 5)
    assert [counts[name] for name in ("age", "smokes=0", "smokes=1", "sex=f", "sex=m")] == [6] * 5
    assert "sex=f" not in part_names(data, classes=False)
    images = ArrayData((1, 4, 4), True, 3, "s", "mlp:3")
    assert part_names(images, classes=True) == ["class 0", "class 1", "class 2"]
    assert part_names(images, classes=False) == []
