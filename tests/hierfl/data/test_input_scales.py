"""Inputs that are far from unit scale are standardised; tokens, flags, images and what is near are not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from hierfl import Federation, UserError
from hierfl.data import without_rows
from hierfl.data.input_scales import far_constants
from hierfl.data.standard_units import in_standard_units, with_scaled_inputs

RNG = np.random.default_rng(0)
NEAR, AGE = RNG.normal(0.3, 1.2, 200), RNG.normal(60, 12, 200)
YEARS, FLAG, TOKENS = np.round(AGE), (np.arange(200) % 9 == 0) * 1.0, RNG.integers(0, 500, 200) * 1.0


@pytest.mark.parametrize(
    ("columns", "numbers", "which"),
    [
        ([NEAR], True, None),
        ([NEAR, AGE], False, [0, 1]),
        ([AGE / 1e6], False, [0]),
        ([AGE, FLAG], False, [0]),
        ([NEAR, FLAG * 100], True, None),
        ([YEARS], True, [0]),
        ([YEARS], False, None),
        ([TOKENS, TOKENS[::-1]], False, None),
        ([AGE, np.full(200, 7.0)], False, [0]),
    ],
)
def test_which_columns_are_standardised(columns: list[np.ndarray], numbers: bool, which: list[int] | None) -> None:
    x = np.stack(columns, 1)
    constants = far_constants(x, numbers=numbers)
    assert (constants is None) is (which is None)
    if constants is not None and which is not None:
        for k in range(x.shape[1]):
            wanted = (x[:, k].mean(), x[:, k].std()) if k in which else (0.0, 1.0)
            assert (constants[0][k], constants[1][k]) == pytest.approx(wanted)


def frame(**more: Any) -> pd.DataFrame:
    return pd.DataFrame({"site": ["a", "b"] * 100, "age": AGE, "years": YEARS.astype(int), "y": NEAR, **more})


def test_a_table_is_standardised_by_training_rows_and_predicts_alike() -> None:
    fed = Federation.from_frame(frame(), client="site", y="y", x=["age", "years"], test=0.25)
    x = fed.batch([0]).x, fed.batch([1]).x
    both = torch.cat([*x], 1)[0].double()
    torch.testing.assert_close(both.mean(0), torch.zeros(2).double(), atol=1e-5, rtol=0)
    torch.testing.assert_close(both.std(0, correction=0), torch.ones(2).double(), atol=1e-5, rtol=0)
    raw = Federation.from_frame(frame(), client="site", y="y", x=["age", "years"], test=0.25, standardise=False)
    assert raw.mean is None
    torch.testing.assert_close(with_scaled_inputs(raw).batch([0]).x, x[0])
    with pytest.raises(UserError, match="unknown value of standardise 'Auto'"):
        Federation.from_frame(frame(), client="site", y="y", x=["age"], standardise="Auto")  # type: ignore[arg-type]


def test_arrays_keep_tokens_and_pictures() -> None:
    who = np.arange(200) % 2
    tokens = np.stack([TOKENS, TOKENS], 1)
    assert Federation.from_arrays(tokens.astype(np.int64), who, who).mean is None
    assert Federation.from_arrays(AGE[:, None], who, who).mean == pytest.approx(AGE.mean(), rel=0.05)
    assert Federation.from_arrays(AGE[:, None, None] * np.ones((1, 3, 3)), who, who).mean is None
    assert Federation.from_arrays(AGE[:, None], who, who, standardise=False).mean is None


def test_a_federation_without_rows_keeps_the_scales_of_its_fit() -> None:
    fed = Federation.from_frame(frame(x=NEAR[::-1]), client="site", y="y", x=["x"])
    loaded = without_rows.read(*without_rows.written(in_standard_units(fed)))
    assert with_scaled_inputs(loaded) is loaded
    assert loaded.mean is None
