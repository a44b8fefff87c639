"""Alternatives of one model on the same rows."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from support.any_models import FEW, counts, normal

from hierfl import UserError, fit_model
from hierfl.models.any_model.alternatives import Scored, differences, scored, split_rows


def of(name: str, densities: list[float]) -> Scored:
    return Scored(name, densities, 0, -9.0, 2, [])


def test_differences_are_paired_by_row_and_the_best_is_first() -> None:
    first, second = differences([of("a", [-1.0, -2.0, -4.0]), of("b", [-1.0, -1.5, -3.0])])
    assert [first.name, second.name] == ["b", "a"]
    assert first.elpd == -5.5
    assert first.behind == first.behind_se == 0
    assert second.behind == 1.5
    assert second.behind_se == pytest.approx(math.sqrt(3) * 0.5)
    with pytest.raises(UserError, match="different numbers of rows"):
        differences([of("a", [-1.0]), of("b", [-1.0, 2.0])])


def test_a_share_of_each_clients_rows_is_held_out_and_one_row_stays() -> None:
    df = counts((10, 4, 1)).assign(ward=["a", "b", "c"] * 5)
    train, held_out = split_rows(df, "site", 0.5, 0)
    assert held_out.groupby("site").size().to_dict() == {"s00": 5, "s01": 2}
    assert len(train) == 8
    assert list(held_out["ward"].cat.categories) == list(train["ward"].cat.categories) == ["a", "b", "c"]
    both = pd.concat([train, held_out]).sort_values(["site", "x"])[["x", "y"]]
    np.testing.assert_array_equal(both.to_numpy(), df.sort_values(["site", "x"])[["x", "y"]].to_numpy())
    with pytest.raises(UserError, match="no client has enough rows"):
        split_rows(counts((1, 1)), "site", 0.5, 0)


def test_the_density_of_held_out_rows_is_the_predictive_one() -> None:
    """All is normal: of a client's new row y - x is N(mean of theta, 1 + variance of theta)."""
    train, held_out = split_rows(counts((6, 3, 4)), "site", 0.4, 0)
    held_out = held_out[held_out["site"] != "s00"]
    fitted = fit_model(normal, train, progress=False, **{**FEW, "draws": 4000})
    densities = np.array(scored("normal", fitted, held_out, "site").densities)
    table = fitted.client_table().set_index("client")
    mean, sd = (table[name].loc[held_out["site"]].to_numpy() for name in ("theta", "theta sd"))
    variance, gap = 1 + sd**2, held_out["y"].to_numpy() - held_out["x"].to_numpy() - mean
    np.testing.assert_allclose(densities, -0.5 * (np.log(2 * np.pi * variance) + gap**2 / variance), atol=0.05)
