"""Which columns noise inside clients is of: those of single rows, each within a range of its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.private_formulas import RANGES, table

from hierfl.data.batch import Batch
from hierfl.data.formula.federate import from_formula
from hierfl.errors import UserError
from hierfl.inference import fit
from hierfl.inference.options import Options
from hierfl.models.mixed_effects.method import MixedEffects
from hierfl.models.mixed_effects.private.ranges import range_of, read_ranges

HOW: dict[str, Any] = {"progress": False, "dtype": torch.float64, "splits": (), "dp": "site", "epsilon": 4.0}


@pytest.mark.parametrize(
    ("words", "formula", "ranges"),
    [
        ("center() is made of all rows", "sbp ~ center(age) + (1 | site)", "; center(age) -50 50"),
        ("scale() is made of all rows", "sbp ~ age + (0 + scale(age) | site)", "; scale(age) -9 9"),
        ("standardize() is made of all rows", "standardize(sbp) ~ age + (1 | site)", ""),
        ("cc() is made of all rows", "sbp ~ cc(age, 100, 3) + (1 | site)", ""),
        ("tp() is made of all rows", "sbp ~ tp(age, 4) + sex + (1 | site)", ""),
        ("needs the range of column 'np.log(sbp)'", "np.log(sbp) ~ age + (1 | site)", ""),
    ],
)
def test_what_is_made_of_all_rows_is_refused_whatever_its_range(words: str, formula: str, ranges: str) -> None:
    federation, design = from_formula(table("intercept", 0).iloc[::20], formula)
    with pytest.raises(UserError) as caught:
        fit(MixedEffects(design, ranges=RANGES + ranges, draws=0), federation, 5, **HOW)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("factor", ["C(stage, Sum)", "S(stage)", "C(stage, Sum('b'))", "stage", "T(stage, 'c')"])
def test_contrasts_are_sent_as_they_are(factor: str) -> None:
    """None is cut at the end of a range that is not its own."""
    df = table("intercept", 1).iloc[::20]
    df = df.assign(stage=["abc"[k % 3] for k in range(len(df))])
    federation, design = from_formula(df, f"sbp ~ age:{factor} + {factor} + (1 | site)")
    method = MixedEffects(design, ranges="age -200 200; sbp -900 900", draws=0)
    how = Options(dp="site", epsilon=4.0, dtype=torch.float64)
    columns = method.under_noise(how, federation).private.columns  # type: ignore[union-attr]
    batch = Batch(federation.x[None], federation.y[None], None, torch.tensor([1.0]))
    rows, middle, half = columns.rows(batch), *(torch.tensor(v).double() for v in (columns.middle, columns.half))
    raw = torch.cat([torch.ones_like(batch.y)[..., None], batch.x[..., columns.places[1:]], batch.y[..., None]], -1)
    torch.testing.assert_close(rows * half + middle, raw)
    assert int(columns.outside(batch)) == 0


def test_ranges_of_contrasts_and_of_functions() -> None:
    assert range_of("S(stage)[a]:age", read_ranges("age 20 90")) == (-90.0, 90.0, "")
    assert range_of("np.log( age )", read_ranges("np.log(age) 2 5"))[:2] == (2.0, 5.0)
