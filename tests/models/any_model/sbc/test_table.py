"""Rows at which data are simulated."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from support.any_models import counts, poisson

from hierfl import UserError
from hierfl.data.column_batch import ColumnBatch
from hierfl.models.any_model.sbc.table import made_rows, rows_of_table


def wide(batch: ColumnBatch) -> None:
    """A column of numbers, one of text, one of the client, a response."""
    beta = pyro.sample("beta", dist.Normal(torch.zeros(len(batch.levels("ward"))), 1.0).to_event(1))
    with batch.clients():
        u = pyro.sample("u", dist.Normal(batch.client("size"), 1.0))
        with batch.data():
            mean = u + batch["age"] + beta[batch["ward"].long()]
            pyro.sample("y", dist.Normal(mean, 1.0), obs=batch["y"])


def test_made_columns_are_normal_or_of_the_values_that_are_listed() -> None:
    table = made_rows(wide, 5, 40, {"ward": ["b", "a", "c"], "age": ["1", "4"]}, seed=0)
    df = table.frame
    assert len(df) == 200
    assert table.clients == 5
    assert set(df["age"]) == {1.0, 4.0}
    assert list(df["ward"].cat.categories) == ["a", "b", "c"]
    assert (df.groupby("site")["size"].nunique() == 1).all()
    assert df.groupby("site")["y"].nunique().min() == 40
    assert "age one of 1, 4" in table.words
    assert "size standard normal for each client" in table.words


@pytest.mark.parametrize(
    ("values", "word"), [({"ward": ["a"], "mass": ["1"]}, "does not read"), ({"age": ["1"]}, "--values ward=")]
)
def test_values_that_do_not_fit_the_model_are_one_line(values: dict[str, Any], word: str) -> None:
    with pytest.raises(UserError, match=word):
        made_rows(wide, 2, 3, values, seed=0)


def test_of_a_table_the_first_clients_and_rows() -> None:
    df = counts((4, 6, 2, 5))
    table = rows_of_table(df, "site", poisson, 3, 4)
    assert table.frame.groupby("site").size().tolist() == [4, 4, 2]
    assert "3 clients of 2 to 4 rows" in table.words
    with pytest.raises(UserError, match="4 clients in column 'site', fewer than --sites 5"):
        rows_of_table(df, "site", poisson, 5, None)
