"""What is no guide of a model is refused in one line that says why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from support.any_models import COLUMNS

from hierfl import UserError
from hierfl.data.column_batch import ColumnBatch
from hierfl.data.column_design import ColumnDesign
from hierfl.models.any_model.own_guide.method import OwnGuide


def model(batch: ColumnBatch) -> None:
    """Two globals, and a latent of each client."""
    mu = pyro.sample("mu", dist.Normal(0.0, 10.0))
    b = pyro.sample("b", dist.Normal(0.0, 5.0))
    with batch.clients():
        u = pyro.sample("u", dist.Normal(mu, 1.0))
        with batch.data():
            pyro.sample("y", dist.Normal(u + b * batch["x"], 0.5), obs=batch["y"])


def guide_with(*, mu: bool = True, u: bool = True, client: bool = True, extra: str = "", param: Any = 0.0) -> Callable:
    """A guide with something amiss."""

    def made(batch: ColumnBatch) -> None:
        loc = (
            pyro.param("loc")
            if param is None
            else pyro.param("loc", param(batch) if callable(param) else torch.tensor(param))
        )
        if mu:
            pyro.sample("mu", dist.Normal(loc.sum(), 1.0))
        pyro.sample("b", dist.Normal(0.0, 1.0))
        if extra:
            pyro.sample(extra, dist.Normal(0.0, 1.0))
        if u and client:
            with batch.clients():
                pyro.sample("u", dist.Normal(0.0, 1.0))
        elif u:
            pyro.sample("u", dist.Normal(0.0, 1.0))

    return made


def of_rows(batch: ColumnBatch) -> None:
    pyro.sample("mu", dist.Normal(batch["y"].mean() * pyro.param("k", torch.tensor(1.0)), 1.0))
    pyro.sample("b", dist.Normal(0.0, 1.0))
    with batch.clients():
        pyro.sample("u", dist.Normal(0.0, 1.0))


def of_chance(batch: ColumnBatch) -> None:
    pyro.sample("mu", dist.Normal(pyro.param("k", torch.randn(())), 1.0))
    pyro.sample("b", dist.Normal(torch.randn(()), 1.0))
    with batch.clients():
        pyro.sample("u", dist.Normal(0.0, 1.0))


def gamma(batch: ColumnBatch) -> None:
    pyro.sample("mu", dist.Gamma(pyro.param("k", torch.tensor(1.0)), 1.0))


@pytest.mark.parametrize(
    ("own", "words"),
    [
        (guide_with(mu=False), "the guide misses site 'mu'"),
        (guide_with(client=False), "site 'u' is a client's in the model and everyone's in the guide"),
        (guide_with(extra="v"), "the guide samples site 'v', which the model does not have"),
        (guide_with(extra="y"), "the guide samples site 'y', which the model observes"),
        (guide_with(param=None), "param 'loc' of the guide has no first value"),
        (guide_with(param=lambda batch: torch.zeros(3 * batch.num_clients)), "for one client and .* for two"),
        (guide_with(param=lambda batch: torch.zeros(batch.width)), "a number for each row and no dimension of clients"),
        (of_rows, "the guide computes site 'mu' from the rows"),
        (gamma, "site 'mu' has a distribution whose draws are no function of normal numbers"),
        (of_chance, "random number for site 'b' outside of pyro.sample"),
    ],
)  # fmt: skip
def test_what_is_no_guide_of_the_model_is_one_line(own: Callable, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        OwnGuide(ColumnDesign.from_columns(COLUMNS), model, own)
    assert "\n" not in str(caught.value)
