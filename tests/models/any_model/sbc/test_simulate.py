"""Data sets from a model's prior: which columns are replaced, and by what."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from support.any_models import poisson

from hierfl import UserError
from hierfl.data.column_batch import ColumnBatch
from hierfl.data.column_design import ColumnDesign
from hierfl.models.any_model.sbc.simulate import responses, simulate
from hierfl.models.any_model.sites import read_model

DESIGN = ColumnDesign.of(("x", "y", "z"))
ROWS = torch.tensor([[0.3, -1.2, 0.7, 0.1], [2.0, 0.0, 1.0, 5.0], [1.0, 2.0, 3.0, 4.0]]).double()


def computed(batch: ColumnBatch) -> None:
    """Observes a logarithm."""
    mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
    with batch.clients(), batch.data():
        pyro.sample("seen", dist.Normal(mu, 1.0), obs=(batch["y"] + 1).log())


def earlier(batch: ColumnBatch) -> None:
    """A row depends on the one before."""
    mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
    with batch.clients(), batch.data():
        pyro.sample("seen", dist.Normal(mu + batch["y"].roll(1, -1), 1.0), obs=batch["y"])


def factor(batch: ColumnBatch) -> None:
    """A density that nothing can be drawn from."""
    mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
    with batch.clients(), batch.data():
        pyro.factor("seen", -((batch["y"] - mu) ** 2))


def twice(batch: ColumnBatch) -> None:
    """One column, two sites."""
    mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
    with batch.clients(), batch.data():
        pyro.sample("a", dist.Normal(mu, 1.0), obs=batch["y"])
        pyro.sample("b", dist.Normal(mu, 1.0), obs=batch["y"])


def two(batch: ColumnBatch) -> None:
    """A response of rows as whole numbers, and one of the client."""
    mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
    with batch.clients():
        pyro.sample("size", dist.Normal(mu, 0.1), obs=batch.client("z"))
        with batch.data():
            pyro.sample("kind", dist.Bernoulli(logits=mu + batch["x"]), obs=batch["y"].long().double())


def nothing(batch: ColumnBatch) -> None:
    """Reads a column, and observes none."""
    pyro.sample("mu", dist.Normal(0.0, 1.0) if batch["x"] is not None else None)


@pytest.mark.parametrize(
    ("model", "word"),
    [
        (computed, "does not observe a column"), (earlier, "depends on column 'y'"), (factor, "pyro.factor"),
        (twice, "observed by two sites"), (nothing, "observes no site"),
    ],
)  # fmt: skip
def test_what_cannot_be_simulated_is_one_line(model: Any, word: str) -> None:
    with pytest.raises(UserError, match=word) as raised:
        responses(model, DESIGN, ROWS)
    assert "\n" not in str(raised.value)


def test_a_sites_column_is_found_whatever_its_shape_and_type() -> None:
    assert responses(two, DESIGN, ROWS) == {"size": "z", "kind": "y"}


def test_a_clients_response_is_the_same_in_its_rows_and_covariates_stay() -> None:
    sites = read_model(two, DESIGN)
    found = simulate(two, sites, DESIGN, [ROWS, ROWS[:, :2]], {"size": "z", "kind": "y"}, 50, 0)
    first, second = found.columns
    assert first.shape == (50, 3, 4)
    assert second.shape == (50, 3, 2)
    torch.testing.assert_close(first[:, 0], ROWS[0].expand(50, -1))
    assert set(first[:, 1].unique().tolist()) == {0.0, 1.0}
    assert (first[:, 2] == first[:, 2, :1]).all()
    # (data follow what was drawn of everyone: the client's response is mu, nearly)
    assert (first[:, 2, 0] - found.globals["mu"]).std() == pytest.approx(0.1, abs=0.03)


def test_draws_of_data_have_the_priors_moments() -> None:
    design = ColumnDesign.of(("x", "y"))
    sites = read_model(poisson, design)
    rows = [torch.zeros(2, 3).double()] * 4
    found = simulate(poisson, sites, design, rows, {"y": "y"}, 400, 3)
    beta, u = found.globals["beta"], torch.stack([one["u"] for one in found.clients], 1)
    assert beta.std(0).numpy() == pytest.approx([2.0, 2.0], rel=0.12)
    apart = (u - beta[:, :1]) / found.globals["tau"][:, None]
    assert apart.std() == pytest.approx(1.0, rel=0.06)
    rate, y = u[..., None].exp(), torch.stack([c[:, 1] for c in found.columns], 1)
    assert (((y - rate) / rate.sqrt())[rate.expand_as(y) > 1]).std() == pytest.approx(1.0, rel=0.06)
