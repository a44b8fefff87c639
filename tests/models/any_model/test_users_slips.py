"""Slips of a first model: data that its distribution cannot give, a plate of another name, a guide of Pyro's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoDelta, AutoMultivariateNormal, AutoNormal

import hierfl
from hierfl.data.column_batch import ColumnBatch
from hierfl.errors import UserError
from hierfl.models.any_model.alternatives import scored

FRAME = pd.DataFrame({
    "site": ["a", "a", "a", "b", "b"], "count": [0, 1, 3, 0, 2], "half": [0.5, 1.0, 2.0, 3.0, 0.0],
    "signed": [1.0, -1.0, 2.0, 3.0, 1.0], "there": [1, 1, 0, 1, 0],
})  # fmt: skip


def of(likelihood: Callable[[torch.Tensor, ColumnBatch], Any], column: str, plate: str = "client") -> Any:
    def model(batch: ColumnBatch) -> None:
        mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
        with pyro.plate(plate, batch.num_clients, dim=-2):
            u = pyro.sample("u", dist.Normal(mu, 1.0))
            with pyro.plate("data", batch.width, dim=-1):
                pyro.sample("y", likelihood(u, batch), obs=batch[column])

    return model


@pytest.mark.parametrize(
    ("name", "likelihood", "column"),
    [
        ("Bernoulli", lambda u, _: dist.Bernoulli(logits=u), "count"),
        ("Poisson", lambda u, _: dist.Poisson(u.exp()), "half"),
        ("Binomial", lambda u, _: dist.Binomial(torch.tensor(2.0), logits=u), "count"),
        ("Exponential", lambda u, _: dist.Exponential(u.exp()), "signed"),
        ("Categorical", lambda u, _: dist.Categorical(logits=u[..., None] * torch.ones(3)), "count"),
    ],
)
def test_data_outside_of_the_support_are_refused(name: str, likelihood: Any, column: str) -> None:
    """Most of these have a finite log density, and a fit that means nothing."""
    with pytest.raises(UserError, match=f"site 'y' (is observed at a value|has no log density).*{name}"):
        hierfl.fit_model(of(likelihood, column), FRAME, group="site", progress=False)


@pytest.mark.parametrize("how", [
    lambda u, batch: dist.Bernoulli(logits=u.expand(batch["there"].shape)).mask(batch["there"] == 1),
    lambda u, batch: dist.Bernoulli(logits=u),
])  # fmt: skip
def test_a_masked_row_may_hold_anything(how: Any) -> None:
    frame = FRAME.assign(coded=[0, 1, -9, 1, -9])
    masked = pyro.poutine.mask

    def model(batch: ColumnBatch) -> None:
        with batch.clients():
            u = pyro.sample("u", dist.Normal(0.0, 1.0))
            with batch.data(), masked(mask=batch["there"] == 1):
                pyro.sample("y", how(u, batch), obs=batch["coded"])

    assert hierfl.fit_model(model, frame, group="site", rounds=2, progress=False).clients["u"].shape[1] == 2


def test_a_plate_of_another_name_is_named() -> None:
    model = of(lambda u, _: dist.Poisson(u.exp()), "count", plate="sites")
    with pytest.raises(UserError, match="site 'y' is within plate 'sites' at dim -2, and in no plate 'client'"):
        hierfl.fit_model(model, FRAME, group="site", progress=False)


@pytest.mark.parametrize(
    ("guide", "instead"),
    [(AutoNormal, "client_guide='normal'"), (AutoMultivariateNormal, "'multivariate'"), (AutoDelta, "guide='point'")],
)
@pytest.mark.parametrize("made", [False, True])
def test_an_autoguide_is_refused_with_what_stands_for_it(guide: Any, instead: str, made: bool) -> None:
    model = of(lambda u, _: dist.Poisson(u.exp()), "count")
    with pytest.raises(UserError, match=f"{guide.__name__} is a guide of pooled rows: say .*{instead}"):
        hierfl.fit_model(model, FRAME, group="site", guide=guide(model) if made else guide, progress=False)


def test_a_table_without_rows_is_refused() -> None:
    with pytest.raises(UserError, match="the table has no rows"):
        hierfl.fit_model(of(lambda u, _: dist.Poisson(u.exp()), "count"), FRAME.iloc[:0], group="site")


def test_a_model_without_densities_of_rows_is_named_among_alternatives() -> None:
    def model(batch: ColumnBatch) -> None:
        with batch.clients():
            u = pyro.sample("u", dist.Normal(0.0, 1.0))
            with batch.data():
                pyro.factor("own", dist.Poisson(u.exp()).log_prob(batch["count"]))

    fitted = hierfl.fit_model(model, FRAME, group="site", rounds=2, progress=False)
    with pytest.raises(UserError, match="^counts: no row has a log likelihood"):
        scored("counts", fitted, None, "site")


def test_clients_are_named_by_one_column() -> None:
    with pytest.raises(UserError, match=r"the table has no column \['site'\] that names the clients"):
        hierfl.fit_model(of(lambda u, _: dist.Poisson(u.exp()), "count"), FRAME, group=["site"])  # type: ignore[arg-type]


def test_what_the_codes_of_a_text_outcome_stand_for_is_said() -> None:
    """Codes are in alphabetical order: of which word a model is depends on the words."""
    frame = FRAME.assign(end=["died", "left", "died", "left", "left"])
    model = of(lambda u, _: dist.Bernoulli(logits=u), "end")
    notes = hierfl.fit_model(model, frame, group="site", rounds=1, progress=False).summary().notes
    assert notes[0] == "end is text: died is 0, left is 1"
