"""Data sets from a model's prior: which columns are replaced, and by what."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from support.any_models import poisson

from hierfl import UserError
from hierfl.data.column_batch import ColumnBatch
from hierfl.data.column_design import ColumnDesign
from hierfl.models.any_model.sbc.simulate import Cells, responses, simulate
from hierfl.models.any_model.sites import read_model

DESIGN = ColumnDesign.from_columns(("x", "y", "z"))
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


def chain(batch: ColumnBatch) -> None:
    """A response follows the one before, by what pyro.sample has returned, and a hidden state."""
    low = pyro.sample("low", dist.Normal(0.0, 1.0))
    with batch.clients():
        stay = pyro.sample("stay", dist.Beta(8.0, 2.0))
        chance, before = torch.tensor(0.5), torch.tensor(0.0)
        for t in pyro.markov(range(batch.width)):
            x = pyro.sample(f"x_{t}", dist.Bernoulli(chance))
            chance = x * stay + (1 - x) * (1 - stay)
            at = low + 10 * x + 0.5 * before
            before = pyro.sample(f"y_{t}", dist.Normal(at, 0.01), obs=batch["y"][..., t, None])


def by_times(batch: ColumnBatch) -> None:
    """The same, by the column: what was drawn would not be read."""
    low = pyro.sample("low", dist.Normal(0.0, 1.0))
    with batch.clients():
        for t in range(batch.width):
            at = low if t == 0 else low + batch["y"][..., t - 1, None]
            pyro.sample(f"y_{t}", dist.Normal(at, 1.0), obs=batch["y"][..., t, None])


def row_twice(batch: ColumnBatch) -> None:
    """A row that two sites observe."""
    mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
    with batch.clients():
        pyro.sample("first", dist.Normal(mu, 1.0), obs=batch["y"][..., 1, None])
        with batch.data():
            pyro.sample("all", dist.Normal(mu, 1.0), obs=batch["y"])


def nothing(batch: ColumnBatch) -> None:
    """Reads a column, and observes none."""
    pyro.sample("mu", dist.Normal(0.0, 1.0) if batch["x"] is not None else None)


@pytest.mark.parametrize(
    ("model", "word"),
    [
        (computed, "does not observe a column"), (earlier, "depends on column 'y'"), (factor, "pyro.factor"),
        (twice, "observed by two sites"), (nothing, "observes no site"),
        (by_times, "depends on column 'y', which 'y_0'"), (row_twice, "observed by two sites"),
    ],
)  # fmt: skip
def test_what_cannot_be_simulated_is_one_line(model: Any, word: str) -> None:
    with pytest.raises(UserError, match=word) as raised:
        responses(model, DESIGN, ROWS)
    assert "\n" not in str(raised.value)


def test_a_sites_column_is_found_whatever_its_shape_and_type() -> None:
    assert responses(two, DESIGN, ROWS) == {"size": Cells("z"), "kind": Cells("y")}


def test_a_clients_response_is_the_same_in_its_rows_and_covariates_stay() -> None:
    sites = read_model(two, DESIGN)
    simulated = simulate(two, sites, DESIGN, [ROWS, ROWS[:, :2]], {"size": Cells("z"), "kind": Cells("y")}, 50, 0)
    first, second = simulated.columns
    assert first.shape == (50, 3, 4)
    assert second.shape == (50, 3, 2)
    torch.testing.assert_close(first[:, 0], ROWS[0].expand(50, -1))
    assert set(first[:, 1].unique().tolist()) == {0.0, 1.0}
    assert (first[:, 2] == first[:, 2, :1]).all()
    # Data follow what was drawn of everyone: the client's response is mu, nearly.
    assert (first[:, 2, 0] - simulated.globals["mu"]).std() == pytest.approx(0.1, abs=0.03)


@pytest.mark.slow
@pytest.mark.cpu(10, "4,000 chains, one time after another")
def test_a_chain_is_drawn_in_the_order_of_its_times() -> None:
    """A state stays with its client's chance, and a response follows the one that was drawn before."""
    sites, several = read_model(chain, replace(DESIGN, rows=4)), [ROWS, ROWS[:, :2]]
    cells = responses(chain, DESIGN, ROWS)
    assert cells == {f"y_{t}": Cells("y", t) for t in range(4)}
    made = simulate(chain, sites, DESIGN, several, cells, 4000, 0)
    assert [client.shape for client in made.columns] == [(4000, 3, 4), (4000, 3, 2)]
    y, low = made.columns[0][:, DESIGN.columns.index("y")], made.globals["low"][:, None]
    state = (y - low - 0.5 * torch.cat([torch.zeros(4000, 1), y[:, :-1]], 1)) / 10
    assert (state - state.round()).abs().max() < 0.01
    x = state.round()
    assert set(x.unique().tolist()) == {0.0, 1.0}
    stayed = (x[:, 1:] == x[:, :-1]).double().mean(1)
    assert stayed.mean() == pytest.approx(0.8, abs=0.02)
    chance = made.clients[0]["stay"].flatten()
    assert torch.corrcoef(torch.stack([stayed, chance]))[0, 1] > 0.3
    # Cov(mean of three, chance) = Var(chance) = 8 * 2 / (100 * 11).
    assert torch.cov(torch.stack([stayed, chance.double()]))[0, 1] == pytest.approx(16 / 1100, rel=0.15)
    torch.testing.assert_close(made.columns[0][:, 0], ROWS[0].expand(4000, -1))


def test_draws_of_data_have_the_priors_moments() -> None:
    design = ColumnDesign.from_columns(("x", "y"))
    sites = read_model(poisson, design)
    rows = [torch.zeros(2, 3).double()] * 4
    simulated = simulate(poisson, sites, design, rows, {"y": Cells("y")}, 400, 3)
    beta, u = simulated.globals["beta"], torch.stack([client["u"] for client in simulated.clients], 1)
    assert beta.std(0).numpy() == pytest.approx([2.0, 2.0], rel=0.12)
    apart = (u - beta[:, :1]) / simulated.globals["tau"][:, None]
    assert apart.std() == pytest.approx(1.0, rel=0.06)
    rate, y = u[..., None].exp(), torch.stack([c[:, 1] for c in simulated.columns], 1)
    assert (((y - rate) / rate.sqrt())[rate.expand_as(y) > 1]).std() == pytest.approx(1.0, rel=0.06)
